"""`GET /v1/fleet`: every worker as this gateway sees it now."""

from __future__ import annotations

from fastapi import APIRouter

from tiltyard.fleet.registry import Worker
from tiltyard.gateway.door import Door
from tiltyard.identity.canonical import Json


def fleet_routes(door: Door) -> APIRouter:
    """The route that shows the fleet."""
    routes = APIRouter(tags=["watch"])

    @routes.get("/v1/fleet", summary="Show the workers")
    async def fleet() -> dict[str, object]:
        """Each worker's state, load and speed; with API keys, for a key with the scope `admin`."""
        return {"object": "list", "data": [_shown(door, worker) for worker in door.router.registry.workers]}

    return routes


def _shown(door: Door, worker: Worker) -> dict[str, Json]:
    status, loads = worker.status, door.router.loads
    now_s = worker.clock()
    renewed = worker.lease.renewed_s
    pace = loads.pace(worker.name).tokens_per_s(now_s)
    return {
        "worker": worker.name,
        "url": worker.url,
        "kind": "tiltyard" if worker.engine is None else worker.engine.kind,
        "version": status.version if status is not None else "",
        "added": worker.added,
        "alive": worker.alive,
        "state": state_of(worker),
        "note": worker.why,
        "draining": worker.draining,
        "circuit": worker.breaker.state(now_s),
        "answered_s_ago": None if renewed is None else round(now_s - renewed, 3),
        "identities": {name: identity.behaviour for name, identity in worker.identities.items()},
        "verified": not any(i.behaviour_manifest.declared for i in worker.identities.values()),
        "unfinished_tokens": loads.shown(worker.name),
        "requests": sum(not entry.blind for entry in loads.of(worker.name)),
        "running": status.running if status is not None else 0,
        "waiting": status.waiting if status is not None else 0,
        "kv_use": round(status.kv_blocks_used / status.kv_blocks_total, 4)
        if status is not None and status.kv_blocks_total
        else None,
        "tokens_per_s": None if pace is None else round(pace, 1),
    }


def state_of(worker: Worker) -> str:
    """One word: what an operator wants to know first."""
    if worker.alive:
        return "ready"
    if worker.url is None or worker.status is None:
        return "down" if worker.lease.renewed_s is not None else "starting"
    if worker.draining:
        return "draining"
    if worker.well:
        return "tripped"
    if worker.stuck:
        return "hung"
    if not worker.lease.holds(worker.clock()):
        return "silent"
    return worker.status.state

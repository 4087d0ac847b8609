"""`/health` (the process lives), `/ready` (every model can be asked), `/metrics`."""

from __future__ import annotations

import asyncio

import orjson
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from tiltyard.errors import UNAVAILABLE_RETRY_S, Unavailable
from tiltyard.gateway.door import Door
from tiltyard.router.tenants import NANO


def health_routes(door: Door) -> APIRouter:
    """The routes for those who watch."""
    routes = APIRouter(tags=["watch"])

    @routes.get("/health", summary="Is the gateway alive")
    async def health() -> dict[str, str]:
        """Answers as long as the gateway's loop turns; says nothing about workers."""
        return {"status": "ok"}

    @routes.get("/ready", summary="Can every model be asked", response_class=Response)
    async def ready() -> Response:
        """200 when every identity that is started here has a living worker; 503 with what is missing otherwise.

        What only engines of others serve is listed too, and makes nobody turn away from us: we cannot start them.
        """
        registry = door.router.registry
        missing = [
            name
            for name in registry.identity_names
            if not registry.serving(name) and not door.waiting.may_come(name)
        ]
        ours = {
            name
            for worker in registry.workers
            if not worker.added
            for name in worker.expected | worker.identities.keys()
        }
        served = any(name not in missing for name in registry.identity_names)
        fine = served and not ours.intersection(missing)
        body = {
            "ready": fine,
            "missing": missing,
            "workers": {w.name: {"alive": w.alive, "note": w.why} for w in registry.workers},
        }
        headers = {} if fine else {"retry-after": str(UNAVAILABLE_RETRY_S)}
        return Response(orjson.dumps(body), 200 if fine else 503, headers, media_type="application/json")

    @routes.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        """The gateway's metrics in Prometheus' text format."""
        loads, workers = door.router.loads, door.router.registry.workers
        shown = {worker.name: loads.shown(worker.name) for worker in workers}
        blind = sum(loads.unfinished(name) - tokens for name, tokens in shown.items())
        door.metrics.show_workers(
            {worker.name: (worker.alive, shown[worker.name]) for worker in workers}, blind
        )
        try:
            for tenant in door.metrics.tenants:
                account = await door.ledger.account(tenant)
                door.metrics.tenant_in_flight.labels(tenant).set(account.in_flight)
                door.metrics.tenant_reserved.labels(tenant).set(account.reserved_nano / NANO)
                door.metrics.tenant_spent.labels(tenant, "day").set(account.day_nano / NANO)
                door.metrics.tenant_spent.labels(tenant, "month").set(account.month_nano / NANO)
        except Unavailable as error:  # the other figures are needed now more than ever
            door.metrics.count_error(error.code)
        # In a thread: what other rooms add may read the log.
        page = await asyncio.to_thread(door.metrics.exposition)
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    return routes

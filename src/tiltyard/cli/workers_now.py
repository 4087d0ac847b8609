"""The workers of a running gateway in the words of the Operations page."""

from __future__ import annotations

from tiltyard.fleet.registry import Registry, Worker
from tiltyard.gateway.fleet import state_of
from tiltyard.operations.workers import WorkerNow, WorkersNow
from tiltyard.router.load import Loads


def workers_now(registry: Registry, loads: Loads) -> WorkersNow:
    """Make what looks at them; requests of battles are left out, as everywhere."""

    def look() -> list[WorkerNow]:
        return [_shown(worker, loads) for worker in registry.workers]

    return look


def _shown(worker: Worker, loads: Loads) -> WorkerNow:
    status, now_s, renewed_s = worker.status, worker.clock(), worker.lease.renewed_s
    return WorkerNow(
        name=worker.name,
        kind="tiltyard" if worker.engine is None else worker.engine.kind,
        state=state_of(worker),
        note="" if worker.alive else worker.why or "",
        identities=tuple(sorted({*worker.identities, *worker.expected})),
        requests=sum(not entry.blind for entry in loads.of(worker.name)),
        waiting=0 if status is None else status.waiting,
        unfinished_tokens=loads.shown(worker.name),
        kv_use=status.kv_blocks_used / status.kv_blocks_total
        if status is not None and status.kv_blocks_total
        else None,
        preemptions=None if status is None else status.preemptions,
        tokens_per_s=loads.pace(worker.name).tokens_per_s(now_s),
        answered_s_ago=None if renewed_s is None else now_s - renewed_s,
    )

"""Writes down what the fleet did: which identities were served, when a worker came and went."""

from __future__ import annotations

import asyncio
import contextlib

from tiltyard.errors import Conflict
from tiltyard.events.log import EventLog
from tiltyard.events.schema import IdentityRegistered, WorkerReady, WorkerStopped
from tiltyard.identity.store import IdentityStore
from tiltyard.wire.worker import IdentityStatus, WorkerStatus

SOURCE = "tiltyard/fleet"


class FleetRecorder:
    """The one writer of identity and worker events."""

    def __init__(self, log: EventLog, store: IdentityStore | None = None) -> None:
        """`store` gets the manifests of workers that were added, which have nobody else to keep them."""
        self._log = log
        self._store = store

    async def ready(self, status: WorkerStatus, load_ms: float) -> None:
        """A worker answers: register identities that the log does not know, and say that it is there."""
        for identity in status.identities:
            await self._register(identity)
        event = WorkerReady(
            worker=status.worker,
            identities={identity.name: identity.behaviour for identity in status.identities},
            load_ms=load_ms,
        )
        await self._log.append(event, subject=status.worker, source=SOURCE)

    async def joined(self, status: WorkerStatus) -> None:
        """A worker that somebody added answers, or serves something new: as `ready`; it was not started by us."""
        if self._store is not None:
            for identity in status.identities:
                for manifest in (identity.behaviour_manifest, identity.deployment_manifest):
                    await asyncio.to_thread(self._store.put_manifest, manifest)
        await self.ready(status, 0.0)

    async def stopped(self, worker: str, reason: str) -> None:
        """A worker has ended."""
        await self._log.append(WorkerStopped(worker=worker, reason=reason), subject=worker, source=SOURCE)

    async def _register(self, identity: IdentityStatus) -> None:
        event = IdentityRegistered(
            name=identity.name,
            behaviour=identity.behaviour,
            deployment=identity.deployment,
            behaviour_manifest=identity.behaviour_manifest,
            deployment_manifest=identity.deployment_manifest,
            declaration=identity.declaration,
        )
        with contextlib.suppress(Conflict):  # the log knows it from an earlier start
            await self._log.append(event, subject=identity.name, source=SOURCE)

"""Who belongs to the fleet by word of mouth: obeys what `tiltyard fleet` wrote into the log, within a second, on every gateway.

Workers that a launcher starts announce themselves; what is kept here is the rest: engines of others that were added, workers
that are to take nothing new, and how many workers there are to be. The log is the only state, so it survives every restart.
"""

from __future__ import annotations

import asyncio
import logging

from tiltyard.errors import StorageFailed, TiltyardError
from tiltyard.events.queries import Queries
from tiltyard.events.schema import EventData, ReplicasSet, WorkerAdded, WorkerDrained, WorkerRemoved
from tiltyard.fleet.foreign import ForeignEngine
from tiltyard.fleet.registry import Registry

LOOK_EVERY_S = 0.25
"""How soon what another process appended takes effect here."""
TYPES = (WorkerAdded, WorkerRemoved, WorkerDrained, ReplicasSet)

_logger = logging.getLogger(__name__)


class Members:
    """What the log says, folded; kept apart from the registry so that a command can read it too."""

    def __init__(self) -> None:
        self.added: dict[str, WorkerAdded] = {}
        self.draining: set[str] = set()
        self.replicas: dict[str, int] = {}
        """How many workers an identity is to have, where somebody said so."""
        self.read = 0
        """Sequence of the newest event that was taken."""

    def take(self, data: EventData) -> None:
        """Fold one event."""
        match data:
            case WorkerAdded():
                self.added[data.worker] = data
            case WorkerRemoved():
                self.added.pop(data.worker, None)
                self.draining.discard(data.worker)
            case WorkerDrained():
                (self.draining.add if data.draining else self.draining.discard)(data.worker)
            case ReplicasSet(replicas=None):
                self.replicas.pop(data.identity, None)
            case ReplicasSet(replicas=int(replicas)):
                self.replicas[data.identity] = replicas
            case _:
                pass

    def look(self, log: Queries) -> list[EventData]:
        """Read what has been appended since the last look; returns it. Blocks."""
        news = []
        for event in log.read(after=self.read, types=TYPES):
            self.take(event.data)
            news.append(event.data)
            self.read = event.sequence
        return news


class Membership:
    """Keeps a registry as the log says."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.members = Members()

    def obey(self, news: list[EventData]) -> None:
        """Bring the registry up to what was read."""
        for data in news:
            match data:
                case WorkerAdded():
                    self._add(data)
                case WorkerRemoved():
                    worker = self._registry.worker(data.worker)
                    if worker is not None and worker.added:
                        self._registry.remove(data.worker)
                    self._registry.drain(data.worker, draining=False)
                case WorkerDrained():
                    self._registry.drain(data.worker, draining=data.draining)
                case _:
                    pass

    def look(self, log: Queries) -> None:
        """Read and obey. Blocks; for before anything runs."""
        self.obey(self.members.look(log))

    async def watch(self, log: Queries) -> None:
        """Look for ever; a log that cannot be read leaves things as they are."""
        while True:
            try:
                self.obey(await asyncio.to_thread(self.members.look, log))
            except StorageFailed as error:
                _logger.warning("cannot see who belongs to the fleet: %s", error.message)
            await asyncio.sleep(LOOK_EVERY_S)

    def _add(self, added: WorkerAdded) -> None:
        known = self._registry.worker(added.worker)
        if known is not None and not known.added:
            _logger.error("%s was added to the fleet, and a worker of that name runs here", added.worker)
            return
        engine = (
            None
            if added.engine == "tiltyard"
            else ForeignEngine(added.engine, dict(added.identities), added.key_env)
        )
        try:
            self._registry.add(added.worker, added.url, added.identities, engine)
        except TiltyardError as error:  # written by hand, or by another version
            _logger.error("%s cannot be added: %s", added.worker, error.message)

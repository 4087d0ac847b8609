"""The queue: requests that hold no blocks, by class and tenant, and the order in which they may come in.

Between classes and between tenants the smallest virtual counter goes first (`fairness.py`). Among one tenant's
requests those go first whose group came in last, since their common prefix is in memory now; then the shortest, so
that long contexts do not hold up short ones. Whoever is passed ages by what
was run before it; when that is as much as it would have taken itself, nobody passes it any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tiltyard.engine.fairness import CLASSES, RANK, FairShares
from tiltyard.engine.request import RequestClass
from tiltyard.engine.sequence import RunningSequence

PRUNE_TENANTS = 256


class Backlog:
    """Waiting sequences; each tenant's in order of arrival, preempted ones before the rest."""

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self._queues: dict[RequestClass, dict[str, list[RunningSequence]]] = {name: {} for name in CLASSES}
        self._arrivals = 0
        self._groups: dict[tuple[RequestClass, str], str] = {}
        """By class and tenant, while something of it waits: the group of who came in last."""

    def __len__(self) -> int:
        return sum(len(queue) for queues in self._queues.values() for queue in queues.values())

    def __iter__(self) -> Iterator[RunningSequence]:
        for queues in self._queues.values():
            for queue in queues.values():
                yield from queue

    def waiting(self, request_class: RequestClass) -> int:
        """How many requests of a class wait."""
        return sum(len(queue) for queue in self._queues[request_class].values())

    def add(self, sequence: RunningSequence) -> None:
        """A new request arrives."""
        sequence.arrival = self._arrivals
        self._arrivals += 1
        self._enter(sequence).append(sequence)

    def put_back(self, sequence: RunningSequence) -> None:
        """A preempted sequence waits before the new ones of its tenant, and is not passed."""
        queue = self._enter(sequence)
        place = sum(other.preemptions > 0 and other.arrival < sequence.arrival for other in queue)
        queue.insert(place, sequence)

    def remove(self, sequence: RunningSequence) -> None:
        """Take a sequence out, whatever its place."""
        request = sequence.request
        queues = self._queues[request.priority]
        queue = queues[request.tenant]
        queue.remove(sequence)
        if not queue:
            del queues[request.tenant]
            self._groups.pop((request.priority, request.tenant), None)
            counters = self._shares.tenants[request.priority]
            counters.left(request.tenant)
            if not queues:
                self._shares.classes.left(request.priority)
            if len(counters) > PRUNE_TENANTS + 2 * len(queues):
                counters.forget(queues)

    def admitted(self, sequence: RunningSequence, cost: int, blocked: Collection[RunningSequence]) -> None:
        """Take out who was admitted, to run `cost` tokens that no cache has.

        Those it passed age: older ones of its tenant, and who found no room.
        """
        self.remove(sequence)
        sequence.passed = 0.0
        weights = self._shares.config.weights
        own = sequence.request
        if own.tenant in self._queues[own.priority]:
            self._groups[own.priority, own.tenant] = own.group
        for other in self._queues[own.priority].get(own.tenant, ()):
            if other.arrival < sequence.arrival and other not in blocked:
                other.passed += cost
        for other in blocked:
            other.passed += cost * weights[other.request.priority] / weights[own.priority]

    def next(
        self,
        skip: Collection[RunningSequence],
        closed: Collection[RequestClass],
        closed_tenants: Collection[tuple[RequestClass, str]],
    ) -> RunningSequence | None:
        """Who may come in next, leaving out sequences, classes, and tenants of a class; `None` if nobody."""
        classes = self._shares.classes
        for name in sorted(CLASSES, key=lambda c: (classes[c], RANK[c])):
            queues = self._queues[name]
            if name in closed or not queues:
                continue
            counters = self._shares.tenants[name]
            heads = [
                head
                for tenant, queue in queues.items()
                if (name, tenant) not in closed_tenants
                and (head := _head(queue, skip, self._groups.get((name, tenant), ""))) is not None
            ]
            if heads:
                return min(heads, key=lambda s: (counters[s.request.tenant], s.arrival))
        return None

    def _enter(self, sequence: RunningSequence) -> list[RunningSequence]:
        request = sequence.request
        queues = self._queues[request.priority]
        if not queues:
            waiting = [name for name in CLASSES if self._queues[name]]
            self._shares.classes.arrive(request.priority, waiting=waiting)
        if request.tenant not in queues:
            self._shares.tenants[request.priority].arrive(request.tenant, waiting=queues)
            queues[request.tenant] = []
        return queues[request.tenant]


def _head(
    queue: list[RunningSequence], skip: Collection[RunningSequence], group: str
) -> RunningSequence | None:
    """The first that gave way before or is aged, else the shortest of the group, if it has any, or of all."""
    candidates = [sequence for sequence in queue if sequence not in skip]
    urgent = next((sequence for sequence in candidates if sequence.preemptions or sequence.aged), None)
    own = [sequence for sequence in candidates if sequence.request.group == group] if group else []
    return urgent or min(own or candidates, key=lambda s: s.pending, default=None)

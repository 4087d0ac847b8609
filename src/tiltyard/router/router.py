"""Which identity a model name means, and which worker takes the request."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from tiltyard.errors import ConfigurationError, NotFound, Unavailable
from tiltyard.fleet.registry import Registry, Worker
from tiltyard.router.pace import Pace
from tiltyard.router.split import Asker, Drawn, Splits
from tiltyard.wire.terms import ServiceClass
from tiltyard.wire.worker import IdentityStatus

MAX_GROUPS = 4_096
"""Groups whose worker is remembered; the least recently used are forgotten."""
GROUP_SLACK_TOKENS = 4_096
"""Unfinished tokens by which a group's worker may be ahead of the least loaded one and still keep the group."""


Clock = Callable[[], float]


class Queue(NamedTuple):
    """Those of one class of one tenant: among them nobody is served out of turn."""

    tenant: str
    service_class: ServiceClass


class Lease:
    """The tokens that a request may still cost its worker; they count against the worker until it ends."""

    def __init__(
        self, tokens: int, *, blind: bool = False, queue: Queue | None = None, pace: Pace, clock: Clock
    ) -> None:
        self.tokens = tokens
        self.blind = blind
        """Whether nobody may see on which worker they count."""
        self.queue = queue
        """With whom it waits, until its first token has come."""
        self._pace = pace
        self._clock = clock

    def progress(self, tokens: int = 1) -> None:
        """Count tokens that have come."""
        self.queue = None
        done = min(self.tokens, tokens)
        self.tokens -= done
        self._pace.gone(done, self._clock())


class Route(NamedTuple):
    """Where one request goes."""

    worker: Worker
    url: str
    identity: IdentityStatus


class Router:
    """Resolves model names and chooses workers: the fewest unfinished tokens first, groups kept together."""

    def __init__(
        self, registry: Registry, aliases: Mapping[str, str] | None = None, *, clock: Clock = time.monotonic
    ) -> None:
        self.registry = registry
        self._clock = clock
        self._paces: dict[str, Pace] = {}
        self.aliases = dict(aliases or {})
        """Public name to identity name, where the log says nothing else."""
        self.splits = Splits()
        """What the log says."""
        self._leases: dict[str, set[Lease]] = {}
        self._groups: OrderedDict[tuple[str, str, str], str] = OrderedDict()
        """The worker that has the prefix of an identity's, a tenant's group."""
        for alias, identity in self.aliases.items():
            if alias == identity:
                raise ConfigurationError(f"alias {alias!r} names itself; name an identity", param="aliases")

    @property
    def model_names(self) -> tuple[str, ...]:
        """Every name that a client may ask for: aliases first, then identities."""
        return (*self.aliases, *(name for name in self.registry.identity_names if name not in self.aliases))

    def resolve(self, model: str) -> str:
        """The identity that a model name means; raises `NotFound` naming what there is.

        Of an alias that a release splits, the one that gets most.
        """
        return self._known(model, self.splits.main(model) or self.aliases.get(model, model))

    def draw(self, model: str, asker: Asker) -> Drawn:
        """The identity that answers this request, and its arm where a release splits the alias; raises `NotFound`.

        An arm without a living worker costs the user nothing: production answers, and the record says for whom.
        """
        drawn = self.splits.draw(model, asker)
        if drawn is None:
            return Drawn(self.resolve(model))
        self._known(model, drawn.identity)
        if drawn.instead is not None and not self._serving(drawn.identity, drawn.behaviour):
            return drawn.diverted()
        return drawn

    def _known(self, model: str, identity: str) -> str:
        if identity not in self.registry.identity_names:
            names = ", ".join(self.model_names) or "none yet"
            raise NotFound(
                f"model {model!r} does not exist; available: {names}", param="model", code="model_not_found"
            )
        return identity

    def choose(
        self,
        identity: str,
        *,
        without: Collection[str] = (),
        tenant: str = "",
        group: str = "",
        behaviour: str = "",
    ) -> Route:
        """The living worker with the fewest unfinished tokens; raises `Unavailable` when there is none.

        With a `behaviour`, a worker that serves another one under the name does not count: what was released is frozen.
        A tenant's `group` stays with the worker that has its prefix while that is not much busier than the others.

        Counted are the tokens of the requests that went through this router, which is always fresh; the
        worker's own count, up to a second old, settles ties.
        """
        candidates = [w for w in self._serving(identity, behaviour) if w.name not in without]
        if not candidates and behaviour and any(self.registry.serving(identity)):
            raise Unavailable(
                f"what is served as {identity} now is not what was released under that name ({behaviour[:19]}…). Serve it "
                "again, release the new one, or let the alias mean what tiltyard.toml says with `tiltyard rollback --to-file`.",
                code="behaviour_changed",
            )
        if not candidates:
            raise Unavailable(
                f"no worker serves {identity} now ({self._why_none(identity)}). Try again soon."
            )
        worker = min(candidates, key=self._load)
        if group:
            worker = self._of_group((identity, tenant, group), worker, candidates)
        if worker.url is None:
            raise AssertionError("a living worker has an address")
        return Route(worker, worker.url, worker.identities[identity])

    def _serving(self, identity: str, behaviour: str) -> list[Worker]:
        serving = self.registry.serving(identity)
        return [w for w in serving if not behaviour or w.identities[identity].behaviour == behaviour]

    @contextmanager
    def lease(
        self, worker: str, tokens: int, *, blind: bool = False, queue: Queue | None = None
    ) -> Iterator[Lease]:
        """Count `tokens` against a worker for the length of the block."""
        pace = self._paces.setdefault(worker, Pace())
        lease = Lease(tokens, blind=blind, queue=queue, pace=pace, clock=self._clock)
        leases = self._leases.setdefault(worker, set())
        leases.add(lease)
        pace.begin(self._clock())
        try:
            yield lease
        finally:
            leases.discard(lease)
            pace.gone(lease.tokens, self._clock())
            pace.end(self._clock())

    def expected_wait_s(self, worker: Worker, queue: Queue, tokens: int) -> float:
        """How long a request of so many tokens that comes now waits before it is begun; 0 when that is not known.

        An estimate on the low side: counted are only those of its own tenant and class that wait and are no longer
        than itself (the shortest goes first), at the worker's whole pace, and only if the worker says that requests wait.
        """
        status = worker.status
        if status is None:
            return 0.0
        own = status.queues.get(queue.service_class)
        waiting = status.waiting if own is None else own.waiting
        pace = self._paces.setdefault(worker.name, Pace()).tokens_per_s(self._clock())
        if not waiting or pace is None:
            return 0.0
        before = (lease.tokens for lease in self._leases.get(worker.name, ()) if lease.queue == queue)
        return sum(other for other in before if other <= tokens) / pace

    def unfinished_tokens(self, worker: str) -> int:
        """Tokens that the requests in flight through this router may still cost a worker."""
        return sum(lease.tokens for lease in self._leases.get(worker, ()))

    def shown_tokens(self, worker: str) -> int:
        """As `unfinished_tokens`, without the blind ones."""
        return sum(lease.tokens for lease in self._leases.get(worker, ()) if not lease.blind)

    def _of_group(self, group: tuple[str, str, str], least: Worker, candidates: Iterable[Worker]) -> Worker:
        known = self._groups.get(group)
        most = self.unfinished_tokens(least.name) + GROUP_SLACK_TOKENS
        worker = next((w for w in candidates if w.name == known), least)
        if self.unfinished_tokens(worker.name) > most:
            worker = least
        self._groups[group] = worker.name
        self._groups.move_to_end(group)
        if len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)
        return worker

    def _load(self, worker: Worker) -> tuple[int, int]:
        reported = worker.status.unfinished_tokens if worker.status is not None else 0
        return self.unfinished_tokens(worker.name), reported

    def _why_none(self, identity: str) -> str:
        notes = [
            f"{worker.name}: {worker.note}"
            for worker in self.registry.workers
            if identity in worker.expected or identity in worker.identities
        ]
        return "; ".join(notes) or "it has no worker"

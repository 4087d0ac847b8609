"""Which identity a model name means, and which worker takes the request."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from tiltyard.errors import ConfigurationError, NotFound, Unavailable
from tiltyard.fleet.registry import Registry, Worker
from tiltyard.router.load import AnswerLengths, Clock, Entry, Loads, Queue
from tiltyard.router.prefixes import NOTHING, Beginning, Prefixes
from tiltyard.router.split import Asker, Drawn, Splits
from tiltyard.wire.worker import IdentityStatus

MAX_GROUPS = 4_096
"""Groups and sessions whose worker is remembered; the least recently used are forgotten."""
RECOMPUTING = 2
"""What a token counts that is computed again: beside its own work, it holds up whoever comes after (`bench/routing.py`)."""
GATE_TOKENS = 4_096
"""Unfinished tokens by which a worker may be ahead of the least loaded one and still be chosen for what its cache holds."""


class Route(NamedTuple):
    """Where one request goes."""

    worker: Worker
    url: str
    identity: IdentityStatus
    cached_tokens: int = 0
    """Tokens of the prompt that the worker is taken to have in its cache."""


class Router:
    """Resolves model names and chooses workers: the fewest unfinished tokens, counting what each would have to compute."""

    def __init__(
        self,
        registry: Registry,
        aliases: Mapping[str, str] | None = None,
        *,
        clock: Clock = time.monotonic,
        sticky: bool = False,
        gate_tokens: int = GATE_TOKENS,
    ) -> None:
        """`sticky`: a session stays with its worker however busy that is, as long as it takes work."""
        self.registry = registry
        self._clock = clock
        self._sticky = sticky
        self._gate_tokens = gate_tokens
        self.loads = Loads(clock)
        self.lengths = AnswerLengths()
        self.prefixes = Prefixes()
        self.aliases = dict(aliases or {})
        """Public name to identity name, where the log says nothing else."""
        self.splits = Splits()
        """What the log says."""
        self._groups: OrderedDict[tuple[str, str, str], str] = OrderedDict()
        """The worker of an identity's, a tenant's group or session."""
        self._starts: dict[str, int] = {}
        """How often each worker had started when its prefixes were last looked up."""
        self._turns = 0
        self._chosen: dict[str, int] = {}
        """When each worker was chosen last, in choices: equals take turns."""
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
        session: str = "",
        behaviour: str = "",
        prompt: Beginning = NOTHING,
    ) -> Route:
        """The worker that would be done with this prompt first; raises `Unavailable` when there is none.

        That is the one with the fewest unfinished tokens once those of the prompt are added, twice, which it has not got
        cached.
        For what its cache holds a worker is chosen only while it is at most the gate ahead of the least loaded one: an
        affinity that load cannot overrule makes one worker everybody's (AIBrix #842, AIBrix PR #2365).

        With a `behaviour`, a worker that serves another one under the name does not count: what was released is frozen.
        A tenant's `group` or `session` stays with its worker under the same gate, or whatever its load where sessions
        are sticky. Counted are the tokens of the requests that went through this router, which is always fresh; what
        a worker says itself, up to a second old, settles ties.
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
        loads = {worker.name: self.loads.unfinished(worker.name) for worker in candidates}
        gate = min(loads.values()) + self._gate_tokens
        cached = {worker.name: self._cached_tokens(worker, prompt) for worker in candidates}

        def cost(worker: Worker) -> tuple[int, int, int]:
            name = worker.name
            uncached = prompt.tokens - cached[name]
            return loads[name] + RECOMPUTING * uncached, _reported(worker), self._chosen.get(name, 0)

        worker = min((w for w in candidates if loads[w.name] <= gate), key=cost)
        for kept, bound in ((session, self._sticky), (group, False)):
            if kept:
                place = (identity, tenant, f"{'s' if kept is session else 'g'} {kept}")
                worker = self._of_group(place, worker, candidates, None if bound else gate)
                break
        self._turns += 1
        self._chosen[worker.name] = self._turns
        if worker.url is None:
            raise AssertionError("a worker that takes work has an address")
        return Route(worker, worker.url, worker.identities[identity], cached[worker.name])

    def _serving(self, identity: str, behaviour: str) -> list[Worker]:
        serving = self.registry.serving(identity)
        return [w for w in serving if not behaviour or w.identities[identity].behaviour == behaviour]

    def sending(
        self,
        route: Route,
        prompt: Beginning,
        answer_tokens: int = 0,
        *,
        blind: bool = False,
        queue: Queue | None = None,
    ) -> AbstractContextManager[Entry]:
        """Count a request against the worker of its route for the length of the block."""
        worker = route.worker
        worker.breaker.began(worker.clock())
        self.prefixes.sent(worker.name, prompt, _holds_tokens(route))
        uncached = max(0, prompt.tokens - route.cached_tokens)
        return self.loads.entry(worker.name, uncached, answer_tokens, blind=blind, queue=queue)

    def ended(self, route: Route, conversation: Beginning, answer_tokens: Sequence[int]) -> None:
        """An answer has ended by itself: the worker holds it too, and the next one is guessed better."""
        self.prefixes.sent(route.worker.name, conversation, _holds_tokens(route))
        for tokens in answer_tokens:
            self.lengths.saw(route.identity.name, tokens)

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
        pace = self.loads.pace(worker.name).tokens_per_s(self._clock())
        if not waiting or pace is None:
            return 0.0
        before = (entry.tokens for entry in self.loads.of(worker.name) if entry.queue == queue)
        return sum(other for other in before if other <= tokens) / pace

    def _cached_tokens(self, worker: Worker, prompt: Beginning) -> int:
        if self._starts.get(worker.name, worker.starts) != worker.starts:
            self.prefixes.forget(worker.name)  # it was started again, and knows nothing
        self._starts[worker.name] = worker.starts
        return self.prefixes.cached_tokens(worker.name, prompt)

    def _of_group(
        self, place: tuple[str, str, str], best: Worker, candidates: Sequence[Worker], gate: int | None
    ) -> Worker:
        """The worker that a group or session had, unless it is gone or beyond the gate; else the best, from now on."""
        known = self._groups.get(place)
        worker = next((w for w in candidates if w.name == known), best)
        if gate is not None and self.loads.unfinished(worker.name) > gate:
            worker = best
        self._groups[place] = worker.name
        self._groups.move_to_end(place)
        if len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)
        return worker

    def _why_none(self, identity: str) -> str:
        notes = [
            f"{worker.name}: {worker.why}"
            for worker in self.registry.workers
            if identity in worker.expected or identity in worker.identities
        ]
        return "; ".join(notes) or "it has no worker"


def _reported(worker: Worker) -> int:
    """What a worker says of itself: tokens, of ours; requests, of others. Only equals are told apart by it."""
    status = worker.status
    if status is None:
        return 0
    return status.unfinished_tokens or status.running + status.waiting


def _holds_tokens(route: Route) -> int:
    status = route.worker.status
    blocks = 0 if status is None else status.kv_blocks_total
    return blocks * route.identity.deployment_manifest.block_tokens

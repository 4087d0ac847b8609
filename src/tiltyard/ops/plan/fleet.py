"""Replicas behind the gateway's own router, in virtual time.

The router is `router.Router`: it sees prompts, the tokens that have come and the ends, and nothing of what the engines know. Times
at which nothing happens are skipped; what it counts of running answers is brought up to date when it is asked.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tiltyard.engine.request import EngineRequest, SamplingSettings
from tiltyard.errors import Unavailable
from tiltyard.fleet.registry import Registry, Worker
from tiltyard.identity.canonical import digest_of
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, Deployment, Weights
from tiltyard.kernels import BLOCK_TOKENS
from tiltyard.ops.plan.engine import Emitted, PlannedEngine, Stretch
from tiltyard.ops.plan.prediction import Prediction, Tally
from tiltyard.ops.plan.setup import Arrival, Fleet
from tiltyard.router.load import Entry, Queue
from tiltyard.router.prefixes import NOTHING, Beginning
from tiltyard.router.router import Route, Router
from tiltyard.wire.worker import IdentityStatus, WorkerStatus

IDENTITY = "planned"
GREEDY = SamplingSettings(temperature=0.0)
NO_STOPS = frozenset[int]()
TELL_EVERY = 2_000

Told = Callable[[int, float], None]
"""Hears how many requests have ended, and the virtual second."""


@dataclass(slots=True)
class _Sent:
    """A request that is with a replica."""

    arrival: Arrival
    prompt: Beginning
    route: Route
    entry: Entry
    counted: AbstractContextManager[Entry]
    tokens: int = 0
    """Steps of its answer that the router has heard of."""
    first_s: float = 0.0


@dataclass(slots=True)
class _Replica:
    engine: PlannedEngine
    stretch: Stretch | None = None
    inbox: list[tuple[EngineRequest, _Sent]] | None = None
    serial: int = 0
    busy_s: float = 0.0


def simulate(
    arrivals: Iterable[Arrival],
    fleet: Fleet,
    *,
    sharing: bool = True,
    seed: int = 0,
    told: Told | None = None,
    counted_from_s: float = float("-inf"),
) -> Prediction:
    """Let requests arrive, in the order of their times, until all have ended.

    `sharing`: whether any two texts begin alike; without, caches are not looked at, which changes nothing but the time it takes.
    What arrives before `counted_from_s` runs, fills caches and queues, and is not counted; steps, cached tokens and the use of
    replicas are of everything.
    """
    return _Simulation(fleet, seed, told, sharing=sharing, counted_from_s=counted_from_s).run(iter(arrivals))


class _Simulation:
    def __init__(
        self, fleet: Fleet, seed: int, told: Told | None, *, sharing: bool, counted_from_s: float
    ) -> None:
        self.now = 0.0
        self._fleet = fleet
        self._told = told
        self._prefixes = sharing and fleet.replicas > 1
        """Whether what a replica may have cached can decide anything."""
        self._ended = 0
        self._rng = random.Random(seed)  # noqa: S311
        self._router = _router(fleet, lambda: self.now)
        self._workers = self._router.registry.workers
        self._replicas = [
            _Replica(
                PlannedEngine(fleet.limits, fleet.costs, rows_an_answer=fleet.guessing.rows, sharing=sharing)
            )
            for _ in range(fleet.replicas)
        ]
        self._place = {worker.name: place for place, worker in enumerate(self._workers)}
        self._sent: dict[str, _Sent] = {}
        self._requests = [0] * fleet.replicas
        self._events: list[tuple[float, int, int, int, tuple[EngineRequest, _Sent] | None]] = []
        """Time, order, replica, serial of its stretch; a request that reaches it, or `None`: the stretch ends."""
        self._order = itertools.count()
        self._turn = itertools.count()
        self._tally = Tally(fleet.objectives, counted_from_s)

    def run(self, arrivals: Iterator[Arrival]) -> Prediction:
        coming = next(arrivals, None)
        events = self._events
        while coming is not None or events:
            if coming is not None and (not events or coming.at_s <= events[0][0]):
                self.now = coming.at_s
                self._arrive(coming)
                coming = next(arrivals, None)
                continue
            self.now, _, place, serial, reaching = heapq.heappop(events)
            replica = self._replicas[place]
            if reaching is not None:
                self._reach(place, *reaching)
            elif serial == replica.serial and replica.stretch is not None:
                self._end(place, replica, replica.stretch)
        engines = [replica.engine for replica in self._replicas]
        return self._tally.prediction(
            replicas=len(engines),
            busy_s=sum(replica.busy_s for replica in self._replicas),
            cached_tokens=sum(engine.counters.prefix_hit_tokens for engine in engines),
            preemptions=sum(engine.counters.preemptions for engine in engines),
            steps=sum(engine.counters.steps for engine in engines),
        )

    def _arrive(self, arrival: Arrival) -> None:
        """The gateway chooses, and the request is on its way."""
        if not self._replicas[0].engine.fits(arrival.prompt_tokens, arrival.answer_tokens):
            self._over()
            self._tally.failed("too long", self.now, self.now)
            return
        guessing = self._fleet.guessing
        steps = max(1, round(arrival.answer_tokens * (1 - guessing.saved)))
        deadline = self._fleet.queue_deadline_s
        prompt = tuple(arrival.text.ids(0, arrival.prompt_tokens))
        request = EngineRequest(
            request_id=str(next(self._turn)),
            prompt=prompt,
            sampling=GREEDY,
            max_tokens=steps,
            stop_ids=NO_STOPS,
            namespace=f"{IDENTITY}/{arrival.tenant}",
            tenant=arrival.tenant,
            priority=arrival.service_class,
            queue_deadline_s=None if deadline is None else arrival.at_s + deadline,
        )
        scope = (IDENTITY, arrival.tenant)
        beginning = Beginning.of_ids(scope, prompt) if self._prefixes else Beginning(arrival.prompt_tokens)
        self._tell_router()
        sent = self._send(arrival, beginning, self._choose(beginning, set()))
        outside = self._fleet.outside_s
        delay = outside[0] if len(outside) == 1 else self._rng.choice(outside)
        self._push(self.now + delay, self._place[sent.route.worker.name], 0, (request, sent))

    def _send(self, arrival: Arrival, prompt: Beginning, route: Route) -> _Sent:
        router = self._router
        expected = router.lengths.expected(IDENTITY, limit=None)
        counted = router.sending(route, prompt, expected, queue=Queue(arrival.tenant, arrival.service_class))
        self._requests[self._place[route.worker.name]] += 1
        return _Sent(arrival, prompt, route, counted.__enter__(), counted)

    def _choose(self, prompt: Beginning, without: set[str]) -> Route:
        routing = self._fleet.routing
        if routing == "tiltyard":
            return self._router.choose(IDENTITY, prompt=prompt, without=without)
        left = [worker for worker in self._workers if worker.name not in without]
        if not left:
            raise Unavailable("every replica is full")
        turn = next(self._order)
        if routing == "random":
            return _to(self._rng.choice(left))
        turned = [left[(turn + i) % len(left)] for i in range(len(left))]
        if routing == "least-requests":
            return _to(min(turned, key=lambda worker: self._requests[self._place[worker.name]]))
        return _to(turned[0])

    def _reach(self, place: int, request: EngineRequest, sent: _Sent) -> None:
        """A request is at a replica, which takes it, or refuses it so that another one is asked."""
        replica = self._replicas[place]
        inbox = replica.inbox or []
        own = request.priority
        waiting = replica.engine.waiting(own) + sum(one.priority == own for one, _ in inbox)
        if waiting >= self._fleet.max_queue:
            self._pass_on(request, sent)
            return
        self._sent[request.request_id] = sent
        if replica.stretch is None:
            replica.engine.submit(request, sent.arrival.text)
            self._begin(place, replica)
            return
        replica.inbox = [*inbox, (request, sent)]
        cut = replica.engine.cut(replica.stretch, self.now)
        if cut.end_s < replica.stretch.end_s:
            replica.stretch = cut
            replica.serial += 1
            self._push(cut.end_s, place, replica.serial, None)

    def _pass_on(self, request: EngineRequest, sent: _Sent) -> None:
        tried = {sent.route.worker.name}
        self._leave(sent)
        while len(tried) < len(self._workers):
            self._tell_router()
            route = self._choose(sent.prompt, tried)
            other = self._place[route.worker.name]
            engine, inbox = self._replicas[other].engine, self._replicas[other].inbox or []
            own = request.priority
            if engine.waiting(own) + sum(one.priority == own for one, _ in inbox) < self._fleet.max_queue:
                self._reach(other, request, self._send(sent.arrival, sent.prompt, route))
                return
            tried.add(route.worker.name)
        self._over()
        self._tally.failed("refused", sent.arrival.at_s, self.now)

    def _begin(self, place: int, replica: _Replica) -> None:
        if not replica.engine.has_work:
            replica.stretch = None
            return
        replica.stretch = replica.engine.begin(self.now)
        replica.serial += 1
        self._push(replica.stretch.end_s, place, replica.serial, None)

    def _end(self, place: int, replica: _Replica, stretch: Stretch) -> None:
        emitted = replica.engine.end(stretch)
        replica.busy_s += stretch.end_s - stretch.begun_s
        for one in emitted:
            self._take(one)
        for name in stretch.expired:
            sent = self._sent.pop(name)
            self._leave(sent)
            self._over()
            self._tally.failed("queue deadline", sent.arrival.at_s, self.now)
        if replica.inbox:
            for request, sent in replica.inbox:
                replica.engine.submit(request, sent.arrival.text)
            replica.inbox = None
        self._begin(place, replica)

    def _take(self, one: Emitted) -> None:
        sent = self._sent[one.request]
        if one.first:
            sent.first_s = self.now
            sent.entry.answered(1)
            sent.tokens = 1
        if not one.finished:
            return
        del self._sent[one.request]
        self._leave(sent)
        arrival = sent.arrival
        conversation = NOTHING
        if self._prefixes:
            total = arrival.prompt_tokens + arrival.answer_tokens
            conversation = Beginning.of_ids((IDENTITY, arrival.tenant), arrival.text.ids(0, total))
        self._router.ended(sent.route, conversation, [arrival.answer_tokens])
        self._tally.answered(
            arrival.at_s, sent.first_s, self.now, arrival.prompt_tokens, arrival.answer_tokens
        )
        self._over()

    def _leave(self, sent: _Sent) -> None:
        sent.counted.__exit__(None, None, None)
        self._requests[self._place[sent.route.worker.name]] -= 1

    def _over(self) -> None:
        self._ended += 1
        if self._told is not None and self._ended % TELL_EVERY == 0:
            self._told(self._ended, self.now)

    def _tell_router(self) -> None:
        """Tell it of the tokens that have come by now."""
        if len(self._replicas) == 1:
            return  # it has no choice
        for replica in self._replicas:
            stretch, done = replica.stretch, 0
            if stretch is None:
                continue
            if stretch.sequences:
                done = replica.engine.steps_until(stretch, self.now)
            for sequence in replica.engine.scheduler.running:
                sent = self._sent[sequence.request.request_id]
                come = sequence.outputs + done
                # Of a step that is under way the engine knows the tokens already, the router does not.
                if not stretch.sequences and stretch.end_s > self.now:
                    come -= 1
                if come > sent.tokens > 0:
                    sent.entry.answered(come - sent.tokens)
                    sent.tokens = come

    def _push(self, at_s: float, place: int, serial: int, what: tuple[EngineRequest, _Sent] | None) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), place, serial, what))


def _to(worker: Worker) -> Route:
    return Route(worker, worker.url or "", worker.identities[IDENTITY])


def _router(fleet: Fleet, clock: Callable[[], float]) -> Router:
    names = [f"replica-{number}" for number in range(fleet.replicas)]
    registry = Registry(hosts=set(names), clock=clock)
    for name in names:
        registry.announce(name, f"http://{name}", _status(name, fleet))
    return Router(registry, clock=clock, gate_tokens=fleet.gate_tokens)


def _status(worker: str, fleet: Fleet) -> WorkerStatus:
    """What such a worker says of itself; its weights do not matter here."""
    limits = fleet.limits
    behaviour = Behaviour(
        weights=Weights(digest=digest_of(b"planned"), size_bytes=1, stored_as=("F32",)),
        architecture={},
        tokenizer=digest_of(b"planned"),
        chat_template=None,
    )
    deployment = Deployment(
        behaviour=behaviour.digest,
        engine_build="planned",
        isa="planned",
        threads=1,
        block_tokens=BLOCK_TOKENS,
        kv_blocks=limits.kv_blocks,
        max_batch_tokens=limits.max_batch_tokens,
        hardware="planned",
    )
    return WorkerStatus(
        worker=worker,
        state="ready",
        identities=(
            IdentityStatus(
                name=IDENTITY,
                behaviour=behaviour.digest,
                deployment=deployment.digest,
                behaviour_manifest=behaviour,
                deployment_manifest=deployment,
                declaration=IdentityDeclaration(model="planned"),
                max_context_tokens=limits.kv_blocks * BLOCK_TOKENS,
            ),
        ),
        unfinished_tokens=0,
        running=0,
        waiting=0,
        kv_blocks_used=0,
        kv_blocks_cached=0,
        kv_blocks_total=limits.kv_blocks,
        last_step_age_ms=None,
    )

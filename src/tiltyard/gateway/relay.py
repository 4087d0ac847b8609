"""One request on its way to a worker, and to another one as long as nothing has come back.

Never both answered and sent again: from the first frame on a failure is the client's to see. Before it, a worker that could not
be reached or takes nothing new costs nothing, so the others are asked one after another; one that may have begun and then
went away, or failed, is replaced once: a request that kills its worker must not go through the fleet (`docs/fleet.md`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

import orjson

from tiltyard.errors import Overloaded, TiltyardError, Unavailable, UpstreamFailed
from tiltyard.fleet.registry import Registry
from tiltyard.gateway import estimate
from tiltyard.gateway.attempt import Attempt, Stopped, WorkerLost
from tiltyard.gateway.collect import Kind
from tiltyard.gateway.door import Door
from tiltyard.gateway.spans import choice_facts, worker_facts
from tiltyard.identity.canonical import Json
from tiltyard.router.load import Entry, Queue
from tiltyard.router.router import Route
from tiltyard.telemetry.trace_context import TraceParent, headers_of
from tiltyard.telemetry.tracing import CANCELLED, Span
from tiltyard.wire.phrasing import Chunk
from tiltyard.wire.terms import ServiceTerms
from tiltyard.worker.adapters.answering import ForeignAnswer
from tiltyard.worker.adapters.asking import Asking


class Relay:
    """Raises `Unavailable` at once when no worker can be asked."""

    def __init__(
        self,
        door: Door,
        request: estimate.Asked,
        *,
        kind: Kind,
        identity: str,
        behaviour: str,
        tenant: str,
        terms: ServiceTerms,
        seed: int,
        blind: bool,
    ) -> None:
        self._door = door
        self._request = request
        self._kind: Kind = kind
        self._identity = identity
        self._behaviour = behaviour
        self._tenant = tenant
        self._terms = terms
        self._seed = seed
        self._blind = blind
        self.trace: TraceParent | None = None
        """The context of whoever asks; set before the first frame is asked for."""
        self._chosen_ns = (0, 0)
        """When the last choice began and ended, nanoseconds since 1970."""
        self._prompt = estimate.beginning(request, identity, tenant)
        self.prompt_tokens = self._prompt.tokens
        """Our estimate."""
        self.route = self._choose(())
        self.answer_tokens = estimate.answer_tokens(request, self.route.identity, door.router.lengths)
        """Our estimate, of all answers."""
        self.attempt = self._attempt()
        self.queue = Queue(tenant, terms.service_class)
        self.body = orjson.dumps(self._ours)
        """What a worker of ours is asked."""
        self._entry: Entry | None = None
        self._reached_before = False

    @property
    def reached(self) -> bool:
        """Whether any worker may have begun."""
        return self.attempt.reached or self._reached_before

    @property
    def estimated_tokens(self) -> int:
        """What it may cost a worker, prompt and answers."""
        return self.prompt_tokens + self.answer_tokens

    async def frames(self, headers: Callable[[], Mapping[str, str]]) -> AsyncGenerator[Chunk, None]:
        """Frames of the first worker that answers; closing the generator cancels the answer.

        `headers` are made anew for each worker, since deadlines come nearer. Raises what the last worker that was asked raised.
        """
        tried: set[str] = set()
        lost_before = False
        while True:
            failure: TiltyardError
            try:
                async with aclosing(self._of_one(headers)) as frames:
                    async for chunk in frames:
                        yield chunk
                return
            except WorkerLost as lost:
                self._registry.failed(self.route.worker.name, lost.message, gone=True)
                if self.attempt.begun or (self.attempt.reached and lost_before):
                    raise
                lost_before |= self.attempt.reached
                failure = lost
            except (Unavailable, Overloaded) as full:  # it lives and takes nothing more: draining, or full
                if self.attempt.begun or not self._others(tried):
                    raise
                failure = full
            except UpstreamFailed as broken:
                self._registry.failed(self.route.worker.name, broken.message)
                if self.attempt.begun or lost_before or broken.code == "timed_out" or not self._others(tried):
                    raise
                lost_before = True
                failure = broken
            self._reached_before |= self.attempt.reached
            tried.add(self.route.worker.name)
            try:
                self.route = self._choose(tried)
            except Unavailable as nobody:
                raise nobody from failure
            self.attempt = self._attempt()
            self._door.metrics.retries.inc()

    def took(self, tokens: int) -> None:
        """Tokens of the answer have come: so many fewer are unfinished."""
        if self._entry is not None:
            self._entry.answered(tokens)

    def ended(self, answer: str, lengths: list[int]) -> None:
        """The answers have ended by themselves."""
        conversation = estimate.beginning(self._request, self._identity, self._tenant, answer=answer)
        self._door.router.ended(self.route, conversation, lengths)

    async def _of_one(self, headers: Callable[[], Mapping[str, str]]) -> AsyncGenerator[Chunk, None]:
        worker, attempt = self.route.worker, self.attempt
        body = self._body()
        span = self._begin_span()
        with (
            self._door.router.sending(
                self.route, self._prompt, self.answer_tokens, blind=self._blind, queue=self.queue
            ) as entry,
            self._door.under_way.at(worker.name, attempt),
        ):
            self._entry = entry
            try:
                async with aclosing(attempt.frames(body, self._headers(headers(), span.trace))) as frames:
                    async for chunk in frames:
                        if not attempt.begun:
                            attempt.begun = True
                            self._registry.succeeded(worker.name)
                        yield chunk
            except (asyncio.CancelledError, GeneratorExit, Stopped):
                span.end(error=CANCELLED)
                raise
            except TiltyardError as error:
                span.end(error=error.code)
                raise
            except BaseException as error:
                span.end(error=type(error).__name__)
                raise
            else:
                span.end()
            finally:
                self._entry = None
                if not attempt.begun:
                    worker.breaker.gave_up()

    def _choose(self, without: set[str] | tuple[()]) -> Route:
        began_ns = time.time_ns() if self._door.tracing.recording else 0
        route = self._door.router.choose(
            self._identity,
            without=without,
            tenant=self._tenant,
            group=self._terms.group,
            session=self._terms.session,
            behaviour=self._behaviour,
            prompt=self._prompt,
        )
        self._chosen_ns = (began_ns, time.time_ns() if began_ns else 0)
        return route

    def _begin_span(self) -> Span:
        """The choice of the worker, which is over, and the span of asking it, which begins."""
        tracing = self._door.tracing
        if tracing.recording:
            began_ns, ended_ns = self._chosen_ns
            chosen = tracing.begin(
                "choose worker",
                parent=self.trace,
                attributes=choice_facts(self._door.router, self.route, self._prompt.tokens),
                at_ns=began_ns,
            )
            chosen.end(at_ns=ended_ns)
        facts = worker_facts(self.route) if tracing.recording else None
        return tracing.begin(
            f"ask {self.route.worker.name}", parent=self.trace, kind="client", attributes=facts
        )

    def _others(self, tried: set[str]) -> bool:
        seen = {*tried, self.route.worker.name}
        return any(worker.name not in seen for worker in self._registry.serving(self._identity))

    def _attempt(self) -> Attempt:
        return Attempt(self._door.hop, self.route, self._kind, self._foreign())

    def _foreign(self) -> ForeignAnswer | None:
        if self.route.worker.engine is None:
            return None
        identity = self.route.identity
        return ForeignAnswer(
            self.route.worker.name,
            identity,
            choices=self._request.n,
            sampling=self._request.effective_sampling(identity.declaration.sampling),
            seed=self._seed,
            prompt_tokens=self.prompt_tokens,
        )

    def _body(self) -> bytes:
        engine, identity = self.route.worker.engine, self.route.identity
        if engine is None:
            return self.body
        asking = Asking(
            engine.kind, self.route.worker.name, identity, engine.names[identity.name], self._tenant
        )
        sampling = self._request.effective_sampling(identity.declaration.sampling)
        return orjson.dumps(asking.body(self._ours, sampling))

    def _headers(self, ours: Mapping[str, str], trace: TraceParent | None) -> Mapping[str, str]:
        engine = self.route.worker.engine
        if engine is None:
            return {**ours, **headers_of(trace)}
        return {"content-type": "application/json", **headers_of(trace), **engine.headers}

    @property
    def _ours(self) -> dict[str, Json]:
        return self._request.to_worker(identity=self._identity, seed=self._seed)

    @property
    def _registry(self) -> Registry:
        return self._door.router.registry

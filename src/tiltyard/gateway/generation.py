"""One request's life in the gateway: ask a worker, pass its frames on, record the end, whatever it is."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import NamedTuple, cast

from pydantic import ValidationError

from tiltyard.errors import (
    Conflict,
    DeadlineExceeded,
    Overloaded,
    StorageFailed,
    TiltyardError,
    UpstreamFailed,
)
from tiltyard.events.ids import new_generation_id
from tiltyard.events.schema import FinishReason, GenerationFinished
from tiltyard.events.vault import NewContent
from tiltyard.gateway.attempt import Stopped
from tiltyard.gateway.caller import current_caller
from tiltyard.gateway.charge import Charge
from tiltyard.gateway.collect import ENDPOINT_OF, Collected, Endpoint, Kind, whole_answer
from tiltyard.gateway.door import Door
from tiltyard.gateway.record import Asked, Ending, event_of, said
from tiltyard.gateway.relay import Relay
from tiltyard.gateway.screening import Served, served
from tiltyard.gateway.shadow import SHADOW
from tiltyard.gateway.shadow import TERMS as SHADOW_TERMS
from tiltyard.identity.canonical import Json, canonical_json
from tiltyard.router.ledger import Ask
from tiltyard.router.split import Asker, Drawn
from tiltyard.telemetry.metrics import BLIND
from tiltyard.wire.answers import UsageJson, usage_json
from tiltyard.wire.openai import ChatCompletionRequest, CompletionRequest
from tiltyard.wire.phrasing import AnswerEnd, Chunk
from tiltyard.wire.terms import ServiceTerms
from tiltyard.wire.worker import HEADER_GENERATION, HEADER_IDENTITY, HEADER_TENANT

SOURCE = "tiltyard/gateway"
GUESSED_ANSWER_TOKENS = 256
"""What a request without `max_tokens` is taken to use of its tenant's rate."""
TEMPLATE_TOKENS = 1024
"""More than any template known to us adds to a conversation."""
TOOLS_TOKENS = 2_048
"""More than any template known to us says of how to call, beside the tools themselves: characters, even."""

_logger = logging.getLogger(__name__)


class Shed(Overloaded):
    """The request cannot be begun by the deadline that it brought."""

    default_code = "shed"


def draw_seed() -> int:
    """A seed for a request that brings none: 53 random bits, exact in every JSON reader."""
    return int.from_bytes(os.urandom(8)) >> 11


async def as_served(
    door: Door, request: ChatCompletionRequest | CompletionRequest, kept: Mapping[str, Json] | None = None
) -> Served:
    """The request as the caller's terms want it served; raises as `served` does, and for a model that is not the caller's.

    Finding personal data in a long text takes seconds of this process; others are served meanwhile.
    """
    terms = current_caller().terms
    terms.check_model(request.model)
    if terms.personal_data == "keep":
        return Served(request, kept or {}, {})
    return await asyncio.to_thread(served, request, kept or {}, terms.personal_data, door.screens)


class Copy(NamedTuple):
    """Makes a generation the shadow of another one: nobody sees its answer."""

    of: str
    """The generation that the user saw."""
    drawn: Drawn
    seed: int


class Generation:
    """One request and its answer; raises `NotFound` at once when the model does not exist."""

    def __init__(
        self,
        door: Door,
        asked: Served,
        *,
        generation_id: str | None = None,
        created: int | None = None,
        endpoint: Endpoint | None = None,
        traceparent: str | None = None,
        blind: bool = False,
        terms: ServiceTerms | None = None,
        copy: Copy | None = None,
    ) -> None:
        self.id = generation_id or new_generation_id()
        self._door = door
        caller = current_caller()
        self.request, self._kept, self._found = asked
        request = self.request
        self.kind: Kind = "chat" if isinstance(request, ChatCompletionRequest) else "completion"
        self.endpoint = endpoint or ENDPOINT_OF[self.kind]
        self._caller = caller
        self._traceparent = traceparent
        self._terms = caller.terms.with_class(terms or ServiceTerms())
        self._shadow_of = None if copy is None else copy.of
        self._drawn = self._draw() if copy is None else copy.drawn
        self.identity_name = self._drawn.identity
        self._label = SHADOW if copy else BLIND if blind else self.identity_name
        """What the metrics call the identity."""
        own = request.seed if copy is None else copy.seed
        self.seed = draw_seed() if own is None else own
        self._relay = Relay(
            door,
            request,
            kind=self.kind,
            identity=self.identity_name,
            behaviour=self._drawn.behaviour,
            tenant=caller.tenant,
            terms=self._terms,
            seed=self.seed,
            blind=blind,
        )
        self.collected = Collected(request.n)
        self._created = int(time.time()) if created is None else created
        self._began = time.perf_counter()
        self._began_us = time.time_ns() // 1000
        self._first_token_ms: float | None = None
        self._charge = Charge(door.ledger, door.metrics, caller, self._ask())
        self._recording: asyncio.Future[None] | None = None

    def _draw(self) -> Drawn:
        asker = Asker(
            self._caller.tenant, self.id, self._terms.session, self.request.user or "", self._terms.channel
        )
        return self._door.router.draw(self.request.model, asker)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer; the identity is that of the worker which answers."""
        return {HEADER_IDENTITY: self._relay.route.identity.behaviour, HEADER_GENERATION: self.id}

    @property
    def behaviour(self) -> str:
        """The behaviour digest of the identity that answers."""
        return self._relay.route.identity.behaviour

    @property
    def ran(self) -> bool:
        """Whether a worker began to read the prompt, so that there is usage to tell."""
        return self._relay.attempt.prompt.tokens > 0 or self.collected.usage is not None

    @property
    def usage(self) -> UsageJson:
        """Tokens so far; of an answer that has ended, all of them."""
        if (usage := self.collected.usage) is not None:
            return cast(UsageJson, usage)
        prompt = self._relay.attempt.prompt
        completion = sum(choice.tokens for choice in self.collected.choices)
        return usage_json(prompt.tokens, completion, prompt.cached_tokens)

    @property
    def end(self) -> AnswerEnd:
        """How the first answer ended."""
        finished = self.collected.finished
        stop_match = finished.choices[0].stop_match if finished is not None and finished.choices else None
        return AnswerEnd(self.collected.choices[0].finish_reason or "stop", stop_match, self.usage)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield the frames for the client; the last one has the usage, and the event is durable before it.

        Closing the generator, or cancelling the task that iterates, cancels the answer at the worker and
        records it as cancelled with what has come. Raises a `TiltyardError` when the answer fails, after
        the failure is recorded.
        """
        door = self._door
        self._refuse_if_too_late()
        await self._charge.reserve()
        end: FinishReason = "failed"
        error: str | None = "internal_error"
        with (
            door.metrics.in_flight.labels(self._label).track_inprogress(),
            door.running.having(self._caller.tenant, self.id, self.stop),
        ):
            try:
                async with aclosing(self._relay.frames(self._headers_for_worker)) as frames:
                    async for frame in frames:
                        chunk = self._dressed(frame)
                        if self.collected.finished is not None:
                            await self._record("stop", None)
                        yield chunk
                if self.collected.finished is None:
                    raise UpstreamFailed(
                        f"worker {self._relay.route.worker.name} ended the answer without its facts",
                        code="stream_unreadable",
                    )
            except Stopped:
                end, error = "cancelled", None
                await self._record(end, error)
                for chunk in self._cut_off():
                    yield chunk
            except TiltyardError as failure:
                if isinstance(
                    failure, StorageFailed
                ):  # the client hears of it; who can free the disk must too
                    _logger.error("%s was not recorded: %s", self.id, failure.message)
                error = failure.code
                if isinstance(failure, DeadlineExceeded):
                    end = "deadline"
                raise
            except (asyncio.CancelledError, GeneratorExit):
                end, error = "cancelled", None
                raise
            finally:
                if self._relay.reached:
                    await self._record(end, error)
                else:
                    await self._charge.settle(0, 0)

    def stop(self) -> None:
        """End the answer with what there is: its last frames say `cancelled`, with usage."""
        self._relay.attempt.stop()

    def _cut_off(self) -> Iterator[Chunk]:
        """The last frames of an answer that was stopped."""
        open_choices = [choice for choice in self.collected.choices if choice.finish_reason is None]
        name = "chat.completion.chunk" if self.kind == "chat" else "text_completion"
        nothing: Chunk = {"delta": {}} if self.kind == "chat" else {"text": ""}
        choices: list[Json] = []
        for choice in open_choices:
            choice.finish_reason = "cancelled"
            choices.append({"index": choice.index, **nothing, "logprobs": None, "finish_reason": "cancelled"})
        usage = cast(Json, self.usage)
        if choices:
            so_far = usage if self.request.continuous_usage else None
            told: Chunk = {"usage": so_far} if self.request.include_usage else {}
            yield {**self._head, "object": name, "choices": choices, **told}
        yield {**self._head, "object": name, "choices": [], "usage": usage}

    async def whole(self) -> Chunk:
        """Wait for the end and return the answer of a request that is not streamed."""
        async with aclosing(self.chunks()) as chunks:
            async for _ in chunks:
                pass
        return whole_answer(self.collected, self.kind, self._head, cast(Mapping[str, Json], self.usage))

    @property
    def _head(self) -> Chunk:
        return {
            "id": self.id,
            "created": self._created,
            "model": self.identity_name,
            "system_fingerprint": self.behaviour,
        }

    def _headers_for_worker(self) -> dict[str, str]:
        """The terms count from when the worker is asked."""
        return {
            "content-type": "application/json",
            HEADER_GENERATION: self.id,
            HEADER_TENANT: self._caller.tenant,
            **self._terms.headers(elapsed_ms=self._elapsed_ms()),
        }

    def _dressed(self, chunk: Chunk) -> Chunk:
        """Note the frame, and make it the client's: our ids, the usage as OpenAI places it."""
        try:
            tokens = self.collected.take(chunk)
        except (KeyError, TypeError, IndexError, AttributeError, ValidationError) as error:
            raise self._relay.attempt.unreadable("has an unknown shape") from error
        if tokens:
            if self._first_token_ms is None:
                self._first_token_ms = self._elapsed_ms()
            self._relay.took(tokens)
        usage = chunk.pop("usage", None)
        chunk.update(self._head)
        if self.request.include_usage:
            chunk["usage"] = cast(Json, self.usage) if self.request.continuous_usage else usage
        return chunk

    async def _record(self, end: FinishReason, error: str | None) -> None:
        """Append the one event of this request; returns when it is durable."""
        if self._recording is None:
            self._recording = asyncio.ensure_future(self._append(end, error))
        # Shielded: a client that hangs up just now must not leave half an append behind.
        await asyncio.shield(self._recording)

    async def _append(self, finish: FinishReason, error: str | None) -> None:
        """Append the event and bill what it says, before the client can know of the end and ask again.

        What could not be recorded is not billed: the sum of the events is the sum of the bills.
        """
        billed = (0, 0)
        try:
            event = await self._appended(finish, error)
            billed = (event.prompt_tokens, event.completion_tokens)
        finally:
            await self._charge.settle(*billed)

    async def _appended(self, finish: FinishReason, error: str | None) -> GenerationFinished:
        ending = Ending(finish, error, self._elapsed_ms(), self._first_token_ms)
        asked = Asked(
            self.id,
            self.endpoint,
            self.request,
            self.seed,
            self._relay.route,
            self._relay.attempt.prompt,
            self._terms.service_class,
            self._caller.key,
            self._drawn,
            self._shadow_of,
            self._caller.terms.personal_data,
            self._found,
        )
        event = event_of(asked, self.collected, ending)
        self._measure(event)
        if self.collected.finished is not None:
            ends = [choice.completion_tokens for choice in event.choices]
            self._relay.ended(self.collected.choices[0].text, ends)
        contents: tuple[NewContent, ...] = ()
        if self._caller.terms.keep_content:
            # In a thread: the first words of a subject make its key, which waits for the disk.
            contents = await asyncio.to_thread(self._encrypted, said(self.collected, ending))
        if contents:
            event = event.model_copy(update={"prompt": contents[0].ref, "response": contents[1].ref})
        try:
            await self._store(event, contents)
        except Conflict as conflict:
            if conflict.code != "subject_erased":
                raise
            event = event.model_copy(update={"prompt": None, "response": None})
            await self._store(event, ())
        self._cast_shadow(event)
        return event

    async def _store(self, event: GenerationFinished, contents: tuple[NewContent, ...]) -> None:
        await self._door.log.append(
            event,
            subject=self.id,
            tenant=self._caller.tenant,
            source=SOURCE,
            traceparent=self._traceparent,
            contents=contents,
        )

    def _cast_shadow(self, event: GenerationFinished) -> None:
        """Ask a release's candidate the same, where its shadow stage draws this request."""
        door = self._door
        if (drawn := door.shadows.drawn(door.router, event)) is None:
            return

        async def ask_again() -> None:
            copy = Generation(
                door,
                Served(self.request, {}, {}),
                endpoint=self.endpoint,
                terms=SHADOW_TERMS,
                copy=Copy(self.id, drawn, self.seed),
            )
            async with aclosing(copy.chunks()) as chunks:
                async for _ in chunks:
                    pass

        door.shadows.begin(self._caller, self.request.user, door.metrics, ask_again)

    def _encrypted(self, words: Json) -> tuple[NewContent, ...]:
        """Request and answer; nothing for a subject that was erased while it was answered."""
        log, subject = self._door.log, self._caller.subject(self.request.user)
        if log.erased_since(subject, self._began_us):
            return ()
        prompt = log.content(subject, canonical_json({**self.request.served_prompt, **self._kept}))
        return prompt, log.content(subject, canonical_json(words))

    def _measure(self, event: GenerationFinished) -> None:
        metrics, name = self._door.metrics, self._label
        outcome = event.choices[0].finish_reason
        if event.error is not None and outcome != "deadline":
            outcome = "failed"
        metrics.requests.labels(event.endpoint, name, outcome).inc()
        metrics.duration_s.labels(event.endpoint, name).observe(event.total_ms / 1000)
        if self._first_token_ms is not None:
            metrics.first_token_s.labels(event.endpoint, name).observe(self._first_token_ms / 1000)
        metrics.prompt_tokens.labels(name).inc(event.prompt_tokens)
        metrics.cached_tokens.labels(name).inc(event.cached_tokens)
        metrics.expected_cached_tokens.labels(name).inc(self._relay.route.cached_tokens)
        metrics.completion_tokens.labels(name).inc(event.completion_tokens)

    def _refuse_if_too_late(self) -> None:
        """Raise `Overloaded` for a request that cannot be begun by its deadline, before it costs anybody anything."""
        deadlines = [d for d in (self._terms.queue_deadline_ms, self._terms.deadline_ms) if d is not None]
        if not deadlines:
            return
        relay = self._relay
        wait_s = self._door.router.expected_wait_s(relay.route.worker, relay.queue, relay.estimated_tokens)
        if wait_s * 1000 > min(deadlines):
            raise Shed(
                f"this request would wait about {wait_s:,.1f} s for those that {self._caller.tenant} has waiting in "
                f"class {self._terms.service_class}; its deadline is {min(deadlines):,} ms. Allow more, or come back later.",
                retry_after_s=wait_s - min(deadlines) / 1000,
            )

    def _ask(self) -> Ask:
        """What this request may use: an estimate for the rate, the most that it can cost for the budgets."""
        request, identity, terms = self.request, self._relay.route.identity, self._caller.terms
        limit = identity.max_context_tokens
        sampling = request.effective_sampling(identity.declaration.sampling)
        output = request.n * min(sampling.max_tokens or limit, limit)
        # A token has at least one byte; around the client's words stand the template's and the identity's own.
        own = len((identity.declaration.system_prompt or "").encode()) + TEMPLATE_TOKENS
        if isinstance(request, ChatCompletionRequest) and request.tool_use is not None:
            own += TOOLS_TOKENS
        prompt = min(len(self._relay.body) + own, limit)
        return Ask(
            tokens=terms.weight(
                self._relay.prompt_tokens, request.n * (request.answer_tokens or GUESSED_ANSWER_TOKENS)
            ),
            worst_nano=terms.cost_nano(prompt, output),
        )

    def _elapsed_ms(self) -> float:
        return (time.perf_counter() - self._began) * 1000

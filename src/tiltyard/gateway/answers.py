"""How an answer leaves: as one JSON body or as server-sent events.

The one way of every request that a model answers, whatever protocol it came by: the protocol's route reads it into a
chat (or plain completion) request and brings a phrasing for the way back. An answer is cancelled when its client
goes, unless the request asked for it to be told (`gateway/telling.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tiltyard.errors import InvalidRequest, TiltyardError, Unavailable
from tiltyard.gateway.body import while_connected
from tiltyard.gateway.caller import current_caller
from tiltyard.gateway.collect import Endpoint
from tiltyard.gateway.door import Door
from tiltyard.gateway.errors import CLIENT_CLOSED, refusal_response
from tiltyard.gateway.generation import Generation, as_served
from tiltyard.gateway.resuming import EventId, asking_of, event_id_of
from tiltyard.gateway.retelling import KEPT, Given, as_chunks, look_up
from tiltyard.gateway.taking import Taken
from tiltyard.gateway.telling import Asking, KeyReused, StreamGone, Telling, numbered
from tiltyard.gateway.trace import traceparent_of
from tiltyard.gateway.waiting import rough_tokens
from tiltyard.identity.canonical import Json
from tiltyard.wire.openai import ChatCompletionRequest, CompletionRequest
from tiltyard.wire.phrasing import Chunk, OpenAiPhrasing, Phrasing, openai_refusal
from tiltyard.wire.sse import frame
from tiltyard.wire.terms import ServiceTerms
from tiltyard.wire.worker import HEADER_BLIND, HEADER_GENERATION, HEADER_IDENTITY

STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
EVENT_STREAM = "text/event-stream"
JSON = "application/json"
T = TypeVar("T")


@dataclass(frozen=True)
class Spoken:
    """By which protocol a request came, and how its answer is worded."""

    endpoint: Endpoint
    phrasing: Phrasing
    kept: Mapping[str, Json] = field(default_factory=dict)
    """What the vault keeps beside the prompt."""


def openai_words(asked: ChatCompletionRequest | CompletionRequest) -> Spoken:
    """OpenAI's own words for its own two requests."""
    endpoint: Endpoint = "chat.completions" if isinstance(asked, ChatCompletionRequest) else "completions"
    return Spoken(endpoint, OpenAiPhrasing(include_usage=asked.include_usage))


async def answer(
    door: Door,
    asked: ChatCompletionRequest | CompletionRequest,
    request: Request,
    taken: Taken[T],
    spoken: Spoken,
) -> Response:
    """Answer a request as it asked to be answered; `taken` is what was read of it, `asked` what that means."""
    try:
        asking = asking_of(request, taken.digest, current_caller().tenant)
        last = event_id_of(request)
        order = Order(door, asked, request, spoken)
        if last is not None:
            if not asked.stream:
                raise InvalidRequest("Last-Event-ID resumes streams; send stream: true", param="stream")
            return _resumed(door, last, taken)
        if asking is not None:
            return await _told(order, asking, request, taken.headers)
        return await _direct(order, request, taken.headers)
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED)
    except TiltyardError as error:
        spoken.phrasing.rename(error)
        raise


class Order:
    """What is to be generated, and how it is said; one order is carried out once."""

    def __init__(
        self,
        door: Door,
        asked: ChatCompletionRequest | CompletionRequest,
        request: Request,
        spoken: Spoken,
    ) -> None:
        self.door = door
        self.asked = asked
        self.spoken = spoken
        self.broke = False
        """Whether the stream ended in a failure."""
        self._traceparent = traceparent_of(request)
        self._blind = HEADER_BLIND in request.headers
        tier = asked.service_tier if isinstance(asked, ChatCompletionRequest) else None
        self._terms = ServiceTerms.read(request.headers, tier)

    async def generation(
        self,
        generation_id: str | None = None,
        kept: Mapping[str, Json] | None = None,
        created: int | None = None,
    ) -> Generation:
        """Begin; raises `NotFound` at once when the model does not exist."""
        return Generation(
            self.door,
            await as_served(self.door, self.asked, {**self.spoken.kept, **(kept or {})}),
            generation_id=generation_id,
            created=created,
            endpoint=self.spoken.endpoint,
            traceparent=self._traceparent,
            blind=self._blind,
            terms=self._terms,
        )

    @property
    def has_to_wait(self) -> bool:
        """Whether a worker has to be started for it first."""
        return self.door.waiting.has_to_wait(self._identity)

    async def seated(self) -> None:
        """Wait for a worker that is still to come; raises `NotFound`, `Unavailable` or `Overloaded`."""
        if self.has_to_wait:
            await self.door.waiting.wait(self._identity, rough_tokens(self.asked))

    @property
    def _identity(self) -> str:
        return self.door.router.resolve(self.asked.model)

    async def frames(
        self, first: Chunk, rest: AsyncGenerator[Chunk, None], generation: Generation
    ) -> AsyncGenerator[bytes, None]:
        """The frames of a stream that has begun; a failure is its last one."""
        phrasing = self.spoken.phrasing
        async with aclosing(rest):
            try:
                for data in phrasing.begin(first, generation.usage):
                    yield data
                for data in phrasing.frames(first):
                    yield data
                async for chunk in rest:
                    for data in phrasing.frames(chunk):
                        yield data
            except TiltyardError as error:
                yield self.failed(error, generation)
                return
        yield phrasing.last(generation.end)

    def failed(self, error: TiltyardError, generation: Generation) -> bytes:
        """The last frame of a stream that broke."""
        self.broke = True
        self.door.metrics.errors.labels(error.code).inc()
        self.spoken.phrasing.rename(error)
        return self.spoken.phrasing.failed(error, generation.usage)

    def refused(self, error: TiltyardError, generation: Generation | None = None) -> Response:
        """The answer of a request that failed before a byte was sent, with what it has cost."""
        phrasing = self.spoken.phrasing
        self.door.metrics.errors.labels(error.code).inc()
        phrasing.rename(error)
        usage = None
        if generation is not None and generation.ran:
            usage = phrasing.usage(generation.usage)
        return refusal_response(phrasing.refused(error), usage=usage)


async def _direct(order: Order, request: Request, headers: Mapping[str, str]) -> Response:
    """Answer the one who asks, and nobody else."""
    if order.has_to_wait:
        await while_connected(order.seated(), request.receive)
    generation = await order.generation()
    try:
        if not order.asked.stream:
            whole = await while_connected(generation.whole(), request.receive)
            body = orjson.dumps(order.spoken.phrasing.whole(whole, generation.end))
            return Response(body, headers={**generation.headers, **headers}, media_type=JSON)
        chunks = generation.chunks()
        # Nothing has been promised to the client before the worker's first frame: until then a failure is
        # an HTTP error, and a dead worker can be replaced.
        first = await while_connected(_next(chunks), request.receive)
    except TiltyardError as error:
        return order.refused(error, generation)
    return EventStream(order.frames(first, chunks, generation), {**generation.headers, **headers})


async def _told(order: Order, asking: Asking, request: Request, headers: Mapping[str, str]) -> Response:
    """Answer by a telling: one that runs or ran under the same key, or a new one."""
    tellings = order.door.tellings
    telling = None if asking.key is None else tellings.of_key(asking.tenant, asking.key)
    replayed = {} if telling is None else {"idempotent-replayed": "true"}
    if telling is None:
        telling = tellings.start(asking, lambda telling: _tell(order, telling))
    elif telling.asking.digest != asking.digest:
        raise KeyReused(
            "the Idempotency-Key was used with another request; send a new key", param="idempotency-key"
        )
    telling.listen()
    try:
        await while_connected(telling.begun.wait(), request.receive)
        if telling.refused is not None:
            return telling.refused
        if not telling.generation:
            raise Unavailable("the server is ending; ask again")
        head = {**telling.headers, **headers, **replayed}
        if order.asked.stream:
            return EventStream(telling.after(-1), head, telling)
        body = await while_connected(_joined(telling), request.receive)
        return Response(body, headers=head, media_type=JSON)
    finally:
        telling.leave()


def _resumed(door: Door, last: EventId, taken: Taken[T]) -> Response:
    """The rest of a stream that its client has heard up to `last`."""
    telling = door.tellings.of_generation(current_caller().tenant, last.generation)
    if telling.asking.digest != taken.digest:
        raise InvalidRequest(
            "Last-Event-ID belongs to another request; send the body of the one that began the stream",
            param="last-event-id",
        )
    telling.check_kept(last.number)
    return EventStream(telling.after(last.number), {**telling.headers, **taken.headers}, telling)


async def _joined(telling: Telling) -> bytes:
    return b"".join([data async for data in telling.after(-1)])


async def _tell(order: Order, telling: Telling) -> None:
    """Carry an order out, or say again what the log has of it."""
    try:
        await _carry_out(order, telling)
    except TiltyardError as error:
        telling.refuse(order.refused(error))


async def _carry_out(order: Order, telling: Telling) -> None:
    asking = telling.asking
    telling.subject = current_caller().subject(order.asked.user)
    generation_id, given = None, None
    if asking.key is not None:
        generation_id, given = await asyncio.to_thread(look_up, order.door.log, asking, order.asked)
    if given is not None:
        _tell_again(order, telling, given)
        return
    created = int(time.time())
    kept: dict[str, Json] = {KEPT: {"digest": asking.digest, "created": created}} if asking.key else {}
    await order.seated()
    generation = await order.generation(generation_id, kept, created)
    try:
        if not order.asked.stream:
            whole = await generation.whole()
            telling.begin(generation.id, generation.headers)
            telling.add(orjson.dumps(order.spoken.phrasing.whole(whole, generation.end)))
            return
        chunks = generation.chunks()
        first = await anext(chunks)
    except TiltyardError as error:
        telling.refuse(order.refused(error, generation))
        return
    telling.begin(generation.id, generation.headers)
    async with aclosing(order.frames(first, chunks, generation)) as frames:
        async for data in frames:
            _add_events(telling, data)
            await telling.room()
    telling.broken = order.broke


def _tell_again(order: Order, telling: Telling, given: Given) -> None:
    phrasing, answer = order.spoken.phrasing, given.answer
    identity, generation = str(answer["system_fingerprint"]), str(answer["id"])
    telling.begin(
        generation,
        {HEADER_IDENTITY: identity, HEADER_GENERATION: generation, "idempotent-replayed": "true"},
    )
    if not order.asked.stream:
        telling.add(orjson.dumps(phrasing.whole(answer, given.end)))
        return
    chunks = as_chunks(
        answer,
        include_usage=order.asked.include_usage,
        continuous_usage=order.asked.continuous_usage,
    )
    for data in phrasing.begin(chunks[0], given.end.usage):
        _add_events(telling, data)
    for chunk in chunks:
        for data in phrasing.frames(chunk):
            _add_events(telling, data)
    _add_events(telling, phrasing.last(given.end))


def _add_events(telling: Telling, data: bytes) -> None:
    """Number each event of a frame: what a client has of it tells how far it has heard."""
    for event in data.split(b"\n\n")[:-1]:
        telling.add(numbered(telling.generation, telling.next, event + b"\n\n"))


class EventStream(Response):
    """A stream of frames, cancelled when its client goes; of a telling, only the listening is."""

    media_type = EVENT_STREAM

    def __init__(
        self, frames: AsyncGenerator[bytes, None], headers: Mapping[str, str], telling: Telling | None = None
    ) -> None:
        super().__init__(None, headers={**headers, **STREAM_HEADERS})
        del self.headers["content-length"]
        self._frames = frames
        self._telling = telling
        if telling is not None:
            telling.listen()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client hangs up."""
        try:
            await while_connected(self._send_all(send), receive)
        except (ClientDisconnect, OSError):  # OSError: the server saw the closed connection when it wrote
            pass
        finally:
            await self._frames.aclose()
            if self._telling is not None:
                self._telling.leave()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for data in self._frames:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except StreamGone as gone:  # a reader so slow that what it has not heard was forgotten
            data = frame(orjson.dumps(openai_refusal(gone).body))
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _next(chunks: AsyncGenerator[Chunk, None]) -> Chunk:
    return await anext(chunks)

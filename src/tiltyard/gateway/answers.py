"""How an answer leaves: as one JSON body or as server-sent events, cancelled when the client goes.

The one way of every request that a model answers, whatever protocol it came by: the protocol's route reads it into a
chat (or plain completion) request and brings a phrasing for the way back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tiltyard.errors import TiltyardError
from tiltyard.gateway.body import while_connected
from tiltyard.gateway.collect import Endpoint
from tiltyard.gateway.door import Door
from tiltyard.gateway.errors import CLIENT_CLOSED, refusal_response
from tiltyard.gateway.generation import Generation
from tiltyard.gateway.trace import traceparent_of
from tiltyard.identity.canonical import Json
from tiltyard.telemetry.metrics import GatewayMetrics
from tiltyard.wire.openai import ChatCompletionRequest, CompletionRequest
from tiltyard.wire.phrasing import Chunk, OpenAiPhrasing, Phrasing
from tiltyard.wire.terms import ServiceTerms
from tiltyard.wire.worker import HEADER_BLIND


@dataclass(frozen=True)
class Spoken:
    """By which protocol a request came, and how its answer is worded."""

    endpoint: Endpoint
    phrasing: Phrasing
    kept: Mapping[str, Json] = field(default_factory=dict)
    """What the vault keeps beside the prompt."""


async def answer(
    door: Door,
    asked: ChatCompletionRequest | CompletionRequest,
    request: Request,
    spoken: Spoken | None = None,
    *,
    headers: Mapping[str, str],
) -> Response:
    """Answer a request whose body has been read, as it asked to be answered; `spoken` is OpenAI's own if not given.

    `headers` are more headers for the answer.
    """
    spoken = spoken or _as_asked(asked)
    phrasing = spoken.phrasing
    try:
        generation = Generation(
            door,
            asked,
            endpoint=spoken.endpoint,
            kept=spoken.kept,
            traceparent=traceparent_of(request),
            blind=HEADER_BLIND in request.headers,
            terms=ServiceTerms.read(
                request.headers, asked.service_tier if isinstance(asked, ChatCompletionRequest) else None
            ),
        )
    except TiltyardError as error:
        phrasing.rename(error)
        raise
    try:
        if not asked.stream:
            whole = await while_connected(generation.whole(), request.receive)
            body = phrasing.whole(whole, generation.end)
            head = {**generation.headers, **headers}
            return Response(orjson.dumps(body), headers=head, media_type="application/json")
        chunks = generation.chunks()
        # Nothing has been promised to the client before the worker's first frame: until then a failure is
        # an HTTP error, and a dead worker can be replaced.
        first = await while_connected(_next(chunks), request.receive)
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED)
    except TiltyardError as error:
        phrasing.rename(error)
        door.metrics.errors.labels(error.code).inc()
        usage = phrasing.usage(generation.usage) if generation.ran else None
        return refusal_response(phrasing.refused(error), usage=usage)
    return EventStream(first, chunks, generation, phrasing, headers=headers, metrics=door.metrics)


def _as_asked(asked: ChatCompletionRequest | CompletionRequest) -> Spoken:
    endpoint: Endpoint = "chat.completions" if isinstance(asked, ChatCompletionRequest) else "completions"
    return Spoken(endpoint, OpenAiPhrasing(include_usage=asked.include_usage))


class EventStream(Response):
    """A stream of frames, the last of which says how the answer ended; a failure is a last frame too."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: Chunk,
        rest: AsyncGenerator[Chunk, None],
        generation: Generation,
        phrasing: Phrasing,
        *,
        headers: Mapping[str, str],
        metrics: GatewayMetrics,
    ) -> None:
        always = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(None, headers={**generation.headers, **headers, **always})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._generation = generation
        self._phrasing = phrasing
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client hangs up."""
        try:
            await while_connected(self._send_all(send), receive)
        except (ClientDisconnect, OSError):  # OSError: the server saw the closed connection when it wrote
            pass
        finally:
            await self._rest.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._frames()) as frames:
            async for data in frames:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        phrasing = self._phrasing
        async with aclosing(self._rest):
            try:
                for data in phrasing.begin(self._first, self._generation.usage):
                    yield data
                for data in phrasing.frames(self._first):
                    yield data
                async for chunk in self._rest:
                    for data in phrasing.frames(chunk):
                        yield data
            except TiltyardError as error:
                self._metrics.errors.labels(error.code).inc()
                phrasing.rename(error)
                yield phrasing.failed(error, self._generation.usage)
                return
        yield phrasing.last(self._generation.end)


async def _next(chunks: AsyncGenerator[Chunk, None]) -> Chunk:
    return await anext(chunks)

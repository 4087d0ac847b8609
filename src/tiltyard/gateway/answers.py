"""How an answer leaves: as one JSON body or as server-sent events, cancelled when the client goes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import cast

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tiltyard.errors import TiltyardError
from tiltyard.gateway.body import while_connected
from tiltyard.gateway.collect import Chunk
from tiltyard.gateway.door import Door
from tiltyard.gateway.errors import CLIENT_CLOSED, error_data
from tiltyard.gateway.generation import Generation
from tiltyard.gateway.trace import traceparent_of
from tiltyard.telemetry.metrics import GatewayMetrics
from tiltyard.wire.openai import ChatCompletionRequest, CompletionRequest
from tiltyard.wire.sse import DONE_FRAME, frame
from tiltyard.wire.terms import ServiceTerms
from tiltyard.wire.worker import HEADER_BLIND


async def answer(door: Door, asked: ChatCompletionRequest | CompletionRequest, request: Request) -> Response:
    """Answer a request whose body has been read, as it asked to be answered."""
    generation = Generation(
        door,
        asked,
        traceparent=traceparent_of(request),
        blind=HEADER_BLIND in request.headers,
        terms=ServiceTerms.read(
            request.headers, asked.service_tier if isinstance(asked, ChatCompletionRequest) else None
        ),
    )
    try:
        if not asked.stream:
            whole = await while_connected(generation.whole(), request.receive)
            return Response(orjson.dumps(whole), headers=generation.headers, media_type="application/json")
        chunks = generation.chunks()
        # Nothing has been promised to the client before the worker's first frame: until then a failure is
        # an HTTP error, and a dead worker can be replaced.
        first = await while_connected(_next(chunks), request.receive)
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED)
    return EventStream(
        first, chunks, include_usage=asked.include_usage, headers=generation.headers, metrics=door.metrics
    )


class EventStream(Response):
    """A stream of frames that ends with `[DONE]`, or with an error frame and no `[DONE]`."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: Chunk,
        rest: AsyncGenerator[Chunk, None],
        *,
        include_usage: bool,
        headers: Mapping[str, str],
        metrics: GatewayMetrics,
    ) -> None:
        super().__init__(None, headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._include_usage = include_usage
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
        async def body(data: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._rest):
            try:
                if self._shows(self._first):
                    await body(frame(orjson.dumps(self._first)))
                async for chunk in self._rest:
                    if self._shows(chunk):
                        await body(frame(orjson.dumps(chunk)))
            except TiltyardError as error:
                self._metrics.errors.labels(error.code).inc()
                await body(frame(error_data(error)), more=False)
                return
        await body(DONE_FRAME, more=False)

    def _shows(self, chunk: Chunk) -> bool:
        """The frame without choices carries the usage; only who asked for it gets it.

        While a call of a tool is being read there is nothing to say, and nothing is said.
        """
        choices = cast(Sequence[Chunk], chunk["choices"])
        return any(map(_says_something, choices)) if choices else self._include_usage


def _says_something(choice: Chunk) -> bool:
    return choice.get("delta") != {} or bool(choice.get("finish_reason") or choice.get("logprobs"))


async def _next(chunks: AsyncGenerator[Chunk, None]) -> Chunk:
    return await anext(chunks)

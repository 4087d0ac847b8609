"""One attempt at one worker: send the request, yield its frames, say exactly how it failed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

import orjson

from tiltyard.errors import UpstreamFailed
from tiltyard.gateway.addressing import trouble
from tiltyard.gateway.collect import Kind
from tiltyard.gateway.hop import Exchange, Hop
from tiltyard.gateway.line import ConnectTimedOut, HopFailed, NotReached, Silent
from tiltyard.identity.canonical import Digest
from tiltyard.router.router import Route
from tiltyard.wire.phrasing import Chunk
from tiltyard.wire.sse import DONE, SseParser
from tiltyard.wire.worker import HEADER_CACHED_TOKENS, HEADER_PROMPT_DIGEST, HEADER_PROMPT_TOKENS
from tiltyard.worker.adapters.answering import ForeignAnswer

CLOSING_S = 0.25
"""How long an engine of another kind may take to end its stream after it said that it is done."""


class WorkerLost(UpstreamFailed):
    """The worker was not there, or went away before the answer was whole."""

    default_code = "worker_lost"


class Stopped(Exception):
    """Somebody who may do so has ended the answer, and it was not its client who left."""


@dataclass(frozen=True)
class PromptFacts:
    """What the head of a worker's answer says about the prompt; an answer that is cut off has no more."""

    tokens: int = 0
    cached_tokens: int = 0
    token_digest: Digest | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> PromptFacts:
        """Read them; a worker of another kind may not send them."""
        return cls(
            int(headers.get(HEADER_PROMPT_TOKENS, 0)),
            int(headers.get(HEADER_CACHED_TOKENS, 0)),
            headers.get(HEADER_PROMPT_DIGEST),
        )


class Attempt:
    """The request, on its way to one worker."""

    def __init__(self, hop: Hop, route: Route, kind: Kind, foreign: ForeignAnswer | None = None) -> None:
        """`foreign` reads the frames of an engine of another kind."""
        self._hop = hop
        self._route = route
        self._foreign = foreign
        path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
        self._url = route.url + path
        self.reached = False
        """Whether the worker may have begun: not when it refused the connection."""
        self.begun = False
        """Whether a frame was passed on: from then on nobody else may be asked."""
        self.prompt = PromptFacts()
        self._posting: asyncio.Future[Exchange] | None = None
        self._response: Exchange | None = None
        self._stopped = False
        self._given_up = False

    def stop(self) -> None:
        """End the answer now, wherever it is: `frames` raises `Stopped`."""
        self._stopped = True
        self._hang_up()

    def lose(self) -> None:
        """The worker has gone silent: `frames` raises `WorkerLost`."""
        self._given_up = True
        self._hang_up()

    def _hang_up(self) -> None:
        if self._response is not None:
            self._response.hang_up()
        elif self._posting is not None:
            self._posting.cancel()

    async def frames(self, body: bytes, headers: Mapping[str, str]) -> AsyncGenerator[Chunk, None]:
        """Send `body` and yield the frames as they come; closing the generator cancels the answer.

        Raises `WorkerLost`, the worker's own error, `UpstreamFailed` when it breaks the protocol, or `Stopped`.
        """
        name = self._route.worker.name
        self.reached = True
        self._posting = asyncio.ensure_future(self._hop.post(self._url, body, headers))
        try:
            response = self._response = await self._posting
        except asyncio.CancelledError:
            if self._stopped:
                raise Stopped from None
            if self._given_up:
                raise WorkerLost(f"worker {name} has gone silent") from None
            raise
        except NotReached as error:
            self.reached = False
            raise WorkerLost(f"worker {name} does not accept connections") from error
        except ConnectTimedOut as error:
            self.reached = False
            raise WorkerLost(f"worker {name} did not accept a connection in time") from error
        except HopFailed as error:
            raise self._failure(error) from error
        try:
            if response.status != 200:
                raise trouble(self._route, response.status, response.headers, await response.read())
            self.prompt = (
                PromptFacts.of(response.headers)
                if self._foreign is None
                else PromptFacts(self._foreign.prompt_tokens)
            )
            parser, done = SseParser(), False
            async for piece in response.pieces():
                for event in parser.feed(piece):
                    if done:
                        break  # what comes after the end is no part of the answer
                    if event.data == DONE:
                        done = True
                    elif (chunk := self._read(event.data)) is not None:
                        yield chunk
                if self._foreign is not None and (done or self._foreign.overrun):
                    break  # it may never close
            if not done and self._stopped:
                raise Stopped
            if self._foreign is not None and (done or self._foreign.overrun):
                yield self._foreign.last()
                if done:
                    await _read_out(response)
            elif not done:
                raise WorkerLost(f"worker {name} ended the stream in the middle of the answer")
        except HopFailed as error:
            if self._stopped:
                raise Stopped from error
            raise self._failure(error) from error
        finally:
            response.close()  # in mid-answer: hangs up, so that the worker stops; after its end: nothing

    def _failure(self, error: HopFailed) -> UpstreamFailed:
        name = self._route.worker.name
        if self._given_up:
            return WorkerLost(f"worker {name} has gone silent")
        if isinstance(error, Silent):
            return UpstreamFailed(
                f"worker {name} sent nothing for too long; the answer was given up", code="timed_out"
            )
        return WorkerLost(f"worker {name} went away in the middle of the request")

    def _read(self, data: bytes) -> Chunk | None:
        chunk = self._parsed(data)
        return chunk if self._foreign is None else self._foreign.take(chunk)

    def _parsed(self, data: bytes) -> Chunk:
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise self.unreadable("is not JSON") from error
        if not isinstance(chunk, dict):
            raise self.unreadable("is not an object")
        if "error" in chunk:
            raise trouble(self._route, _status_of(chunk["error"]), {}, data)
        return chunk

    def unreadable(self, what: str) -> UpstreamFailed:
        """The error for a frame that breaks the protocol."""
        return UpstreamFailed(
            f"worker {self._route.worker.name} sent a frame that {what}", code="stream_unreadable"
        )


async def _read_out(response: Exchange) -> None:
    """Wait a moment for the end of an answer that is whole, so that its connection can be used again."""
    with contextlib.suppress(TimeoutError, HopFailed):
        async with asyncio.timeout(CLOSING_S):
            await response.read()


def _status_of(error: object) -> int:
    """What an error in a stream, which has no status of its own, would have been: whose fault it is stands in its type."""
    if not isinstance(error, dict):
        return 502
    if isinstance(code := error.get("code"), int) and 400 <= code < 600:
        return code  # vLLM and llama.cpp say it there
    return 400 if error.get("type") == "invalid_request_error" else 502

"""One connection to a worker: HTTP/1.1, one request at a time, its answer handed over piece by piece.

As little as can stand between a worker's write and the gateway's read: the parser is compiled (httptools), a piece of body
costs one callback and at most one wake-up, and who reads slowly stops the reading of this connection alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, cast

import httptools

HELD_BYTES = 64 << 10
"""Body that waits for its reader; beyond it the connection is not read, so that TCP slows the worker down."""
MAX_HEAD_BYTES = 64 << 10
"""Of an answer; a worker that sends more is none."""


class HopFailed(Exception):
    """A worker and its gateway could not speak to each other.

    `NotReached`: nothing was sent. `Silent`: it sent nothing for too long. `Lost`: it hung up, or spoke something else.
    """


class NotReached(HopFailed):
    """No connection: refused, or no such address."""


class ConnectTimedOut(HopFailed):
    """No connection in the time that one may take."""


class Silent(HopFailed):
    """Nothing came for too long."""


class Lost(HopFailed):
    """The connection ended in the middle of a request, or was no HTTP."""


class Parser(Protocol):
    """What we use of `httptools.HttpResponseParser`."""

    def feed_data(self, data: bytes) -> None:
        """Parse what came; calls back."""

    def get_status_code(self) -> int:
        """The status, once the head is complete."""

    def should_keep_alive(self) -> bool:
        """Whether the connection may be used again after this answer."""


class Line(asyncio.Protocol):
    """A connection; `free` is called when an answer has ended and another request may be sent, `gone` at its end."""

    def __init__(
        self, *, silence_s: float, free: Callable[[Line], None], gone: Callable[[Line], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self._free = free
        self._gone = gone
        self._heard_s = 0.0
        self._asked = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lost: HopFailed | None = None
        self._reset()

    def _reset(self) -> None:
        self._parser: Parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self._head_bytes = 0
        self._head_done = False
        self._pieces: list[bytes] = []
        self._held = 0
        self._paused = False
        self._complete = False
        self._reusable = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and self._lost is None and not self._transport.is_closing()

    async def ask(self, head: bytes, body: bytes) -> None:
        """Send a request and wait for the head of its answer; raises `Silent` or `Lost`."""
        if self._transport is None:
            raise AssertionError("a line that nobody opened")
        self._reset()
        self._heard_s = self._loop.time()
        self._asked = True
        if self._timer is None:
            self._timer = self._loop.call_later(self._silence_s, self._look)
        self._transport.write(head + body)
        while not self._head_done:
            await self._news()

    async def piece(self) -> bytes | None:
        """Wait for the body and take what there is of it; `None` at its end. Raises `Silent` or `Lost`."""
        while not self._pieces:
            if self._complete:
                return None
            await self._news()
        taken = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._held = [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._heard_s = self._loop.time()  # it was we who did not listen
            self._transport.resume_reading()
        return taken

    def end(self) -> None:
        """Nobody wants the rest: after the whole answer the line is free, else the worker sees it hung up."""
        self._asked = False
        if self._complete and self._reusable and self.open:
            self._free(self)
        else:
            self.hang_up()

    def hang_up(self) -> None:
        """Close the connection, now; who waits for an answer gets `Lost`."""
        self._stop_timer()
        self._fail(Lost("hung up"))
        if self._transport is not None:
            self._transport.abort()

    async def _news(self) -> None:
        if self._lost is not None:
            raise self._lost
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: HopFailed) -> None:
        if self._lost is None:
            self._lost = failure
        self._wake()

    def _look(self) -> None:
        """The one timer of a line looks when something last came: a token costs none, nor does a further request."""
        self._timer = None
        if not self._asked:
            return
        left_s = self._heard_s + self._silence_s - self._loop.time()
        if self._paused:
            left_s = self._silence_s
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
            return
        self._fail(Silent(f"nothing came for {self._silence_s:.0f} s"))
        if self._transport is not None:
            self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # The connection's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Something came."""
        self._heard_s = self._loop.time()
        if not self._head_done:
            self._head_bytes += len(data)
        try:
            if self._complete:
                raise Lost("it spoke without having been asked")
            self._parser.feed_data(data)
            if not self._head_done and self._head_bytes > MAX_HEAD_BYTES:
                raise Lost("the head of its answer has no end")
        except (httptools.HttpParserError, Lost) as error:
            failure = Lost(f"what it sent is no answer: {error}")
            failure.__cause__ = error
            self._fail(failure)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection has ended; a body without a length ends with it."""
        self._stop_timer()
        self._gone(self)
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        if self._head_done and not framed and error is None:
            self._complete = True
        if self._lost is None:
            self._lost = Lost("the connection ended")
            self._lost.__cause__ = error
        self._wake()

    # The parser's callbacks.

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is there; one that only says to go on is not the answer's."""
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self._head_done = True
            self._wake()
        else:
            self.headers = {}

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(body)
        self._held += len(body)
        if self._held > HELD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._head_done:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()  # it knows only now
            self._wake()


def request_head(path: str, host: str, headers: Mapping[str, str], length: int) -> bytes:
    """The head of a POST; raises `ValueError` for what would end a header early."""
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header holds a line break")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()  # a tenant may be called 研究

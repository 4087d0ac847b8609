"""The connections to the workers: one pool, streamed answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

from tiltyard.gateway.line import ConnectTimedOut, Line, NotReached, request_head

CONNECT_S = 5.0
SILENCE_S = 600.0
"""Longest silence of a worker, queueing included, before its answer is given up."""
KEEP_IDLE_S = 2.0
"""Shorter than the 5 s after which a worker closes an idle connection: no request may meet that closing."""


class Exchange:
    """A request whose answer has begun; must be closed."""

    def __init__(self, line: Line) -> None:
        self.status = line.status
        self.headers: Mapping[str, str] = line.headers
        """Names in lower case."""
        self._line: Line | None = line

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes; raises `Silent` or `Lost`."""
        while self._line is not None and (piece := await self._line.piece()) is not None:
            yield piece

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])

    def close(self) -> None:
        """In mid-answer: hang up, so that the worker stops. After its end: keep the connection."""
        if self._line is not None:
            self._line.end()
            self._line = None

    def hang_up(self) -> None:
        """End the answer for whoever reads it: `pieces` raises `Lost`."""
        if self._line is not None:
            self._line.hang_up()


class Hop:
    """A pool of lines; it belongs to the event loop on which it is first used."""

    def __init__(self) -> None:
        self._idle: dict[str, list[tuple[Line, float]]] = {}
        """By origin: the line, and when it became idle; the last one used is the first one taken."""
        self._lines: set[Line] = set()
        self._tidying: set[str] = set()
        """Origins whose idle lines are looked at soon: one timer for all of them, not one a request."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Exchange:
        """Send a request and wait for the head of its answer; the caller must close it.

        Raises `HopFailed`, whose `NotReached` means that nobody was reached.
        """
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        head = request_head(parts.path, parts.netloc, headers, len(body))
        line = self._waiting(origin) or await self._connect(origin)
        try:
            await line.ask(head, body)
        except BaseException:
            line.hang_up()
            raise
        return Exchange(line)

    async def aclose(self) -> None:
        """Close every connection."""
        for line in list(self._lines):
            line.hang_up()
        self._idle.clear()
        self._lines.clear()

    def _waiting(self, origin: str) -> Line | None:
        idle = self._idle.get(origin)
        now_s = asyncio.get_running_loop().time()
        while idle:
            line, since_s = idle.pop()
            if line.open and now_s - since_s < KEEP_IDLE_S:
                return line
            line.hang_up()
        return None

    async def _connect(self, origin: str) -> Line:
        parts, loop = urlsplit(origin), asyncio.get_running_loop()
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        try:
            async with asyncio.timeout(CONNECT_S):
                _, line = await loop.create_connection(
                    lambda: Line(
                        silence_s=SILENCE_S,
                        free=lambda line: self._keep(origin, line),
                        gone=self._lines.discard,
                    ),
                    parts.hostname or "",
                    parts.port or (80 if secure is None else 443),
                    ssl=secure,
                )
        except TimeoutError as error:
            raise ConnectTimedOut(f"no connection to {origin} within {CONNECT_S:.0f} s") from error
        except OSError as error:
            raise NotReached(f"no connection to {origin}: {error}") from error
        self._lines.add(line)
        return line

    def _keep(self, origin: str, line: Line) -> None:
        loop = asyncio.get_running_loop()
        self._idle.setdefault(origin, []).append((line, loop.time()))
        if origin not in self._tidying:
            self._tidying.add(origin)
            loop.call_later(KEEP_IDLE_S, self._tidy, origin)

    def _tidy(self, origin: str) -> None:
        """Close what has waited too long."""
        idle, old_s = self._idle.get(origin, []), asyncio.get_running_loop().time() - KEEP_IDLE_S
        kept = [(line, since_s) for line, since_s in idle if line.open and since_s > old_s]
        for line, _ in idle:
            if all(line is not other for other, _ in kept):
                line.hang_up()
        self._idle[origin] = kept
        if kept:
            asyncio.get_running_loop().call_later(KEEP_IDLE_S, self._tidy, origin)
        else:
            self._tidying.discard(origin)

"""The little of Redis' protocol (RESP2) that the ledger needs: one connection, many commands on their way at once.

https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from tiltyard.errors import ConfigurationError, Unavailable

Reply: TypeAlias = "int | bytes | list[Reply] | RedisRefusal | None"
DEFAULT_PORT = 6379
MAX_REPLY_BYTES = 1 << 20


class StoreUnreachable(Unavailable):
    """The tenants' accounts cannot be reached; nothing is granted without them."""

    default_code = "limits_unavailable"


@dataclass(frozen=True)
class RedisRefusal:
    """An error that the server answered."""

    message: str


@dataclass(frozen=True)
class RedisAddress:
    """`redis://[user[:password]@]host[:port][/database]`, or `rediss://` for TLS."""

    host: str
    port: int = DEFAULT_PORT
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Read a URL; raises `ConfigurationError`, which does not repeat a password.

        >>> RedisAddress.parse("redis://:secret@cache:6380/2").database
        2
        """
        wrong = ConfigurationError(
            "limits_url must be redis://[user:password@]host[:port][/database], or rediss:// for TLS"
        )
        try:
            parts = urlsplit(url)
            port = parts.port or DEFAULT_PORT
            database = int(parts.path.strip("/") or 0)
        except ValueError:
            raise wrong from None
        if parts.scheme not in ("redis", "rediss", "valkey", "valkeys") or not parts.hostname:
            raise wrong
        return cls(
            parts.hostname,
            port,
            unquote(parts.username) if parts.username else None,
            unquote(parts.password) if parts.password else None,
            database,
            parts.scheme.endswith("s") and parts.scheme != "redis",
        )

    @property
    def shown(self) -> str:
        """For messages: without user and password."""
        return f"redis{'s' * self.tls}://{self.host}:{self.port}/{self.database}"


class RedisConnection:
    """One connection that is opened when it is needed, and again when it broke."""

    def __init__(self, address: RedisAddress, *, timeout_s: float = 2.0) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: deque[asyncio.Future[Reply]] = deque()
        self._opening = asyncio.Lock()

    async def call(self, *words: str | bytes) -> Reply:
        """Send one command and wait for its reply; raises `StoreUnreachable`.

        A command whose reply did not come may have been carried out.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._opening:
                    if self._writer is None:
                        await self._open()
                return await self._send(words)
        except (OSError, EOFError, ssl.SSLError, TimeoutError) as error:
            self._drop(error)
            raise StoreUnreachable(
                f"the accounts at {self.address.shown} cannot be reached "
                f"({str(error) or type(error).__name__}). Try again soon."
            ) from error

    async def aclose(self) -> None:
        """Close the connection."""
        reading = self._reading
        self._drop(EOFError("closed"))
        if reading is not None:
            await asyncio.gather(reading, return_exceptions=True)

    async def _open(self) -> None:
        context = ssl.create_default_context() if self.address.tls else None
        reader, self._writer = await asyncio.open_connection(
            self.address.host, self.address.port, ssl=context, limit=MAX_REPLY_BYTES
        )
        self._reading = asyncio.create_task(self._read(reader))
        try:
            if self.address.password is not None:
                names = () if self.address.user is None else (self.address.user,)
                self._must(await self._send(("AUTH", *names, self.address.password)))
            if self.address.database:
                self._must(await self._send(("SELECT", str(self.address.database))))
        except BaseException as error:  # cancelled, perhaps: a connection on the wrong database is none
            self._drop(error)
            raise

    def _must(self, reply: Reply) -> None:
        if isinstance(reply, RedisRefusal):
            raise OSError(reply.message)

    async def _send(self, words: tuple[str | bytes, ...]) -> Reply:
        if self._writer is None:
            raise EOFError("the connection broke")
        waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            data = word.encode() if isinstance(word, str) else word
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
        self._writer.write(b"".join(parts))
        return await waiting

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                reply = await _one_reply(reader)
                waiting = self._waiting.popleft()
                if not waiting.done():  # else who waited has gone; the reply had to be read all the same
                    waiting.set_result(reply)
        except (OSError, EOFError, ValueError, IndexError) as error:
            self._drop(error)

    def _drop(self, error: BaseException) -> None:
        """Give the connection up: every reply that is still to come would be taken for another's."""
        if self._writer is not None:
            self._writer.transport.abort()
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
        self._writer = self._reading = None
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            if not one.done():
                one.set_exception(EOFError(f"the connection broke: {error}"))


async def _one_reply(reader: asyncio.StreamReader) -> Reply:
    line = await reader.readuntil(b"\r\n")
    kind, rest = line[:1], line[1:-2]
    match kind:
        case b"+":
            return rest
        case b"-":
            return RedisRefusal(rest.decode("utf-8", errors="replace"))
        case b":":
            return int(rest)
        case b"$":
            size = int(rest)
            if size < 0:
                return None
            return (await reader.readexactly(size + 2))[:-2]
        case b"*":
            return [await _one_reply(reader) for _ in range(int(rest))]
    raise ValueError(f"a reply begins with {kind!r}")

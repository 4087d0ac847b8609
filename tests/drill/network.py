"""A network that can be cut: TCP passed on to the next of some servers, as a plain load balancer does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


async def until(
    look: Callable[[], Awaitable[object]], every_s: float = 0.02, patience_s: float = 120.0
) -> None:
    """Wait until a question that goes over a network is answered with yes; nobody tells us of that moment."""
    async with asyncio.timeout(patience_s):
        while not await look():  # noqa: ASYNC110 - over a network
            await asyncio.sleep(every_s)


class Network:
    """Takes connections and passes their bytes on to the servers in turn; one that refuses is passed over."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = [(parts.hostname or "", parts.port or 0) for parts in map(urlsplit, servers)]
        self._turn = itertools.count()
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()
        self.url = ""

    def cut(self) -> None:
        """From now on every byte is lost, and nobody is told: no reset, no end."""
        self._whole.clear()

    def mend(self) -> None:
        """Bytes pass again, those that were held up too, as TCP would send them again."""
        self._whole.set()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        first = next(self._turn)
        for place in range(len(self._servers)):
            with suppress(OSError):
                return await asyncio.open_connection(*self._servers[(first + place) % len(self._servers)])
        raise ConnectionRefusedError

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = asyncio.current_task()
        if own is not None:
            self._tasks.add(own)
            own.add_done_callback(self._tasks.discard)
        await self._whole.wait()
        try:
            there, back = await self._connect()
        except OSError:
            writer.close()
            return
        self._ends |= {back, writer}
        with suppress(OSError):
            passing = [
                asyncio.create_task(self._pass(reader, back)),
                asyncio.create_task(self._pass(there, writer)),
            ]
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            for one in passing:
                one.cancel()
            await asyncio.gather(*passing, return_exceptions=True)
        for one in (back, writer):
            one.transport.abort()  # type: ignore[attr-defined]
            self._ends.discard(one)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._whole.wait()
            writer.write(data)
            await writer.drain()
        await self._whole.wait()
        with suppress(OSError):
            await writer.drain()


@asynccontextmanager
async def network(*servers: str) -> AsyncIterator[Network]:
    """A network before these servers, on a port of its own."""
    made = Network(servers)
    server = await asyncio.start_server(made._take, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    made.url = f"http://{host}:{port}"
    try:
        yield made
    finally:
        server.close()
        made.mend()
        for one in tuple(
            made._ends
        ):  # their tasks end then; a cancelled one would be an error of asyncio's server
            one.transport.abort()  # type: ignore[attr-defined]
        await asyncio.gather(*made._tasks, return_exceptions=True)

"""The connections to workers, against servers that send exactly these bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tiltyard.gateway import hop as hop_module
from tiltyard.gateway.hop import Hop
from tiltyard.gateway.line import HELD_BYTES, Lost, NotReached, Silent, request_head

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WHOLE = b"HTTP/1.1 200 OK\r\nX-One: 1\r\ncontent-length: 2\r\n\r\nhi"


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[tuple[Hop, str]]:
    tasks: list[asyncio.Task[None]] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    hop = Hop()
    async with asyncio.timeout(20):
        try:
            yield hop, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/x"
        finally:
            await hop.aclose()
            server.close()
            await asyncio.gather(*tasks, return_exceptions=True)


def saying(data: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()

    return serve


async def test_answers_that_were_whole_share_one_connection() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
            await reader.readexactly(4)
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE)

    async with serving(serve) as (hop, url):
        for _ in range(3):
            answer = await hop.post(url, b"body", {"a": "b"})
            assert (answer.status, answer.headers["x-one"], await answer.read()) == (200, "1", b"hi")
            answer.close()
    assert connections == 1


async def test_an_answer_that_is_not_wanted_any_more_is_hung_up() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n")
        try:
            await reader.read()
        finally:
            gone.set()

    async with serving(serve) as (hop, url):
        answer = await hop.post(url, b"", {})
        assert await anext(aiter(answer.pieces())) == b"hi"
        answer.close()
        await gone.wait()


async def test_who_does_not_read_stops_the_worker_and_not_the_others() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while b"slow" not in await reader.readuntil(b"\r\n\r\n"):
            writer.write(WHOLE)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n")
        for _ in range(500):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 1

    async with serving(serve) as (hop, url):
        slow = await hop.post(url, b"", {"who": "slow"})
        before = -1
        while before != sent:  # until nothing more fits on the way
            before = sent
            for _ in range(20):
                answer = await hop.post(url, b"", {})
                assert await answer.read() == b"hi"
                answer.close()
        line = slow._line
        assert line is not None
        assert line._held < 8 * HELD_BYTES
        assert sent < 500
        assert len(await slow.read()) == 50_000_000  # and goes on when it reads again
        slow.close()


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi",  # ends in mid-answer
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"SSH-2.0-nobody\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
        b"",
    ],
)
async def test_what_is_no_whole_answer_is_lost(data: bytes) -> None:
    async with serving(saying(data)) as (hop, url):
        with pytest.raises(Lost):
            await (await hop.post(url, b"", {})).read()


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async with serving(saying(b"HTTP/1.1 200 OK\r\n\r\nhi")) as (hop, url):
        answer = await hop.post(url, b"", {})
        assert await answer.read() == b"hi"
        answer.close()


async def test_a_worker_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop_module, "SILENCE_S", 0.05)

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()  # all of it, which ends when the gateway hangs up

    async with serving(serve) as (hop, url):
        with pytest.raises(Silent):
            await hop.post(url, b"", {})


async def test_nobody_there_is_not_reached_and_a_line_break_in_a_header_is_not_sent() -> None:
    async with serving(saying(WHOLE)) as (hop, url):
        with pytest.raises(ValueError, match="line break"):
            await hop.post(url, b"", {"a": "b\r\nc: d"})
    with pytest.raises(NotReached):
        await Hop().post(url, b"", {})


def test_a_header_may_be_of_any_script() -> None:
    """A tenant is called as its people call it; the worker gets the bytes of UTF-8."""
    head = request_head("/v1", "worker", {"x-tiltyard-tenant": "研究"}, 0)
    assert "x-tiltyard-tenant: 研究\r\n".encode() in head

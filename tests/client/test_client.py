"""The client against servers that keep their promises and servers that do not, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import orjson
import pytest

from tiltyard.client import ModelClient, Retries
from tiltyard.client.failures import error_from_response
from tiltyard.errors import (
    Conflict,
    ContentMissing,
    ContextTooLong,
    InvalidRequest,
    NotFound,
    Overloaded,
    StorageFailed,
    TiltyardError,
    Unavailable,
    UnknownField,
    UpstreamFailed,
    to_http,
)
from tiltyard.wire.sse import DONE_FRAME, frame

HELLO = [{"role": "user", "content": "hello"}]
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"x-tiltyard-identity: sha256:abc\r\nx-tiltyard-generation: gen_1\r\n\r\n"
)


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def delta(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return frame(orjson.dumps({"id": "gen_1", "model": "m", "choices": [choice]}))


USAGE = frame(
    orjson.dumps(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        }
    )
)


class Server:
    """Answers every request with the same bytes, then closes or hangs; remembers what it was asked."""

    def __init__(self) -> None:
        self.reply = b""
        self.hang = False
        self.requests: list[bytes] = []
        self.gone = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
        )
        self.requests.append(await reader.readexactly(size))
        writer.write(self.reply)
        await writer.drain()
        if self.hang:
            with suppress(ConnectionResetError):  # a client that leaves with bytes unread resets
                await reader.read()
            self.gone.set()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with _served() as server:
        yield server


@asynccontextmanager
async def _served() -> AsyncIterator[Server]:
    server = Server()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        yield server


async def ask(server: Server, **settings: float) -> str:
    async with ModelClient(server.url, timeout_s=5) as client:
        return (await client.chat("m", HELLO, **settings)).text


async def test_a_stream_gives_its_text_its_maker_and_its_usage(server: Server) -> None:
    server.reply = (
        STREAM_HEAD + chunked(delta("你")) + chunked(delta("好", "stop") + USAGE + DONE_FRAME) + chunked(b"")
    )
    async with ModelClient(server.url) as client, client.stream_chat("m", HELLO, temperature=0.5) as stream:
        assert (stream.identity, stream.generation) == ("sha256:abc", "gen_1")
        assert [text async for text in stream] == ["你", "好"]
    assert (stream.text, stream.finish_reason) == ("你好", "stop")
    assert stream.usage is not None
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens, stream.usage.cached_tokens) == (
        5,
        2,
        4,
    )
    assert orjson.loads(server.requests[0]) == {
        "model": "m",
        "messages": HELLO,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_the_base_address_may_have_its_version_or_not() -> None:
    for url in (
        "http://localhost:1",
        "http://localhost:1/",
        "http://localhost:1/v1",
        "http://localhost:1/v1/",
    ):
        async with ModelClient(url) as client:
            assert client.base_url == "http://localhost:1/v1"


async def test_leaving_a_stream_closes_the_connection(server: Server) -> None:
    server.reply, server.hang = STREAM_HEAD + chunked(delta("a")), True
    async with ModelClient(server.url) as client, client.stream_chat("m", HELLO) as stream:
        async for _ in stream:
            break
    async with asyncio.timeout(10):
        await server.gone.wait()


async def test_cancelling_an_answer_closes_the_connection(server: Server) -> None:
    server.reply, server.hang = STREAM_HEAD + chunked(delta("a")), True
    async with ModelClient(server.url) as client:
        asking = asyncio.create_task(client.chat("m", HELLO))
        async with asyncio.timeout(10):
            while not server.requests:  # noqa: ASYNC110 - over a socket
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await server.gone.wait()


async def test_more_than_one_answer_is_refused_before_it_is_asked() -> None:
    async with ModelClient() as client:
        with pytest.raises(InvalidRequest, match="reads one answer"):
            client.stream_chat("m", HELLO, n=2)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("bad", param="temperature"),
        UnknownField("what", param="tempo"),
        ContextTooLong("too long", param="messages"),
        ContentMissing("erased"),
        NotFound("no such model", param="model"),
        Conflict("used"),
        Overloaded("full", retry_after_s=7),
        Unavailable("nobody"),
        UpstreamFailed("died"),
        StorageFailed("disk full"),
    ],
)
async def test_an_error_of_the_server_is_raised_as_it_was(server: Server, error: TiltyardError) -> None:
    status, headers, body = to_http(error)
    data = orjson.dumps(body)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    server.reply = f"HTTP/1.1 {status} X\r\n{lines}content-length: {len(data)}\r\n\r\n".encode() + data
    with pytest.raises(TiltyardError) as caught:
        await ask(server)
    assert type(caught.value) is type(error)
    assert (caught.value.message, caught.value.param, caught.value.code) == (
        error.message,
        error.param,
        error.code,
    )
    if isinstance(error, Overloaded):
        assert isinstance(caught.value, Overloaded)
        assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(
    ("reply", "code", "says"),
    [
        (STREAM_HEAD + chunked(delta("a")) + chunked(b""), "stream_cut", "without its last frame"),
        (STREAM_HEAD + chunked(delta("a")), "stream_cut", "closed the connection in the middle"),
        (b"", "stream_cut", "closed the connection in the middle"),
        (STREAM_HEAD + chunked(frame(b"{")) + chunked(b""), "stream_unreadable", "not JSON"),
        (STREAM_HEAD + chunked(frame(b"[]")) + chunked(b""), "stream_unreadable", "not an object"),
        (
            STREAM_HEAD + chunked(frame(b'{"choices": [1]}')) + chunked(b""),
            "stream_unreadable",
            "unknown shape",
        ),
        (
            STREAM_HEAD
            + chunked(frame(b'{"error": {"message": "broke", "code": "engine_failed"}}'))
            + chunked(b""),
            "engine_failed",
            "broke",
        ),
        (
            b"HTTP/1.1 500 X\r\ncontent-length: 4\r\n\r\noops",
            "upstream_failed",
            "HTTP 500 without an error body",
        ),
    ],
)
async def test_a_broken_promise_is_named(server: Server, reply: bytes, code: str, says: str) -> None:
    server.reply = reply
    with pytest.raises(UpstreamFailed, match=says) as caught:
        await ask(server)
    assert caught.value.code == code


async def test_a_server_that_says_nothing_times_out(server: Server) -> None:
    server.hang = True
    async with ModelClient(server.url, timeout_s=0.05) as client:
        with pytest.raises(UpstreamFailed, match="sent nothing for too long") as caught:
            await client.chat("m", HELLO)
    assert caught.value.code == "timed_out"


async def test_nobody_there_says_how_to_start(server: Server) -> None:
    async with ModelClient("http://127.0.0.1:9") as client:  # nobody listens on the discard port
        with pytest.raises(Unavailable, match="tiltyard up") as caught:
            await client.chat("m", HELLO)
        assert caught.value.code == "connection_refused"
        with pytest.raises(Unavailable, match="nothing answers"):
            await client.models()


async def test_models_are_read_with_their_identity(server: Server) -> None:
    body = orjson.dumps(
        {"data": [{"id": "a", "owned_by": "x", "tiltyard": {"behaviour": "sha256:1"}}, {"id": "b"}]}
    )
    server.reply = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    async with ModelClient(server.url) as client:
        assert [(entry.id, entry.identity) for entry in await client.models()] == [
            ("a", "sha256:1"),
            ("b", None),
        ]


async def test_a_list_of_models_that_is_none_is_named(server: Server) -> None:
    server.reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"
    async with ModelClient(server.url) as client:
        with pytest.raises(UpstreamFailed, match="did not answer with a list of models") as caught:
            await client.models()
    assert caught.value.code == "answer_unreadable"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        # SGLang 0.5's shape: the inner object without the outer one.
        (
            {"object": "error", "message": "too long", "type": "BadRequest", "param": None, "code": 400},
            "too long",
        ),
        ({"detail": "Not Found"}, "Not Found"),  # FastAPI's
        ({"error": "plain words"}, "plain words"),
        ({}, "HTTP 400 without a word"),
    ],
)
def test_errors_of_other_shapes_keep_their_words(body: dict[str, object], message: str) -> None:
    error = error_from_response(400, {}, orjson.dumps(body))
    assert isinstance(error, InvalidRequest)
    assert error.message == message


@pytest.mark.parametrize(
    ("headers", "code", "wait_s", "helps"),
    [
        ({"retry-after": "3"}, None, 3.0, True),
        ({"retry-after": "3", "retry-after-ms": "250"}, None, 0.25, True),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None, 1.0, True),
        ({"x-should-retry": "false"}, "budget_exceeded", 1.0, False),
        ({}, "insufficient_quota", 1.0, False),  # OpenAI's
    ],
)
def test_a_429_says_when_to_come_back_and_whether_that_helps(
    headers: dict[str, str], code: str | None, wait_s: float, helps: bool
) -> None:
    error = error_from_response(429, headers, orjson.dumps({"error": {"message": "no", "code": code}}))
    assert isinstance(error, Overloaded)
    assert (error.retry_after_s, error.should_retry) == (wait_s, helps)
    assert (Retries().wait_s(error, 0) is not None) == helps

"""A server that is not ours, on a real socket: OpenAI's fields and no others, its chunks, its errors.

Chunks, usage and errors have the shape that the `openai` package reads (`openai.types.chat.ChatCompletionChunk`); a
field that OpenAI does not know is a 400, as it is there.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

FIELDS = {
    "model", "messages", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed", "stop",
    "response_format", "user", "n",
}  # fmt: skip
Say = Callable[[dict[str, object]], str]


@dataclass
class Seen:
    """One request as it arrived."""

    body: dict[str, object]
    headers: dict[str, str]


@dataclass
class StandIn:
    """What it says, what it has been asked, and what shall go wrong."""

    say: Say
    owned_by: str = "openai"
    more_fields: frozenset[str] = frozenset()
    tokens: Callable[[list[dict[str, str]]], list[int]] | None = None
    """The prompt's tokens, for a server that scores prompts: token `t` has log-probability `-t`."""
    tiltyard: bool = False
    """Say in the list of models that it is one of ours."""
    finish_reason: str = "stop"
    failures: list[int] = field(default_factory=list)
    """Status codes that the next requests get."""
    cuts: int = 0
    """How many of the next answers end in the middle."""
    hold: bool = False
    """Answer nothing after the first word until the client is gone."""
    seen: list[Seen] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Once for each request whose answer has begun."""
    closed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Once for each answer that has ended, or whose client has gone."""
    together: int = 1
    """No answer begins before so many requests are open."""
    met: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    def reset(self) -> None:
        """As new, at the same address."""
        fresh = StandIn(self.say, self.owned_by, self.more_fields, self.tokens, url=self.url)
        self.__dict__.update(fresh.__dict__)

    async def models(self, _: Request) -> Response:
        entry: dict[str, object] = {"id": "m", "object": "model", "created": 1, "owned_by": self.owned_by}
        if self.tiltyard:
            entry["tiltyard"] = {"behaviour": "sha256:abc", "deployment": "sha256:def"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def chat(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        self.seen.append(Seen(body, dict(request.headers)))
        if self.failures:
            status = self.failures.pop(0)
            error = {"message": f"status {status}", "type": "server_error", "param": None, "code": None}
            return JSONResponse({"error": error}, status, headers={"retry-after": "0"})
        for name in body.keys() - FIELDS - self.more_fields:
            error = {
                "message": f"Unknown parameter: '{name}'.",
                "type": "invalid_request_error",
                "param": name,
                "code": "unknown_parameter",
            }
            return JSONResponse({"error": error}, 400)
        return StreamingResponse(self.chunks(body), media_type="text/event-stream")

    async def chunks(self, body: dict[str, object]) -> AsyncIterator[bytes]:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        self.arrived.release()
        try:
            if self.open >= self.together:
                self.met.set()
            await self.met.wait()
            if "prompt_logprobs" in body:
                yield self.scored(body)
                return
            words = self.say(body)
            for at, word in enumerate(words.split(" ")):
                yield self.chunk({"content": word if at == 0 else " " + word}, None)
                if self.cuts:
                    self.cuts -= 1
                    return
                if self.hold:
                    await asyncio.Event().wait()
            yield self.chunk({}, self.finish_reason)
            usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
            yield b"data: %s\n\n" % orjson.dumps({**self.head, "choices": [], "usage": usage})
            yield b"data: [DONE]\n\n"
        finally:
            self.open -= 1
            self.closed.release()

    def scored(self, body: dict[str, object]) -> bytes:
        assert self.tokens is not None
        ids = self.tokens(body["messages"])  # type: ignore[arg-type]
        shown: list[object] = [None]
        for token in ids[1:]:
            text = chr(token) if token < 128 else f"<{token}>"
            shown.append({str(token): {"logprob": -float(token), "rank": 1, "decoded_token": text}})
        last = int(body.get("prompt_logprobs_last", len(ids)))  # type: ignore[call-overload]
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
        choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": "length"}
        chunk = {**self.head, "choices": [choice], "prompt_logprobs": shown[-last:], "usage": usage}
        return b"data: %s\n\ndata: [DONE]\n\n" % orjson.dumps(chunk)

    @property
    def head(self) -> dict[str, object]:
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def chunk(self, delta: dict[str, object], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return b"data: %s\n\n" % orjson.dumps({**self.head, "choices": [choice], "usage": None})


@contextmanager
def standing_in(say: Say, **settings: object) -> Iterator[StandIn]:
    """Serve one on a socket of its own, in a thread."""
    server = StandIn(say, **settings)  # type: ignore[arg-type]
    app = Starlette(
        routes=[
            Route("/v1/models", server.models),
            Route("/v1/chat/completions", server.chat, methods=["POST"]),
        ]
    )
    with served(app) as server.url:
        yield server


@contextmanager
def served(app: object) -> Iterator[str]:
    """Serve an ASGI app on a socket of its own, in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))  # type: ignore[arg-type]
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join()

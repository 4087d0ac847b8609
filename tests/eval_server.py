"""A server of two identities on a real socket: speaks OpenAI's protocol, and tells identities as tiltyard does."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

A = "sha256:" + "a" * 64
B = "sha256:" + "b" * 64
Say = Callable[[str, list[dict[str, str]]], str]
"""What a model says to a conversation."""


@dataclass
class EvalServer:
    """What it says, whom it is, and what shall go wrong."""

    say: Say
    identities: dict[str, str | None] = field(default_factory=lambda: {"chat": A, "other": B})
    failures: list[tuple[int, dict[str, str | None]]] = field(default_factory=list)
    """Status and error fields of the next requests."""
    fail_if: Callable[[dict[str, object]], bool] = lambda _: False
    """Requests whose answer is cut in the middle."""
    calls: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    """Functions that are called in answer to a last message."""
    asked: Counter[str] = field(default_factory=Counter)
    """Model and last message of every request that was answered in full."""
    bodies: list[dict[str, object]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    url: str = ""

    async def models(self, _: Request) -> Response:
        entries = [
            {"id": name, "object": "model", "owned_by": "x", "tiltyard": {"behaviour": digest}}
            for name, digest in self.identities.items()
        ]
        return JSONResponse({"object": "list", "data": entries})

    async def chat(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.failures:
            status, error = self.failures.pop(0)
            return JSONResponse({"error": {"message": f"status {status}", "type": "x", **error}}, status)
        identity = self.identities[body["model"]]
        headers = {} if identity is None else {"x-tiltyard-identity": identity}
        return StreamingResponse(self.chunks(body), media_type="text/event-stream", headers=headers)

    async def chunks(self, body: dict[str, object]) -> AsyncIterator[bytes]:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            model, messages = str(body["model"]), body["messages"]
            last = messages[-1]["content"]  # type: ignore[index]
            text = self.say(model, messages)  # type: ignore[arg-type]
            generation = "gen_" + hashlib.sha256(orjson.dumps(body)).hexdigest()[:32]
            yield self.frame(generation, {"content": text[:3]}, None)
            if self.fail_if(body):
                return
            for place, call in enumerate(self.calls.get(last, ())):
                name, arguments = call["name"], call["arguments"]
                yield self.frame(
                    generation,
                    {
                        "tool_calls": [
                            {
                                "index": place,
                                "id": f"c{place}",
                                "type": "function",
                                "function": {"name": name, "arguments": ""},
                            }
                        ]
                    },
                    None,
                )
                yield self.frame(
                    generation, {"tool_calls": [{"index": place, "function": {"arguments": arguments}}]}, None
                )
            yield self.frame(generation, {"content": text[3:]}, None)
            yield self.frame(generation, {}, "tool_calls" if last in self.calls else "stop")
            usage = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
            yield b"data: %s\n\n" % orjson.dumps({"id": generation, "choices": [], "usage": usage})
            yield b"data: [DONE]\n\n"
            self.asked[f"{model}: {last}"] += 1
        finally:
            self.open -= 1

    @staticmethod
    def frame(generation: str, delta: dict[str, object], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: %s\n\n" % orjson.dumps({"id": generation, "model": "m", "choices": [choice]})


@contextmanager
def eval_server(say: Say, **settings: object) -> Iterator[EvalServer]:
    """Serve one in a thread."""
    server = EvalServer(say, **settings)  # type: ignore[arg-type]
    app = Starlette(
        routes=[
            Route("/v1/models", server.models),
            Route("/v1/chat/completions", server.chat, methods=["POST"]),
        ]
    )
    listener = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield server
    finally:
        running.should_exit = True
        thread.join()

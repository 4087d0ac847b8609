"""A small OpenAI-compatible server: real streams of answers that a test writes and can hold back."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypedDict

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from tiltyard.arena.pairing import Entrant
from tiltyard.events.ids import new_generation_id
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ChoiceOutcome, FinishReason, GenerationFinished
from tiltyard.identity.canonical import Digest, canonical_json, digest_of
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Weights

HELD_S = 20.0
"""A gate that no test opens ends after this, so that a broken test fails instead of hanging."""


class Gate:
    """A place in an answer where the stream waits until the test opens it."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        self.reached.set()
        await asyncio.to_thread(self._open.wait, HELD_S)


class Refuse(Exception):
    """Raised by an answer: the server refuses with this status and OpenAI error body."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": "error", "param": None, "code": code}}


class Asked(TypedDict):
    """The request body, as far as it is read here."""

    model: str
    messages: list[dict[str, str]]
    user: str


Answering = Callable[[list[dict[str, str]]], Sequence[str | Gate]]


def entrant(name: str, *, temperature: float = 1.0, template: bool = True) -> Entrant:
    """A contestant with a real manifest, so its digest is a real one."""
    manifest = Behaviour(
        weights=Weights(digest=digest_of(b"weights"), size_bytes=7, stored_as=("Q4_1",)),
        architecture={"n_layers": 2},
        tokenizer=digest_of(b"tokenizer"),
        chat_template=digest_of(b"template") if template else None,
        system_prompt=digest_of(name.encode()),
        default_sampling=DefaultSampling(temperature=temperature),
    )
    return Entrant(
        name=name,
        behaviour=manifest.digest,
        description=f"{name}, a stand-in that says what a test wrote.",
        organization="Test bench",
        license="Apache-2.0",
        manifest=manifest,
    )


@dataclass
class StandIn:
    """What each model says, and what it was asked."""

    log: EventLog
    identities: dict[str, Digest]
    answers: dict[str, Answering] = field(default_factory=dict)
    asked: list[tuple[str, list[dict[str, str]]]] = field(default_factory=list)
    served_as: dict[str, Digest] = field(default_factory=dict)
    """Overrides the digest that a model answers with."""
    cut: set[str] = field(default_factory=set)
    """Models whose stream ends without its last frame."""
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released once for each generation event."""

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self.chat, methods=["POST"])])

    async def chat(self, request: Request) -> Response:
        body: Asked = orjson.loads(await request.body())
        model, messages = body["model"], body["messages"]
        self.asked.append((model, messages))
        try:
            pieces = self.answers.get(model, default_answer(model))(messages)
        except Refuse as refused:
            return Response(orjson.dumps(refused.body), refused.status, media_type="application/json")
        generation = new_generation_id()
        identity = self.served_as.get(model, self.identities[model])
        return StreamingResponse(
            self._frames(generation, body, identity, pieces),
            media_type="text/event-stream",
            headers={"x-tiltyard-generation": generation, "x-tiltyard-identity": identity},
        )

    async def _frames(
        self, generation: str, body: Asked, identity: Digest, pieces: Sequence[str | Gate]
    ) -> AsyncIterator[bytes]:
        model = body["model"]
        said: list[str] = []
        finish: FinishReason = "cancelled"

        def frame(delta: dict[str, str], reason: str | None) -> bytes:
            return b"data: %s\n\n" % orjson.dumps(
                {
                    "id": generation,
                    "object": "chat.completion.chunk",
                    "model": model,
                    "system_fingerprint": identity,
                    "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
                }
            )

        try:
            for piece in pieces:
                if isinstance(piece, Gate):
                    await piece.passed()
                    continue
                said.append(piece)
                yield frame({"content": piece}, None)
                await asyncio.sleep(0)
            if model in self.cut:
                finish = "failed"
                return
            finish = "stop"
            await self._record(generation, body, identity, "".join(said), finish)
            yield frame({}, "stop")
            yield b"data: [DONE]\n\n"
        finally:
            if finish != "stop":
                # in a task of its own: this one is being cancelled with its connection
                _tasks.add(
                    asyncio.create_task(self._record(generation, body, identity, "".join(said), finish))
                )

    async def _record(
        self, generation: str, body: Asked, identity: Digest, text: str, finish: FinishReason
    ) -> None:
        response = await asyncio.to_thread(
            self.log.content,
            body["user"],
            canonical_json(
                {"choices": [{"index": 0, "text": text, "token_ids": [], "finish_reason": finish}]}
            ),
        )
        await self.log.append(
            GenerationFinished(
                generation=generation,
                endpoint="chat.completions",
                behaviour=identity,
                deployment=identity,
                alias=body["model"],
                identity=body["model"],
                worker="stand-in",
                prompt=None,
                response=response.ref,
                prompt_token_digest=None,
                sampling=DefaultSampling(),
                seed=0,
                stream=True,
                choices=(ChoiceOutcome(index=0, finish_reason=finish, completion_tokens=1),),
                prompt_tokens=1,
                cached_tokens=0,
                completion_tokens=1,
                total_ms=1.0,
            ),
            subject=generation,
            source="stand-in",
            contents=[response],
        )
        self.ended.release()


_tasks: set[asyncio.Task[None]] = set()


def default_answer(model: str) -> Answering:
    def answer(messages: list[dict[str, str]]) -> Sequence[str]:
        asked = [message["content"] for message in messages if message["role"] == "user"]
        return ["You ", "said ", f"“{asked[-1]}” ", f"(message {len(asked)}).", f"\n\nStyle {len(model)}."]

    return answer


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serve an app on a free port from a thread; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listener.close()
        assert not thread.is_alive(), "the test server did not stop"

"""A worker process with scripted answers, to test what a real model cannot be made to do on demand.

It speaks the worker's protocol (`tiltyard.wire.worker`). The last user message, or the prompt, is the script:
`!count N` says N numbers, `!die N` kills the process after N, `!cut N` ends the stream after N without a
word, `!error N` sends an error frame after N, `!wait` says nothing, `!refuse` answers 400, `!late` 504, `!pieces` says
Chinese and emoji, `!flood N` N pieces of 10 kB, `!hold` waits for `let_go`; anything else is said back. `TILTYARD_STAND_IN_FAIL` makes it fail while it loads.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tiltyard.errors import TiltyardError, to_http
from tiltyard.identity.canonical import digest_of
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, Deployment, Weights
from tiltyard.wire.answers import usage_json
from tiltyard.wire.openai import ChatCompletionRequest, parse_chat_request, parse_completion_request
from tiltyard.wire.sse import DONE_FRAME, frame
from tiltyard.wire.worker import (
    FinishedAnswer,
    FinishedChoice,
    IdentityStatus,
    StepWork,
    WorkerSpec,
    WorkerStatus,
)

TERMS = ("x-tiltyard-class", "x-tiltyard-queue-deadline-ms", "x-tiltyard-deadline-ms")
PIECES = ["你", "好，", "世", "界", "！", "👩‍👩‍👧", "🎏", " 漢字"]


def identity_status(name: str, declaration: IdentityDeclaration) -> IdentityStatus:
    behaviour = Behaviour(
        weights=Weights(digest=digest_of(b"stand-in"), size_bytes=8, stored_as=("F32",)),
        architecture={"layers": 1},
        tokenizer=digest_of(b"tokenizer"),
        chat_template=None,
        default_sampling=declaration.sampling,
    )
    deployment = Deployment(
        behaviour=behaviour.digest, engine_build="stand-in", isa="none", threads=1, block_tokens=32,
        kv_blocks=8, max_batch_tokens=8, hardware="none",
    )  # fmt: skip
    return IdentityStatus(
        name=name,
        behaviour=behaviour.digest,
        deployment=deployment.digest,
        behaviour_manifest=behaviour,
        deployment_manifest=deployment,
        declaration=declaration,
        max_context_tokens=2048,
    )


class StandIn:
    """One worker; `die` is what it does when the script says so."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.identities = {name: identity_status(name, d) for name, d in spec.identities.items()}
        self.running = 0
        self.let_go = threading.Event()
        """Ends every `!hold`."""
        self.flooded = 0
        """Pieces told by `!flood`."""
        self.served: list[str] = []
        self.bodies: list[dict[str, object]] = []
        self.terms: list[dict[str, str]] = []
        self.traces: list[dict[str, str]] = []
        self.state = "ready"
        self.on_idle: Callable[[], None] = lambda: None
        """Called when it drains and nothing runs any more: a process ends then, as a real worker's does."""
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self.answer, methods=["POST"]),
                Route("/v1/completions", self.answer, methods=["POST"]),
                Route("/v1/embeddings", self.embed, methods=["POST"]),
                Route("/worker", self.worker),
                Route("/worker/drain", self.drain, methods=["POST"]),
            ]
        )

    async def worker(self, _request: Request) -> Response:
        status = WorkerStatus(
            worker=self.spec.worker, state=self.state, identities=tuple(self.identities.values()),
            unfinished_tokens=self.running, running=self.running, waiting=0, kv_blocks_used=self.running,
            kv_blocks_cached=0, kv_blocks_total=8, last_step_age_ms=0.0,
        )  # fmt: skip
        return JSONResponse(status.model_dump(mode="json"))

    async def drain(self, _request: Request) -> Response:
        self.state = "draining"
        self._tell_if_idle()
        return JSONResponse({})

    def _tell_if_idle(self) -> None:
        if self.state == "draining" and not self.running:
            self.on_idle()

    async def embed(self, request: Request) -> Response:
        """One vector a text, each the same."""
        asked = orjson.loads(await request.body())
        self.bodies.append(asked)
        data = [{"object": "embedding", "index": n, "embedding": [1.0]} for n in range(len(asked["input"]))]
        usage = {"prompt_tokens": len(data), "total_tokens": len(data)}
        return Response(orjson.dumps({"object": "list", "model": "chat", "data": data, "usage": usage}))

    async def answer(self, request: Request) -> Response:
        chat = request.url.path.endswith("chat/completions")
        body = await request.body()
        try:
            asked = parse_chat_request(body) if chat else parse_completion_request(body)
        except TiltyardError as error:
            return JSONResponse(to_http(error)[2], error.status)
        self.bodies.append(orjson.loads(body))
        generation = request.headers["x-tiltyard-generation"]
        self.served.append(generation)
        text = asked.messages[-1].content if isinstance(asked, ChatCompletionRequest) else str(asked.prompt)
        verb, _, count = text.partition(" ")
        self.terms.append({k: v for k, v in request.headers.items() if k in TERMS})
        self.traces.append({k: v for k, v in request.headers.items() if k in ("traceparent", "tracestate")})
        if verb == "!late":
            error = {"message": "late", "type": "deadline_error", "param": "x-tiltyard-queue-deadline-ms"}
            return JSONResponse({"error": {**error, "code": "deadline_exceeded"}}, 504)
        if verb == "!refuse":
            error = {"message": "too long", "type": "invalid_request_error", "param": "messages"}
            return JSONResponse({"error": {**error, "code": "context_length_exceeded"}}, 400)
        if self.state == "draining":
            error = {"message": "draining", "type": "unavailable_error", "param": None, "code": "unavailable"}
            return JSONResponse({"error": error}, 503)
        if verb in ("!count", "!die", "!cut", "!error"):
            pieces = [f"{i} " for i in range(int(count))]
        elif verb == "!flood":
            pieces = ["x" * 10_000] * int(count)
        elif verb == "!pieces":
            pieces = PIECES
        else:
            pieces = [text[i : i + 3] for i in range(0, len(text), 3)]
        return StreamingResponse(
            self.frames(chat, generation, asked, pieces, verb), media_type="text/event-stream"
        )

    async def frames(
        self, chat: bool, generation: str, asked, pieces: list[str], verb: str
    ) -> AsyncIterator[bytes]:
        self.running += 1
        identity = self.identities[asked.model]
        head = {
            "id": generation,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()),
            "model": asked.model,
            "system_fingerprint": identity.behaviour,
        }
        try:
            if verb == "!hold":
                while not self.let_go.is_set():  # noqa: ASYNC110 - set by the thread of a test
                    await asyncio.sleep(0.005)
            if verb == "!wait" or (verb == "!die" and not pieces):
                await asyncio.sleep(3600 if verb == "!wait" else 0)
            if verb == "!die" and not pieces:
                os._exit(1)
            limit = min(len(pieces), asked.answer_tokens or 10**9)
            for place, piece in enumerate(pieces[:limit]):
                for index in range(asked.n):
                    part = {"delta": {"content": piece}} if chat else {"text": piece}
                    if chat and place == 0:
                        part["delta"] |= {"role": "assistant"}
                    choice = {"index": index, **part, "logprobs": None, "finish_reason": None}
                    yield frame(orjson.dumps({**head, "choices": [{**choice, "token_ids": [place]}]}))
                    self.flooded += verb == "!flood"
                await asyncio.sleep(0.002)
            if verb == "!die":
                os._exit(1)
            if verb == "!cut":
                return
            if verb == "!error":
                error = {"message": "broke", "type": "server_error", "param": None, "code": "engine_failed"}
                yield frame(orjson.dumps({"error": error}))
                return
            reason = "length" if limit < len(pieces) else "stop"
            for index in range(asked.n):
                part = {"delta": {}} if chat else {"text": ""}
                yield frame(
                    orjson.dumps({**head, "choices": [{"index": index, **part, "finish_reason": reason}]})
                )
            choices = tuple(
                FinishedChoice(
                    index=i, text="".join(pieces[:limit]), token_ids=tuple(range(limit)), finish_reason=reason
                )
                for i in range(asked.n)
            )
            finished = FinishedAnswer(
                identity=asked.model, behaviour=identity.behaviour, deployment=identity.deployment,
                sampling=asked.effective_sampling(identity.declaration.sampling), seed=asked.seed or 0,
                prompt_tokens=7, cached_tokens=4, completion_tokens=limit * asked.n,
                prompt_token_digest=digest_of(b"prompt"), choices=choices, queue_ms=1.0, prefill_ms=2.0,
                decode_ms=3.0, time_to_first_token_ms=4.0, peak_kv_blocks=1,
                prefill_work=StepWork(steps=1, prompt_tokens=3, answer_tokens=2, context_tokens=9),
            )  # fmt: skip
            usage = usage_json(7, limit * asked.n, 4)
            last = {**head, "choices": [], "usage": usage, "tiltyard": finished.model_dump(mode="json")}
            yield frame(orjson.dumps(last))
            yield DONE_FRAME
        finally:
            self.running -= 1
            self._tell_if_idle()


def main() -> None:
    spec = WorkerSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    if reason := os.environ.get("TILTYARD_STAND_IN_FAIL"):
        print(f"loading {spec.model_path}\nerror: {reason}", file=sys.stderr)
        sys.exit(1)
    listener = socket.create_server((spec.host, spec.port))
    ready = {"url": f"http://{spec.host}:{listener.getsockname()[1]}", "pid": os.getpid(), "load_ms": 1.0}
    temporary = Path(spec.ready_file + ".part")
    temporary.write_text(json.dumps(ready))
    temporary.replace(spec.ready_file)
    stand_in = StandIn(spec)
    server = uvicorn.Server(uvicorn.Config(stand_in.app, log_level="warning", timeout_graceful_shutdown=5))

    def end() -> None:
        server.should_exit = True

    stand_in.on_idle = end
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()

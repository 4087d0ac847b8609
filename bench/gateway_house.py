"""A gateway and a scripted worker, each a process of its own: what the measurements of the gateway stand on.

The worker speaks the real worker protocol and computes nothing. The last message is its script: `TOKENS PAUSE_MS MORE`, so many
tokens with so long a pause after each; each token is the moment at which it was sent, by the clock that all processes of this machine share, and so many more bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tiltyard.events.log import EventLog
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.app import create_gateway
from tiltyard.gateway.connection import CarefulConnection
from tiltyard.gateway.keyring import KeyRing
from tiltyard.identity.canonical import digest_of
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Deployment, Weights
from tiltyard.router.router import Router
from tiltyard.router.tenants import TenantTerms
from tiltyard.telemetry.tracing import open_tracing
from tiltyard.wire.answers import usage_json
from tiltyard.wire.sse import DONE_FRAME, frame
from tiltyard.wire.telemetry import TelemetrySettings
from tiltyard.wire.worker import FinishedAnswer, FinishedChoice, IdentityStatus, WorkerStatus

MODEL = "scripted"
TERMS = TenantTerms(
    requests_per_minute=10_000_000, tokens_per_minute=1_000_000_000, concurrency=10_000, monthly_budget=9e6
)
"""Every limit is there, and none is reached: what they cost is measured."""


def identity() -> IdentityStatus:
    """The one identity that the worker serves."""
    behaviour = Behaviour(
        weights=Weights(digest=digest_of(b"scripted"), size_bytes=8, stored_as=("F32",)),
        architecture={"layers": 1},
        tokenizer=digest_of(b"tokenizer"),
        chat_template=None,
    )
    deployment = Deployment(
        behaviour=behaviour.digest, engine_build="scripted", isa="none", threads=1, block_tokens=32,
        kv_blocks=8, max_batch_tokens=8, hardware="none",
    )  # fmt: skip
    return IdentityStatus(
        name=MODEL, behaviour=behaviour.digest, deployment=deployment.digest, behaviour_manifest=behaviour,
        deployment_manifest=deployment, declaration=IdentityDeclaration(model=MODEL), max_context_tokens=8192,
    )  # fmt: skip


def scripted_worker() -> Starlette:
    """The worker's app."""
    served = identity()
    running = 0

    async def status(_request: Request) -> Response:
        now = WorkerStatus(
            worker=MODEL, state="ready", identities=(served,), unfinished_tokens=0, running=running, waiting=0,
            kv_blocks_used=0, kv_blocks_cached=0, kv_blocks_total=8, last_step_age_ms=0.0,
        )  # fmt: skip
        return JSONResponse(now.model_dump(mode="json"))

    async def answer(request: Request) -> Response:
        asked = orjson.loads(await request.body())
        count, pause_ms, more = asked["messages"][-1]["content"].split()
        return StreamingResponse(
            frames(int(count), float(pause_ms) / 1000, "x" * int(more)), media_type="text/event-stream"
        )

    async def frames(count: int, pause_s: float, more: str) -> AsyncIterator[bytes]:
        nonlocal running
        running += 1
        head = {
            "id": "gen_scripted", "object": "chat.completion.chunk", "created": 1, "model": MODEL,
            "system_fingerprint": served.behaviour,
        }  # fmt: skip
        try:
            for place in range(count):
                delta = {"content": f"{time.monotonic()!r} {more}"}
                if place == 0:
                    delta["role"] = "assistant"
                choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
                yield frame(orjson.dumps({**head, "choices": [{**choice, "token_ids": [place]}]}))
                if pause_s:
                    await asyncio.sleep(pause_s)
            yield frame(
                orjson.dumps({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            )
            finished = FinishedAnswer(
                identity=MODEL, behaviour=served.behaviour, deployment=served.deployment, sampling=DefaultSampling(),
                seed=0, prompt_tokens=7, cached_tokens=0, completion_tokens=count,
                prompt_token_digest=digest_of(b"prompt"),
                choices=(FinishedChoice(index=0, text="", token_ids=(), finish_reason="stop"),),
                queue_ms=0.0, prefill_ms=0.0, decode_ms=0.0, time_to_first_token_ms=0.0, peak_kv_blocks=1,
            )  # fmt: skip
            last = {**head, "choices": [], "usage": usage_json(7, count, 0)}
            yield frame(orjson.dumps({**last, "tiltyard": finished.model_dump(mode="json")}))
            yield DONE_FRAME
        finally:
            running -= 1

    return Starlette(
        routes=[
            Route("/v1/chat/completions", answer, methods=["POST"]),
            Route("/worker", status),
        ]
    )


async def serve_gateway(worker_url: str, directory: Path) -> None:
    """The gateway's process: one key, every limit, one worker."""
    with EventLog.open(directory / "log.db", keys=directory / "keys.db") as log:
        secret = KeyRing(log).issue("bench", ["inference", "evaluate"], credential="research").secret
        registry = Registry()
        registry.announce(MODEL, worker_url, await registry.ask(worker_url))
        watching = asyncio.create_task(registry.watch())
        tracing = open_tracing(TelemetrySettings(), process="gateway", instance="bench")  # by OTEL_…
        app = create_gateway(router=Router(registry), log=log, tenants={"bench": TERMS}, tracing=tracing)
        await serve(app, {"key": secret})
        await asyncio.to_thread(tracing.close)
        watching.cancel()
        await registry.aclose()


async def serve(app: object, facts: dict[str, str]) -> None:
    """Serve on a free port and say so on standard output."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}", **facts}), flush=True)
    config = uvicorn.Config(app, http=CarefulConnection, log_level="warning", access_log=False)  # type: ignore[arg-type]
    await uvicorn.Server(config).serve(sockets=[listener])


@dataclass(frozen=True)
class House:
    """Where both processes are."""

    worker_url: str
    gateway_url: str
    key: str
    gateway_pid: int

    def gateway_kib(self) -> int:
        """Resident memory of the gateway's process, in KiB."""
        text = Path(f"/proc/{self.gateway_pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])


@contextmanager
def running_house(**environment: str) -> Iterator[House]:
    """Start both processes, the gateway with these further variables; end them after the block."""
    with tempfile.TemporaryDirectory() as directory:
        worker, facts = _started("worker")
        try:
            gateway, gateway_facts = _started("gateway", facts["url"], directory, **environment)
            try:
                yield House(facts["url"], gateway_facts["url"], gateway_facts["key"], gateway.pid)
            finally:
                _ended(gateway)
        finally:
            _ended(worker)


def _started(*words: str, **more: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | more
    process = subprocess.Popen(
        [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, env=environment
    )
    if process.stdout is None or not (line := process.stdout.readline()):
        raise RuntimeError(f"{words[0]} did not start")
    return process, json.loads(line)


def _ended(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate()


def main() -> None:
    """Be one of the processes."""
    if sys.argv[1] == "worker":
        uvicorn_loop(serve(scripted_worker(), {}))
    else:
        uvicorn_loop(serve_gateway(sys.argv[2], Path(sys.argv[3])))


def uvicorn_loop(work: object) -> None:
    """Run under uvloop, as `tiltyard up` does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()

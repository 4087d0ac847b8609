"""The whole way with the real model on real sockets: launcher, worker process, gateway, the openai package."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
from fastapi import FastAPI
from gateway_stage import served
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.fleet.launcher import LocalLauncher
from tiltyard.fleet.records import FleetRecorder
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.app import create_gateway
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.router.router import Router
from tiltyard.wire.worker import WorkerSpec


@dataclass
class House:
    url: str
    worker_url: str
    log: EventLog
    client: OpenAI
    store: Path
    """Where the worker keeps its identities."""
    app: FastAPI

    def forget_tellings(self) -> None:
        """What a restart of the gateway does to answers that were kept in memory."""
        self.app.state.tellings.forget()

    def event(self, generation: str) -> GenerationFinished:
        return self.log.generation(generation)

    def said(self, generation: str) -> dict[str, object]:
        """The first answer as the vault keeps it."""
        event = self.event(generation)
        assert event.response is not None
        choice: dict[str, object] = orjson.loads(self.log.own_words("test").read(event.response))["choices"][
            0
        ]
        return choice


class Loop:
    """An event loop in a thread: the launcher must live while the tests, each with its own loop, run."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def run(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result()  # type: ignore[arg-type]

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@contextmanager
def real_house(model_path: Path, directory: Path) -> Iterator[House]:
    sampling = DefaultSampling(temperature=0.7, max_tokens=64)
    spec = WorkerSpec(
        worker="smollm2-0",
        port=0,
        ready_file=str(directory / "ready"),
        model_path=str(model_path),
        identities={
            "smollm2": IdentityDeclaration(model="smollm2", sampling=sampling),
            "caller": IdentityDeclaration(model="smollm2", sampling=sampling, tool_format="smollm2"),
        },
        threads=2,
        kv_memory_bytes=256 << 20,
        max_sequences=32,
        identity_store=str(directory / "identities"),
    )
    loop = Loop()
    with EventLog.open(directory / "log.db", keys=directory / "keys.db") as log:
        registry = Registry()
        launcher = LocalLauncher(registry, run_directory=directory / "run", recorder=FleetRecorder(log))
        loop.run(launcher.start([spec]))
        try:
            app = create_gateway(router=Router(registry, {"chat": "smollm2"}), log=log)
            with served(app) as url:
                worker_url = registry.workers[0].url
                assert worker_url is not None
                with OpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as client:
                    yield House(url, worker_url, log, client, directory / "identities", app)
        finally:
            loop.run(launcher.stop(drain_s=5))
            loop.run(registry.aclose())
            loop.close()


def say(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]

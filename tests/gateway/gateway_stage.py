"""A gateway on a real socket, before stand-in workers on real sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from stand_in_worker import StandIn

from tiltyard.events.log import EventLog
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.app import create_gateway
from tiltyard.gateway.connection import CarefulConnection, CarefulSocket
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.router.router import Router
from tiltyard.wire.worker import WorkerSpec

ALIASES = {"chat": "plain"}
IDENTITIES = {
    "plain": IdentityDeclaration(model="m", organization="testers", sampling=DefaultSampling(top_p=0.9)),
    "warm": IdentityDeclaration(model="m", sampling=DefaultSampling(temperature=0.5)),
}


def worker_spec(name: str, directory: Path) -> WorkerSpec:
    return WorkerSpec(
        worker=name,
        port=0,
        ready_file=str(directory / f"{name}.ready"),
        model_path="none",
        identities=IDENTITIES,
        threads=1,
        kv_memory_bytes=1 << 20,
        identity_store=str(directory),
    )


def served(app: object) -> AbstractContextManager[str]:
    """Serve an ASGI app on a socket of its own in a thread, with the connections of `tiltyard up`."""
    return served_by(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            http=CarefulConnection,
            ws=CarefulSocket,
            log_level="warning",
            timeout_graceful_shutdown=5,
        )
    )


@contextmanager
def served_by(config: uvicorn.Config) -> Iterator[str]:
    """Serve on a socket of its own in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@dataclass
class Stage:
    """A running gateway with its workers and its log."""

    url: str
    log: EventLog
    workers: list[StandIn]
    registry: Registry
    app: FastAPI
    router: Router


@contextmanager
def staged(log: EventLog, directory: Path, workers: int = 1, **gateway: Any) -> Iterator[Stage]:
    stand_ins = [StandIn(worker_spec(f"stand-in-{i}", directory)) for i in range(workers)]
    registry = Registry()
    with contextmanager(_all_served)([s.app for s in stand_ins]) as urls:

        async def announce() -> None:
            for stand_in, url in zip(stand_ins, urls, strict=True):
                registry.announce(stand_in.spec.worker, url, await registry.ask(url))
            await registry.aclose()

        asyncio.run(announce())
        router = Router(registry, ALIASES)
        app = create_gateway(router=router, log=log, **gateway)
        with served(app) as url:
            yield Stage(url, log, stand_ins, registry, app, router)


def _all_served(apps: list[object]) -> Iterator[list[str]]:
    if not apps:
        yield []
        return
    with served(apps[0]) as url, contextmanager(_all_served)(apps[1:]) as rest:
        yield [url, *rest]

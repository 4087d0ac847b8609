"""Two gateway processes on one PostgreSQL and one Redis, a worker process, and one behind a network that can be cut."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import httpx2
import orjson
from network import Network, network, until

from real_postgres import RealPostgres
from tiltyard.events.log import EventLog
from tiltyard.events.places import KeysPlace
from tiltyard.events.schema import GenerationFinished, WorkerAdded
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.wire.worker import WorkerSpec

HERE = Path(__file__).parent
STAND_IN = HERE.parent / "gateway" / "stand_in_worker.py"
PATIENCE_S = 60.0
ANSWERED = "[DONE]"


@dataclass
class Process:
    """Something that runs."""

    directory: Path
    process: subprocess.Popen[bytes]

    async def url(self) -> str:
        """Where it serves, as it writes into a file."""

        async def there() -> bool:
            assert self.process.poll() is None, (self.directory / "output").read_text()
            return (self.directory / "ready").exists()

        await until(there)
        return str(orjson.loads((self.directory / "ready").read_bytes())["url"])


class Far:
    """A network on a loop of its own, since every test has another one."""

    def __init__(self, server: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._made = network(server)
        self._network: Network = asyncio.run_coroutine_threadsafe(
            self._made.__aenter__(), self._loop
        ).result()
        self.url = self._network.url

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._network.cut)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._network.mend)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._made.__aexit__(None, None, None), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Yard:
    """Everything that runs, and what is shared."""

    def __init__(self, home: Path, postgres: RealPostgres, redis_url: str) -> None:
        self.home = home
        self.postgres = postgres
        urls = postgres.database(), postgres.database()
        master = home / "master.key"
        self.log = EventLog.open(urls[0], keys=KeysPlace(urls[1], master))
        self._environment = {
            **os.environ,
            "TILTYARD_LOG": urls[0],
            "TILTYARD_KEYS": urls[1],
            "TILTYARD_MASTER_KEY": str(master),
            "TILTYARD_LIMITS_URL": redis_url,
        }
        self._started: list[Process] = []
        self.near = self._worker("near")
        distant = self._worker("far")
        gateways = self.gateway(), self.gateway()
        self.far = Far(asyncio.run(distant.url()))
        self._add("near", asyncio.run(self.near.url()))
        self._add("far", self.far.url)
        self.one, self.two = (asyncio.run(gateway.url()) for gateway in gateways)

    def gateway(self) -> Process:
        """Start one more."""
        directory = self._directory("gateway")
        return self._start(HERE / "gateway_process.py", directory, directory)

    def _worker(self, name: str) -> Process:
        directory = self._directory(name)
        spec = WorkerSpec(
            worker=name,
            port=0,
            ready_file=str(directory / "ready"),
            model_path="none",
            identities={name: IdentityDeclaration(model="m") for name in ("plain", "warm")},
            threads=1,
            kv_memory_bytes=1 << 20,
            identity_store=str(directory),
        )
        (directory / "spec.json").write_text(spec.model_dump_json())
        return self._start(STAND_IN, directory, directory / "spec.json")

    def _directory(self, name: str) -> Path:
        directory = self.home / f"{name}-{len(self._started)}"
        directory.mkdir()
        return directory

    def _start(self, program: Path, directory: Path, argument: Path) -> Process:
        with (directory / "output").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, program, argument], stdout=output, stderr=output, env=self._environment
            )
        self._started.append(Process(directory, process))
        return self._started[-1]

    def _add(self, name: str, url: str) -> None:
        added = WorkerAdded(worker=name, url=url, engine="tiltyard", identities={}, by="tests")
        self.log.append_blocking(added, subject=name, source="tests")

    def close(self) -> None:
        for one in self._started:
            one.process.kill()
            one.process.wait()
        self.far.close()
        self.log.close()


@dataclass
class Drill:
    """A yard, asked by one test."""

    yard: Yard
    http: httpx2.AsyncClient
    after: int
    """The newest event before the test."""

    async def fleet(self, gateway: str) -> dict[str, dict[str, object]]:
        told = (await self.http.get(f"{gateway}/v1/fleet")).json()["data"]
        return {worker["worker"]: worker for worker in told}

    async def alive(self, gateway: str, *names: str) -> None:
        """Wait until exactly these workers take work there."""

        async def so() -> bool:
            return {n for n, w in (await self.fleet(gateway)).items() if w["alive"]} == set(names)

        await until(so)

    async def requests(self, gateway: str, *counts: int) -> None:
        """Wait until the workers have so many requests there."""

        async def so() -> bool:
            return [worker["requests"] for worker in (await self.fleet(gateway)).values()] == [*counts]

        await until(so)

    async def answers(self, gateway: str) -> None:
        """Wait until a request is answered there."""

        async def so() -> bool:
            return last_frame(await self.ask(gateway, "hello")) == ANSWERED

        await until(so)

    async def ask(self, gateway: str, script: str, *, key: str = "any") -> httpx2.Response:
        """Stream one answer to its end."""
        body = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": script}]}
        headers = {"authorization": f"Bearer {key}"}
        return await self.http.post(f"{gateway}/v1/chat/completions", json=body, headers=headers)

    @property
    def events(self) -> list[GenerationFinished]:
        """What the log has of this test's requests."""
        found = self.yard.log.read(after=self.after, types=(GenerationFinished,))
        return [event.data for event in found if isinstance(event.data, GenerationFinished)]


def last_frame(answer: httpx2.Response) -> dict[str, object] | str:
    """What a stream ended with: `[DONE]`, or a JSON object; an answer that is none as it is."""
    data = answer.text.strip().rpartition("data: ")[2]
    return data if data == ANSWERED else orjson.loads(data)


def code_of(answer: httpx2.Response) -> str:
    """The code of an error frame, or of an error that is the answer."""
    body = last_frame(answer)
    assert isinstance(body, dict), answer.text
    error = body["error"]
    assert isinstance(error, dict)
    return str(error["code"])

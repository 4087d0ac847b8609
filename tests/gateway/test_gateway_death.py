"""What a client sees when a worker process dies under its request, at each moment."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import orjson
import uvicorn
from gateway_stage import ALIASES, worker_spec

from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.fleet.keeper import Patience
from tiltyard.fleet.launcher import LocalLauncher
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.app import create_gateway
from tiltyard.router.router import Router

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in_worker.py")))
PATIENCE_S = 30


@dataclass
class Launched:
    http: httpx2.AsyncClient
    log: EventLog
    registry: Registry
    directory: Path
    launcher: LocalLauncher
    router: Router

    def pid(self, worker: str) -> int:
        return int(json.loads((self.directory / f"{worker}.ready").read_bytes())["pid"])

    def events(self) -> list[GenerationFinished]:
        return [e.data for e in self.log.read() if isinstance(e.data, GenerationFinished)]

    async def ask(self, script: str, *, stream: bool = False) -> httpx2.Response:
        messages = [{"role": "user", "content": script}]
        body = {"model": "chat", "messages": messages, "stream": stream}
        return await self.http.post("/v1/chat/completions", json=body)

    async def served_by(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.registry.serving("plain")) != count:  # noqa: ASYNC110 - processes start
                await asyncio.sleep(0.02)

    async def running_on(self, place: int) -> None:
        url = self.registry.workers[place].url
        async with asyncio.timeout(PATIENCE_S):
            while not (await self.http.get(f"{url}/worker")).json()["running"]:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.02)


@asynccontextmanager
async def launched(directory: Path, workers: int) -> AsyncIterator[Launched]:
    with EventLog.open(directory / "log.db", keys=directory / "keys.db") as log:
        registry = Registry()
        launcher = LocalLauncher(
            registry,
            run_directory=directory / "run",
            command=STAND_IN,
            patience=Patience(first_back_off_s=0.05),
        )
        await launcher.start([worker_spec(f"w{i}", directory) for i in range(workers)])
        router = Router(registry, ALIASES)
        app = create_gateway(router=router, log=log)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        serving = asyncio.create_task(server.serve())
        try:
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
                yield Launched(http, log, registry, directory, launcher, router)
        finally:
            server.should_exit = True
            await serving
            await launcher.stop(drain_s=0)
            await registry.aclose()


async def test_a_death_in_mid_stream_is_an_error_frame_and_the_worker_comes_back(tmp_path: Path) -> None:
    async with launched(tmp_path, 1) as house:
        answer = await house.ask("!die 3", stream=True)
        assert answer.status_code == 200
        assert "[DONE]" not in answer.text
        *frames, last = answer.text.strip().split("\n\n")
        said = [orjson.loads(f[6:])["choices"][0]["delta"]["content"] for f in frames]
        assert said == ["0 ", "1 ", "2 "][: len(said)]  # the last ones may have died with the worker
        assert orjson.loads(last[6:])["error"]["code"] == "worker_lost"
        await house.served_by(1)
        assert (await house.ask("well again")).json()["choices"][0]["message"]["content"] == "well again"
        first, second = house.events()
        assert (first.choices[0].finish_reason, first.error, first.worker) == ("failed", "worker_lost", "w0")
        assert first.choices[0].completion_tokens == len(said)
        assert second.choices[0].finish_reason == "stop"


async def test_a_death_before_the_first_byte_moves_the_request_to_another_worker(tmp_path: Path) -> None:
    async with launched(tmp_path, 2) as house:
        asking = asyncio.create_task(house.ask("!wait", stream=True))
        await house.running_on(0)
        os.kill(house.pid("w0"), signal.SIGKILL)
        await house.running_on(1)
        assert not asking.done()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S):
            while not house.events():  # noqa: ASYNC110 - another task's
                await asyncio.sleep(0.02)
        (event,) = house.events()
        assert (event.worker, event.choices[0].finish_reason) == ("w1", "cancelled")


async def test_a_request_is_moved_once_only(tmp_path: Path) -> None:
    async with launched(tmp_path, 3) as house:
        names = [worker.name for worker in house.registry.workers]
        before = [house.pid(name) for name in names]
        answer = await house.ask("!die 0")
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_lost")
        await house.served_by(3)
        survivors = set(before) & {house.pid(name) for name in names}
        assert len(survivors) == 1  # the third never heard of it


async def test_the_last_worker_dying_is_unavailable_with_a_time_to_come_back(tmp_path: Path) -> None:
    async with launched(tmp_path, 1) as house:
        answer = await house.ask("!die 0")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert answer.headers["retry-after"] == "2"
        (event,) = house.events()
        assert (event.choices[0].finish_reason, event.error) == ("failed", "unavailable")


async def test_a_worker_that_is_stopped_loses_what_it_has_not_begun_to_another(tmp_path: Path) -> None:
    """vLLM #39863: a hung server keeps its connections; who waits on them would wait for ever."""
    async with launched(tmp_path, 2) as house:
        waiting = asyncio.create_task(house.ask("!wait", stream=True))
        await house.running_on(0)
        stopped = house.pid("w0")
        os.kill(stopped, signal.SIGSTOP)
        try:
            await house.running_on(1)  # its lease lapsed, and the request went to the other
            assert not waiting.done()
            assert house.router.loads.requests == 1
            assert [worker.name for worker in house.registry.serving("plain")] == ["w1"]
        finally:
            os.kill(stopped, signal.SIGCONT)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await house.served_by(2)
        async with asyncio.timeout(PATIENCE_S):
            while not house.events():  # noqa: ASYNC110 - another task's
                await asyncio.sleep(0.02)
        (event,) = house.events()
        assert (event.worker, event.choices[0].finish_reason) == ("w1", "cancelled")
        assert house.router.loads.requests == 0


async def test_every_worker_is_restarted_under_load_and_no_request_fails(tmp_path: Path) -> None:
    async with launched(tmp_path, 2) as house:
        before = {worker.name: house.pid(worker.name) for worker in house.registry.workers}
        ending, told = asyncio.Event(), []

        async def client() -> None:
            while not ending.is_set():
                told.append(await house.ask("!count 20", stream=True))

        clients = [asyncio.create_task(client()) for _ in range(4)]
        assert await house.launcher.roll(drain_s=20) == 2
        ending.set()
        await asyncio.gather(*clients)
        assert {worker.name: house.pid(worker.name) for worker in house.registry.workers}.items().isdisjoint(
            before.items()
        )
        assert {answer.status_code for answer in told} == {200}
        assert all(answer.text.endswith("data: [DONE]\n\n") for answer in told)
        assert [event.error for event in house.events()] == [None] * len(told)

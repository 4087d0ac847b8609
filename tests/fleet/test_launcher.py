from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.events.log import EventLog
from tiltyard.events.schema import IdentityRegistered, WorkerReady, WorkerStopped
from tiltyard.fleet.keeper import Patience
from tiltyard.fleet.launcher import LocalLauncher
from tiltyard.fleet.place import WorkerFailed
from tiltyard.fleet.records import FleetRecorder
from tiltyard.fleet.registry import Registry
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.wire.worker import WorkerSpec, WorkerStatus

STAND_IN = (sys.executable, str(Path(__file__).parents[1] / "gateway" / "stand_in_worker.py"))


def spec(name: str, directory: Path) -> WorkerSpec:
    return WorkerSpec(
        worker=name,
        port=0,
        ready_file=str(directory / f"{name}.ready"),
        model_path="none.gguf",
        identities={name.upper(): IdentityDeclaration(model="m")},
        threads=1,
        kv_memory_bytes=1 << 20,
        identity_store=str(directory),
    )


@asynccontextmanager
async def launched(directory: Path, *names: str) -> AsyncIterator[tuple[Registry, LocalLauncher, EventLog]]:
    with EventLog.open(directory / "log.db", keys=directory / "keys.db") as log:
        registry = Registry()
        launcher = LocalLauncher(
            registry,
            run_directory=directory / "run",
            recorder=FleetRecorder(log),
            command=STAND_IN,
            patience=Patience(first_back_off_s=0.05),
        )
        try:
            await launcher.start([spec(name, directory) for name in names])
            yield registry, launcher, log
        finally:
            await launcher.stop(drain_s=1)
            await registry.aclose()


async def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the process ends when it ends
            await asyncio.sleep(0.02)


def pid_of(directory: Path, name: str) -> int:
    return int(httpx2.Response(200, content=(directory / f"{name}.ready").read_bytes()).json()["pid"])


async def test_all_workers_serve_after_start_and_none_lives_after_stop(tmp_path: Path) -> None:
    async with launched(tmp_path, "one", "two") as (registry, launcher, log):
        assert [worker.name for worker in registry.serving("ONE")] == ["one"]
        assert [worker.name for worker in registry.serving("TWO")] == ["two"]
        pids = [pid_of(tmp_path, name) for name in ("one", "two")]
        assert [event.type for event in log.read(types=[IdentityRegistered, WorkerReady])].count(
            WorkerReady.TYPE
        ) == 2
        assert sorted(e.subject for e in log.read(types=[IdentityRegistered])) == ["ONE", "TWO"]
        await launcher.stop(drain_s=1)
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert registry.serving("ONE") == []
        assert sorted(event.subject for event in log.read(types=[WorkerStopped])) == ["one", "two"]
        assert registry.identity_names == ("ONE", "TWO")


async def test_a_killed_worker_is_noticed_recorded_and_started_again(tmp_path: Path) -> None:
    async with launched(tmp_path, "one") as (registry, _, log):
        first = pid_of(tmp_path, "one")
        os.kill(first, signal.SIGKILL)
        await until(lambda: log.find(WorkerStopped, subject="one") is not None)
        stopped = log.find(WorkerStopped, subject="one")
        assert stopped is not None
        assert isinstance(stopped.data, WorkerStopped)
        assert stopped.data.reason == "killed by SIGKILL"
        await until(lambda: registry.serving("ONE"))
        assert pid_of(tmp_path, "one") != first
        # Known already: registered once, though served twice.
        assert len(list(log.read(types=[IdentityRegistered]))) == 1
        assert len(list(log.read(types=[WorkerReady]))) == 2


async def test_a_worker_that_fails_after_its_log_was_deleted_is_started_again(tmp_path: Path) -> None:
    async with launched(tmp_path, "one") as (registry, _, log):
        first = pid_of(tmp_path, "one")
        (tmp_path / "run" / "one.log").unlink()
        url = f"{registry.workers[0].url}/v1/chat/completions"
        body = {"model": "ONE", "messages": [{"role": "user", "content": "!die 0"}], "seed": 1}
        async with httpx2.AsyncClient(headers={"x-tiltyard-generation": "gen_1"}) as http:
            with pytest.raises(httpx2.HTTPError):
                await http.post(url, json=body)
        await until(lambda: registry.serving("ONE") and pid_of(tmp_path, "one") != first)
        stopped = log.find(WorkerStopped, subject="one")
        assert stopped is not None
        assert isinstance(stopped.data, WorkerStopped)
        assert stopped.data.reason == "exit status 1: it said nothing"


async def test_a_worker_that_does_not_answer_as_a_worker_is_an_error_and_no_endless_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nonsense(_self: Registry, _url: str) -> WorkerStatus:
        return WorkerStatus.model_validate({"worker": "one"})

    monkeypatch.setattr(Registry, "ask", nonsense)
    async with asyncio.timeout(20):
        with pytest.raises(WorkerFailed, match="does not answer as a worker does"):
            async with launched(tmp_path, "one"):
                pytest.fail("it must not start")


async def test_a_worker_that_cannot_load_says_why_and_takes_the_others_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILTYARD_STAND_IN_FAIL", "none.gguf is damaged at byte 12")
    with pytest.raises(
        WorkerFailed, match=r"worker one did not start: none.gguf is damaged at byte 12 .*one\.log"
    ):
        async with launched(tmp_path, "one"):
            pytest.fail("it must not start")


async def test_a_worker_that_cannot_load_is_not_blamed_for_an_earlier_ones_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "one.log").write_text("error: yesterday's reason\n")
    monkeypatch.setattr(f"{__name__}.STAND_IN", (sys.executable, "-c", "raise SystemExit(1)"))
    with pytest.raises(WorkerFailed, match="worker one did not start: it said nothing "):
        async with launched(tmp_path, "one"):
            pytest.fail("it must not start")


async def test_a_command_that_does_not_exist_is_one_clear_error(tmp_path: Path) -> None:
    registry = Registry()
    launcher = LocalLauncher(registry, run_directory=tmp_path, command=["/nowhere/python"])
    with pytest.raises(ConfigurationError, match=r"worker one cannot be started: .*No such file"):
        await launcher.start([spec("one", tmp_path)])
    await registry.aclose()


async def test_a_worker_that_stops_answering_takes_no_new_work_and_comes_back(tmp_path: Path) -> None:
    async with launched(tmp_path, "one") as (registry, _, _log):
        worker = registry.workers[0]
        url = worker.url
        worker.url = "http://127.0.0.1:9"  # nobody listens on the discard port
        await until(lambda: not registry.serving("ONE"))
        assert worker.note == "does not answer: ConnectError"
        worker.url = url
        await until(lambda: registry.serving("ONE"))

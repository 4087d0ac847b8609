"""Groups of replicas: scaled, rolled under load, and what becomes of a worker that hangs or grows too large."""

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

from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.schema import WorkerStopped
from tiltyard.fleet.autoscale import ScalingPolicy
from tiltyard.fleet.autoscaler import Autoscaler, Demand
from tiltyard.fleet.keeper import Patience
from tiltyard.fleet.launcher import LocalLauncher
from tiltyard.fleet.records import FleetRecorder
from tiltyard.fleet.registry import Registry
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.wire.worker import WorkerSpec

STAND_IN = (sys.executable, str(Path(__file__).parents[1] / "gateway" / "stand_in_worker.py"))


def spec(directory: Path) -> WorkerSpec:
    return WorkerSpec(
        worker="w",
        port=0,
        ready_file=str(directory / "w.ready"),
        model_path="none.gguf",
        identities={"ONE": IdentityDeclaration(model="m")},
        threads=1,
        kv_memory_bytes=1 << 20,
        identity_store=str(directory),
    )


@asynccontextmanager
async def launched(
    directory: Path, replicas: int = 1, *, memory_limit_bytes: int | None = None, hung_s: float = 15.0
) -> AsyncIterator[tuple[Registry, LocalLauncher, EventLog]]:
    with EventLog.open(directory / "log.db", keys=directory / "keys.db") as log:
        registry = Registry()
        launcher = LocalLauncher(
            registry,
            run_directory=directory / "run",
            recorder=FleetRecorder(log),
            command=STAND_IN,
            patience=Patience(first_back_off_s=0.05, hung_s=hung_s, watch_s=0.1),
            memory_limit_bytes=memory_limit_bytes,
        )
        try:
            await launcher.start([spec(directory)], replicas)
            yield registry, launcher, log
        finally:
            await launcher.stop(drain_s=1)
            await registry.aclose()


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - processes start and end when they do
            await asyncio.sleep(0.02)


def pid_of(directory: Path, name: str) -> int:
    return int(httpx2.Response(200, content=(directory / f"{name}.ready").read_bytes()).json()["pid"])


def names(registry: Registry) -> set[str]:
    return {worker.name for worker in registry.serving("ONE")}


async def test_a_group_grows_and_shrinks_and_rolls(tmp_path: Path) -> None:
    async with launched(tmp_path) as (registry, launcher, log):
        await launcher.scale("w", 3)
        await until(lambda: names(registry) == {"w", "w-2", "w-3"})
        assert launcher.groups == {"w": (3, 0)}
        before = {name: pid_of(tmp_path, name) for name in names(registry)}
        told: list[str] = []
        assert await launcher.roll(drain_s=1, told=told.append) == 3
        assert told == ["w", "w-2", "w-3"]
        assert names(registry) == set(before)
        assert not {pid_of(tmp_path, name) for name in before} & set(before.values())
        await launcher.scale("w", 1, drain_s=0.5)
        await until(lambda: names(registry) == {"w"})
        await until(lambda: len(list(log.read(types=[WorkerStopped]))) == 5)
        stopped = [e.data for e in log.read(types=[WorkerStopped]) if isinstance(e.data, WorkerStopped)]
        assert {data.reason.partition(" (")[0] for data in stopped[:3]} == {"restarted"}
        assert {data.reason.partition(" (")[0] for data in stopped[3:]} == {"scaled down"}
        with pytest.raises(NotFound, match="no group of workers 'v'; there are: w"):
            await launcher.scale("v", 1)
        with pytest.raises(InvalidRequest, match="replicas is -1"):
            await launcher.scale("w", -1)
        with pytest.raises(NotFound, match="no worker 'w-9' here; there are: w"):
            await launcher.restart("w-9")


async def test_a_single_worker_is_rolled_behind_a_second_one(tmp_path: Path) -> None:
    """At no moment does nobody serve."""
    async with launched(tmp_path) as (registry, launcher, _):
        gaps = 0

        async def watch() -> None:
            nonlocal gaps
            while True:
                gaps += not names(registry)
                await asyncio.sleep(0.002)

        watching = asyncio.create_task(watch())
        first = pid_of(tmp_path, "w")
        assert await launcher.roll(drain_s=1) == 1
        watching.cancel()
        assert gaps == 0
        assert pid_of(tmp_path, "w") != first
        await until(lambda: names(registry) == {"w"})


async def test_a_worker_that_is_stopped_is_killed_and_started_again(tmp_path: Path) -> None:
    async with launched(tmp_path, hung_s=0.5) as (registry, _, log):
        first = pid_of(tmp_path, "w")
        os.kill(first, signal.SIGSTOP)
        await until(lambda: log.find(WorkerStopped, subject="w") is not None)
        stopped = log.find(WorkerStopped, subject="w")
        assert stopped is not None
        assert isinstance(stopped.data, WorkerStopped)
        assert stopped.data.reason.startswith("answered nobody in time for ")
        assert stopped.data.reason.endswith("(killed by SIGKILL)")
        await until(lambda: names(registry) == {"w"})
        assert pid_of(tmp_path, "w") != first


async def test_a_worker_that_outgrows_its_memory_is_drained_and_started_again(tmp_path: Path) -> None:
    async with launched(tmp_path, memory_limit_bytes=1 << 20) as (_, _, log):
        await until(lambda: log.find(WorkerStopped, subject="w") is not None)
        stopped = log.find(WorkerStopped, subject="w")
        assert stopped is not None
        assert isinstance(stopped.data, WorkerStopped)
        assert "MB; its limit is 1 MB" in stopped.data.reason


async def test_the_autoscaler_sets_a_group_by_load_or_by_hand(tmp_path: Path) -> None:
    async with launched(tmp_path, 0) as (registry, launcher, _):
        waiting, fixed, now = 0, None, 0.0
        scaler = Autoscaler(
            launcher,
            registry,
            {"w": ScalingPolicy(target_tokens=100, minimum=0, maximum=4, idle_s=10.0)},
            Demand(lambda _worker: 0, lambda identities: waiting if "ONE" in identities else 0),
            fixed=lambda _identities: fixed,
            drain_s=0.1,
            clock=lambda: now,
        )
        await scaler.look()
        assert launcher.groups == {"w": (0, 0)}
        waiting = 50
        await scaler.look()
        assert scaler.latest["w"] == (1, "somebody waits and there is no replica")
        await until(lambda: names(registry) == {"w"})
        waiting, fixed = 0, 2
        await scaler.look()
        await until(lambda: names(registry) == {"w", "w-2"})
        fixed = None
        for later in (20.0, 40.0, 60.0, 460.0, 580.0):
            now = later
            await scaler.look()
        await until(lambda: not names(registry))
        assert scaler.latest["w"].replicas == 0

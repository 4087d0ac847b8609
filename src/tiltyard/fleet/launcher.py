"""Starts worker processes on this machine, starts them again when they die, drains them at the end."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx2
from pydantic import ValidationError

from tiltyard.errors import TiltyardError
from tiltyard.fleet.process import LaunchProgress, WorkerFailed, WorkerProcess
from tiltyard.fleet.records import FleetRecorder
from tiltyard.fleet.registry import Registry, Worker
from tiltyard.wire.worker import WorkerSpec

COMMAND = (sys.executable, "-m", "tiltyard.worker")
FIRST_BACK_OFF_S = 0.5
LONGEST_BACK_OFF_S = 30.0
STEADY_AFTER_S = 60.0
"""A worker that served so long starts with the first back-off again."""
DRAIN_ASK_S = 5.0
SETTLE_S = 5.0
"""How long the ends of all workers may take to be recorded."""

_logger = logging.getLogger(__name__)


def _report_nothing(_progress: LaunchProgress) -> None:
    """The default: nobody watches the start."""


class LocalLauncher:
    """Keeps one process a spec running and the registry true; `start`, then `stop`."""

    def __init__(
        self,
        registry: Registry,
        *,
        run_directory: Path,
        recorder: FleetRecorder | None = None,
        report: Callable[[LaunchProgress], None] = _report_nothing,
        command: Sequence[str] = COMMAND,
        load_timeout_s: float = 600.0,
        first_back_off_s: float = FIRST_BACK_OFF_S,
    ) -> None:
        self._registry = registry
        self._run_directory = run_directory
        self._recorder = recorder
        self._report = report
        self._command = tuple(command)
        self._load_timeout_s = load_timeout_s
        self._first_back_off_s = first_back_off_s
        self._processes: dict[str, WorkerProcess] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._watching: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    async def start(self, specs: Sequence[WorkerSpec]) -> None:
        """Start all workers at once and return when all serve.

        Raises `WorkerFailed` with the first worker's last words if one does not come up; the others are
        ended then.
        """
        self._watching.append(asyncio.create_task(self._registry.watch()))
        firsts: list[asyncio.Future[None]] = []
        for spec in specs:
            self._registry.expect(spec.worker, spec.identities)
            first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            firsts.append(first)
            self._tasks.append(asyncio.create_task(self._keep(spec, first)))
        try:
            await asyncio.gather(*firsts)
        except BaseException:
            for first in firsts:
                first.cancel()
            await self.stop(drain_s=0)
            raise

    async def stop(self, *, drain_s: float = 20.0) -> None:
        """Drain every worker, end it, and kill what has not ended `drain_s` later."""
        self._stopping.set()
        await asyncio.gather(*(self._end(name, p, drain_s) for name, p in self._processes.items()))
        if self._tasks:  # they end by themselves now, once the ends are recorded
            await asyncio.wait(self._tasks, timeout=SETTLE_S)
        for task in (*self._tasks, *self._watching):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._watching, return_exceptions=True)

    async def _end(self, name: str, process: WorkerProcess, drain_s: float) -> None:
        worker = next((w for w in self._registry.workers if w.name == name), None)
        if drain_s > 0 and not await self._drains(worker):
            drain_s = 0  # it cannot be asked, or is still loading; do not wait for it
        await process.end(drain_s)

    async def _drains(self, worker: Worker | None) -> bool:
        """Ask a worker to finish what runs and end; False if it does not hear."""
        if worker is None or worker.url is None:
            return False
        try:
            async with httpx2.AsyncClient(timeout=DRAIN_ASK_S, trust_env=False) as http:
                return (await http.post(worker.url + "/worker/drain")).is_success
        except httpx2.HTTPError:
            return False

    async def _keep(self, spec: WorkerSpec, first: asyncio.Future[None]) -> None:
        """Start the worker over and over until the launcher stops."""
        back_off_s = self._first_back_off_s
        while not self._stopping.is_set():
            served_s = 0.0
            try:
                served_s = await self._run_once(spec, first)
            except TiltyardError as error:
                self._registry.withdraw(spec.worker, error.message)
                if not first.done():
                    first.set_exception(error)
                    return
                if not self._stopping.is_set():
                    _logger.error("%s", error.message)
            except Exception as mistake:  # ours; the worker must be started again all the same
                self._registry.withdraw(spec.worker, f"the launcher broke: {mistake}")
                if not first.done():
                    first.set_exception(mistake)
                    return
                _logger.exception("watching worker %s broke", spec.worker)
            if served_s > STEADY_AFTER_S:
                back_off_s = self._first_back_off_s
            try:
                await asyncio.wait_for(self._stopping.wait(), back_off_s)
            except TimeoutError:
                back_off_s = min(2 * back_off_s, LONGEST_BACK_OFF_S)

    async def _run_once(self, spec: WorkerSpec, first: asyncio.Future[None]) -> float:
        """Run one process to its end; returns how many seconds it served."""
        process = await WorkerProcess.start(spec, self._command, self._run_directory)
        self._processes[spec.worker] = process
        try:
            ready = await process.until_ready(self._load_timeout_s, self._report)
            try:
                status = await self._registry.ask(ready.url)
            except (httpx2.HTTPError, ValidationError) as error:
                raise WorkerFailed(
                    f"worker {spec.worker} said it was ready and does not answer as a worker does: {error}"
                ) from error
            if self._recorder is not None:
                await self._recorder.ready(status, ready.load_ms)
            self._registry.announce(spec.worker, ready.url, status)
            if not first.done():
                first.set_result(None)
            began = time.monotonic()
            reason = await process.ended()
            self._registry.withdraw(spec.worker, reason)
            if self._recorder is not None:
                await self._recorder.stopped(spec.worker, reason)
            if not self._stopping.is_set():
                _logger.error("worker %s ended: %s; starting it again", spec.worker, reason)
            return time.monotonic() - began
        finally:
            await process.end(0)

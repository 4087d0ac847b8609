"""Keeps one worker running on a place: starts it again when it dies or hangs, drains it before it goes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx2
from pydantic import ValidationError

from tiltyard.errors import TiltyardError
from tiltyard.fleet.place import LaunchProgress, Place, Placed, Ready, WorkerFailed
from tiltyard.fleet.records import FleetRecorder
from tiltyard.fleet.registry import Registry, Worker
from tiltyard.wire.worker import WorkerSpec, WorkerStatus

STEADY_AFTER_S = 60.0
"""A worker that served so long starts with the first back-off again."""
DRAIN_ASK_S = 5.0
FIRST_STEP_S = 30.0
"""A worker that says it is ready must have completed a step so lately."""
READY_ASK_EVERY_S = 0.05
READY_ASKS_S = 10.0
"""How long a worker that says it is ready may leave that unproved."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """How long a keeper waits for what, in seconds."""

    load_s: float = 600.0
    first_back_off_s: float = 0.5
    longest_back_off_s: float = 30.0
    hung_s: float = 10.0
    """A process that lives, and whose lease has lapsed for so long or whose steps have hung for as much longer, is killed."""
    watch_s: float = 1.0
    """Between two looks at a running worker."""


class Keeper:
    """One worker, kept until `retire`."""

    def __init__(
        self,
        spec: WorkerSpec,
        place: Place,
        registry: Registry,
        *,
        recorder: FleetRecorder | None,
        report: Callable[[LaunchProgress], None],
        patience: Patience,
        memory_limit_bytes: int | None = None,
    ) -> None:
        self.spec = spec
        self._place = place
        self._registry = registry
        self._recorder = recorder
        self._report = report
        self._patience = patience
        self._memory_limit_bytes = memory_limit_bytes
        self._process: Placed | None = None
        self._retiring = asyncio.Event()
        self._again = False
        """Whether the process ends because it is to be started anew, at once."""
        self._serves = asyncio.Event()
        self._why: str | None = None
        """Why we ended the process, where it was we."""
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it serves for the first time; has the failure where it did not."""
        registry.expect(spec.worker, spec.identities)
        self._task = asyncio.create_task(self._keep())

    @property
    def name(self) -> str:
        """Of the worker."""
        return self.spec.worker

    @property
    def serves(self) -> bool:
        """Whether the process has proved that it serves and has not ended since."""
        return self._serves.is_set()

    async def until_it_serves(self) -> None:
        """Wait; for ever, if it never does."""
        await self._serves.wait()

    async def restart(self, drain_s: float) -> None:
        """Let it finish what it has, for `drain_s` at most, end it, start it anew; returns when it serves again.

        Raises `WorkerFailed` when it does not come back in the time that loading may take.
        """
        self._again = True
        self._serves.clear()
        self._why = "restarted"
        await self._end(drain_s)
        try:
            await asyncio.wait_for(self._serves.wait(), self._patience.load_s)
        except TimeoutError:
            raise WorkerFailed(
                f"worker {self.name} did not serve again within {self._patience.load_s:.0f} s of its restart"
            ) from None

    async def retire(self, drain_s: float, why: str | None = None) -> None:
        """Let it finish what it has, for `drain_s` at most, and end it for good; returns when that is recorded."""
        self._retiring.set()
        self._why = self._why or why
        await self._end(drain_s)
        if not self.first.done():
            self.first.cancel()
        await asyncio.wait({self._task})

    def cancel(self) -> None:
        """Give up whatever the keeper still does."""
        self._task.cancel()

    async def _end(self, drain_s: float) -> None:
        process = self._process
        if process is None:
            return
        if drain_s > 0 and not await self._drains():
            drain_s = 0  # it cannot be asked, or is still loading; do not wait for it
        await process.end(drain_s)

    async def _drains(self) -> bool:
        """Ask the worker to finish what runs and end; False if it does not hear."""
        worker = self._worker
        if worker is None or worker.url is None:
            return False
        if worker.status is not None:  # no new work from this moment, not from the next look of the registry
            self._registry.announce(
                self.name, worker.url, worker.status.model_copy(update={"state": "draining"})
            )
        try:
            async with httpx2.AsyncClient(timeout=DRAIN_ASK_S, trust_env=False) as http:
                return (await http.post(worker.url + "/worker/drain")).is_success
        except httpx2.HTTPError:
            return False

    @property
    def _worker(self) -> Worker | None:
        return self._registry.worker(self.name)

    async def _keep(self) -> None:
        """Start the worker over and over until it retires."""
        back_off_s = self._patience.first_back_off_s
        while not self._retiring.is_set():
            served_s = 0.0
            try:
                served_s = await self._run_once()
            except TiltyardError as error:
                if not self._failed_at_first(error, error.message) and not self._retiring.is_set():
                    _logger.error("%s", error.message)
            except Exception as mistake:  # ours; the worker must be started again all the same
                if not self._failed_at_first(mistake, f"the launcher broke: {mistake}"):
                    _logger.exception("watching worker %s broke", self.name)
            self._why = None
            if self._again:
                continue
            if served_s > STEADY_AFTER_S:
                back_off_s = self._patience.first_back_off_s
            try:
                await asyncio.wait_for(self._retiring.wait(), back_off_s)
            except TimeoutError:
                back_off_s = min(2 * back_off_s, self._patience.longest_back_off_s)

    def _failed_at_first(self, error: Exception, why: str) -> bool:
        """Whether it has never served before: whoever waits for `first` is told then, and the registry's note says it."""
        self._registry.withdraw(self.name, why)
        if self.first.done():
            return False
        self.first.set_exception(error)
        self.first.exception()  # taken note of: nobody has to wait for it
        return True

    async def _run_once(self) -> float:
        """Run one process to its end; returns how many seconds it served."""
        self._again = False
        process = self._process = await self._place.start(self.spec)
        watching: asyncio.Task[None] | None = None
        try:
            if self._retiring.is_set():
                raise WorkerFailed(f"worker {self.name} was told to end before it began")
            ready = await process.until_ready(self._patience.load_s, self._report)
            if ready.trusted_host is not None:
                self._registry.allow(ready.trusted_host)
            status = await self._proved(ready)
            if self._recorder is not None:
                await self._recorder.ready(status, ready.load_ms)
            self._registry.announce(self.name, ready.url, status)
            self._serves.set()
            if not self.first.done():
                self.first.set_result(None)
            began = time.monotonic()
            watching = asyncio.create_task(self._watch(process))
            how = await process.ended()
            reason = how if self._why is None else f"{self._why} ({how})"
            self._serves.clear()
            self._registry.withdraw(self.name, reason)
            if self._recorder is not None:
                await self._recorder.stopped(self.name, reason)
            if not self._retiring.is_set() and not self._again:
                _logger.error("worker %s ended: %s; starting it again", self.name, reason)
            return time.monotonic() - began
        finally:
            self._serves.clear()
            if watching is not None:
                watching.cancel()
            await process.end(0)

    async def _proved(self, ready: Ready) -> WorkerStatus:
        """The status of a worker that is warm and whose engine has lately turned; raises `WorkerFailed`."""
        deadline = time.monotonic() + READY_ASKS_S
        while True:
            try:
                status = await self._registry.ask(ready.url)
            except (httpx2.HTTPError, ValidationError) as error:
                raise WorkerFailed(
                    f"worker {self.name} said it was ready and does not answer as a worker does: {error}"
                ) from error
            age_ms = status.last_step_age_ms
            if status.state == "ready" and age_ms is not None and age_ms < FIRST_STEP_S * 1e3:
                return status
            if time.monotonic() > deadline:
                raise WorkerFailed(
                    f"worker {self.name} said it was ready, and is {status.state} with "
                    f"{'no step' if age_ms is None else f'its last step {age_ms / 1e3:.0f} s ago'}"
                )
            await asyncio.sleep(READY_ASK_EVERY_S)

    async def _watch(self, process: Placed) -> None:
        """Kill a process that hangs; drain one that has outgrown its memory."""
        while True:
            await asyncio.sleep(self._patience.watch_s)
            silent_s = 0.0 if self._worker is None else self._worker.silent_s
            if silent_s > self._patience.hung_s:
                self._why = f"answered nobody in time for {silent_s:.0f} s"
                _logger.error("worker %s %s; it is killed and started again", self.name, self._why)
                await process.kill()
                return
            used, limit = process.memory_bytes(), self._memory_limit_bytes
            if used is not None and limit is not None and used > limit:
                self._why = f"used {used >> 20:,} MB; its limit is {limit >> 20:,} MB"
                _logger.error("worker %s %s; it is drained and started again", self.name, self._why)
                await self._end(DRAIN_ASK_S)
                return

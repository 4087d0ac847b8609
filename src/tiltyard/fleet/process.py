"""One worker process: start it, wait until it serves, read its last words, end it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from tiltyard.errors import ConfigurationError
from tiltyard.fleet.place import LaunchProgress, Ready, WorkerFailed
from tiltyard.telemetry.logs import message_of
from tiltyard.wire.worker import WorkerSpec

COMMAND = (sys.executable, "-m", "tiltyard.worker")
POLL_S = 0.05
TAIL_BYTES = 4096
MALLOC_ARENAS = "2"
"""glibc would give each thread of a worker a heap of its own, and keep what is freed in it."""
TERMINATE_S = 5.0
"""How long a worker that was told to end may take before it is killed."""


class WorkerProcess:
    """A running child; its output goes to `<run>/<worker>.log`, behind that of earlier children."""

    def __init__(self, spec: WorkerSpec, process: Process, log: Path, log_start: int) -> None:
        self.spec = spec
        self.log = log
        self._log_start = log_start
        self._process = process
        self._began = time.monotonic()

    @classmethod
    async def start(cls, spec: WorkerSpec, command: Sequence[str], run_directory: Path) -> WorkerProcess:
        """Write the spec and start the child; raises `ConfigurationError` when that cannot be done."""
        log = run_directory / f"{spec.worker}.log"
        try:
            path = _write_spec(spec, run_directory)
            with log.open("ab") as output:
                log_start = output.tell()
                process = await asyncio.create_subprocess_exec(
                    *command,
                    str(path),
                    stdin=DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={"MALLOC_ARENA_MAX": MALLOC_ARENAS, **os.environ},
                    start_new_session=True,  # Ctrl-C in the terminal is for us; the workers are drained first
                )
        except OSError as error:
            raise ConfigurationError(f"worker {spec.worker} cannot be started: {error}") from error
        return cls(spec, process, log, log_start)

    async def until_ready(self, timeout_s: float, report: Callable[[LaunchProgress], None]) -> Ready:
        """Wait for the ready file; raises `WorkerFailed` when the child ends first or takes too long."""
        told = ""
        while True:
            if (ready := _read_ready(Path(self.spec.ready_file))) is not None:
                return ready
            if self._process.returncode is not None:
                raise WorkerFailed(
                    f"worker {self.spec.worker} did not start: {self.last_words()} (its log: {self.log})"
                )
            seconds = time.monotonic() - self._began
            if seconds > timeout_s:
                raise WorkerFailed(
                    f"worker {self.spec.worker} was not ready after {timeout_s:.0f} s; "
                    f"it last said: {self.last_line() or 'nothing'} (its log: {self.log})"
                )
            if (line := self.last_line()) != told:
                told = line
                report(LaunchProgress(self.spec.worker, seconds, line))
            await asyncio.sleep(POLL_S)

    async def ended(self) -> str:
        """Wait for the child's end and say how it ended."""
        code = await self._process.wait()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return "stopped" if code == 0 else f"exit status {code}: {self.last_words()}"

    async def end(self, grace_s: float) -> None:
        """Give the child `grace_s` to end by itself, then ask it to end, then kill it."""
        for ask, patience_s in ((None, grace_s), (signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, None)):
            if self._process.returncode is not None:
                return
            if ask is not None:
                self._process.send_signal(ask)
            try:
                await asyncio.wait_for(self._process.wait(), patience_s)
            except TimeoutError:
                continue

    async def kill(self) -> None:
        """End it now, even if it is stopped or hangs."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def memory_bytes(self) -> int | None:
        """Memory of its own (`RssAnon`): weights that are mapped from a file are the page cache's."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:  # it has ended, or this system has no /proc
            return None
        found = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
        return None if found is None else int(found[1]) << 10

    def last_line(self) -> str:
        """The newest line of the log that is not empty."""
        lines = self._tail()
        return lines[-1] if lines else ""

    def last_words(self) -> str:
        """The newest line that names an error, or the newest line."""
        lines = self._tail()
        errors = [line for line in lines if line.startswith("error: ")]
        return errors[-1].removeprefix("error: ") if errors else (lines[-1] if lines else "it said nothing")

    def _tail(self) -> list[str]:
        try:
            with self.log.open("rb") as stream:
                size = stream.seek(0, 2)
                stream.seek(max(self._log_start, size - TAIL_BYTES))
                text = stream.read().decode("utf-8", errors="replace")
        except FileNotFoundError:  # somebody tidied up; the worker itself is not to blame
            return []
        return [message_of(line.strip()) for line in text.splitlines() if line.strip()]


class ThisMachine:
    """The place of workers that are processes beside ours."""

    def __init__(self, run_directory: Path, command: Sequence[str] = COMMAND) -> None:
        self._run_directory = run_directory
        self._command = tuple(command)

    async def start(self, spec: WorkerSpec) -> WorkerProcess:
        """Start one; raises `ConfigurationError` when that cannot be done."""
        return await WorkerProcess.start(spec, self._command, self._run_directory)


def _write_spec(spec: WorkerSpec, run_directory: Path) -> Path:
    """Keep the spec where the child reads it; what an earlier child left as its ready file goes."""
    path = run_directory / f"{spec.worker}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    Path(spec.ready_file).unlink(missing_ok=True)
    path.write_text(spec.model_dump_json(indent=1))
    return path


def _read_ready(path: Path) -> Ready | None:
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return Ready(url=value["url"], load_ms=value["load_ms"])

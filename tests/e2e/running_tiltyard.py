"""`tiltyard up` as a user starts it: real model, real workers, real log, in processes of their own."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120


class Tiltyard:
    """A running `tiltyard up` (or `serve`), and the other verbs over the same data."""

    def __init__(self, data: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.data = data
        self.environment = {**os.environ, "TILTYARD_DATA_DIR": str(data), **(environment or {})}
        self.environment.pop("TILTYARD_CONFIG", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tiltyard.cli.main", *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def up(cls, data: Path, *arguments: str) -> Tiltyard:
        """Start everything on a free port and wait until it says that it is ready."""
        started = cls(data, "up", "--port", "0", *arguments)
        started.wait_for("ready;")
        return started

    @property
    def url(self) -> str:
        """The address that it printed."""
        match = re.search(r"OpenAI\s+(http://\S+)/v1", "\n".join(self.lines))
        assert match, self.lines
        return match[1]

    def wait_for(self, text: str) -> None:
        """Wait for a line that begins with `text`."""
        self._wait(lambda line: line.startswith(text))

    def _wait(self, found: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not any(found(line) for line in self.lines):
            line = self._queue.get(timeout=max(0.1, deadline - time.monotonic()))
            assert line is not None, "\n".join(["it ended:", *self.lines])
            self.lines.append(line.rstrip())

    def wait_for_log(self, text: str) -> None:
        """The same where the log is JSON lines: wait for a message that begins with `text`."""
        self._wait(lambda line: message_of(line).startswith(text))

    @property
    def log_url(self) -> str:
        """The address that it said in its log."""
        match = re.search(r"OpenAI\s+(http://[^\s/]+)/v1", "\n".join(map(message_of, self.lines)))
        assert match, self.lines
        return match[1]

    def so_far(self) -> list[str]:
        """Every line so far."""
        while not self._queue.empty():
            if (line := self._queue.get()) is not None:
                self.lines.append(line.rstrip())
        return list(self.lines)

    def interrupt(self) -> int:
        """Press Ctrl-C; returns the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.ended()

    def ended(self) -> int:
        """Wait for the end; returns the exit status, with the last lines kept."""
        status = self.process.wait(60)
        while (line := self._queue.get(timeout=10)) is not None:
            self.lines.append(line.rstrip())
        self._reader.join(10)
        return status

    def kill(self) -> None:
        """`kill -9`; the workers end by themselves."""
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another verb over the same data."""
        return subprocess.run(
            [sys.executable, "-m", "tiltyard.cli.main", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._queue.put(line)
        self._queue.put(None)


def message_of(line: str) -> str:
    """What a JSON line of a log says; other lines say nothing here."""
    return str(json.loads(line)["message"]) if line.startswith("{") else ""

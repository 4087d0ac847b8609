"""Shows how far a run of a fixed set is: one line that is rewritten on a terminal, a line about once a second elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from tiltyard.cli.run_metrics import show_run_metrics
from tiltyard.evals.runner import Progress

SECONDS_BETWEEN_LINES = 1.0


class ProgressLine:
    """Prints a run's progress; call it with each `Progress`."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._run = ""
        self._began = self._shown = clock()
        self._open = False

    def __call__(self, progress: Progress) -> None:
        """Print the first and the last line of a run, and those between that are due."""
        show_run_metrics(
            progress.done,
            progress.total,
            failed=progress.failed,
            unscored=progress.unscored,
            mean=sum(progress.scores) / len(progress.scores) if progress.scores else None,
        )
        now = self._clock()
        first = progress.run != self._run
        if first:
            self.end()
            self._run, self._began = progress.run, now
        last = progress.done + progress.failed == progress.total
        terminal = self._stream.isatty()
        if not (first or last or terminal or now - self._shown >= SECONDS_BETWEEN_LINES):
            return
        self._shown = now
        text = describe(progress, now - self._began)
        if terminal:
            self._stream.write(f"\r\x1b[K{text}")
            self._open = True
            if last:
                self.end()
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def end(self) -> None:
        """Leave the line, so that what comes next begins a new one."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._open = False


def describe(progress: Progress, seconds: float) -> str:
    """One line: how many are done, how well, how long it will take."""
    parts = [f"{progress.alias}: {progress.done}/{progress.total}"]
    if progress.resumed and progress.done == progress.resumed:
        parts.append(f"{progress.resumed} finished before")
    if progress.scores:
        parts.append(f"score {sum(progress.scores) / len(progress.scores):.1%}")
    if progress.unscored:
        parts.append(f"{progress.unscored} unscored")
    if progress.awaiting:
        parts.append(f"{progress.awaiting} await experts")
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    fresh = progress.done - progress.resumed
    left = progress.total - progress.done - progress.failed
    if fresh and left:
        parts.append(f"about {seconds / fresh * left:.0f} s left")
    return ", ".join(parts)

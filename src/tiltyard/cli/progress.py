"""Shows long work on a terminal as a bar, elsewhere as lines, so that nothing long is silent."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from tiltyard.models.progress import ProgressReport

SECONDS_BETWEEN_LINES = 1.0


def progress_on(stream: TextIO | None = None) -> ProgressReport:
    """Return a bar for a terminal, or plain lines for a pipe, a file or a CI log."""
    stream = stream or sys.stderr
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)


def _size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e6:,.1f} MB" if count >= 1_000_000 else f"{count / 1e3:,.1f} kB"


class LineProgress:
    """One line at the start, then a percentage line about once a second."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._what = ""
        self._total: int | None = None
        self._shown_at = 0.0
        self._percent = 0

    def begin(self, what: str, total_bytes: int | None) -> None:
        """Name the work."""
        self._what, self._total, self._percent = what, total_bytes, 0
        self._shown_at = self._clock()
        self._line(f"{what}{'' if total_bytes is None else f' ({_size(total_bytes)})'}")

    def advance_to(self, done_bytes: int) -> None:
        """Print a line if the last one is a second old and the figure has moved."""
        now = self._clock()
        if now - self._shown_at < SECONDS_BETWEEN_LINES:
            return
        if self._total:
            percent = min(100, done_bytes * 100 // self._total)
            if percent == self._percent:
                return
            self._percent = percent
            self._line(f"{self._what}: {percent}%")
        else:
            self._line(f"{self._what}: {_size(done_bytes)}")
        self._shown_at = now

    def end(self) -> None:
        """Print nothing; the next thing says that this one is over."""

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class BarProgress:
    """A bar that is gone when its work is done."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream)
        self._bar: Progress | None = None

    def begin(self, what: str, total_bytes: int | None) -> None:
        """Show a bar, or a spinner if nobody knows how much there is."""
        self.end()
        sized = (BarColumn(), DownloadColumn(), TimeRemainingColumn()) if total_bytes is not None else ()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            *sized,
            console=self._console,
            transient=True,
        )
        self._bar.add_task(what, total=total_bytes)
        self._bar.start()

    def advance_to(self, done_bytes: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done_bytes)

    def end(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def telling(
    stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Callable[[str, int, int], None]:
    """Return what hears of `(what, done, total)` of anything countable: one line on a terminal, elsewhere a line now and then."""
    out = stream or sys.stderr
    shown: dict[str, float] = {}

    def tell(what: str, done: int, total: int) -> None:
        now = clock()
        if what in shown and now - shown[what] < SECONDS_BETWEEN_LINES and done != total:
            return
        if out.isatty():
            out.write(
                f"\r\x1b[K{what}"
                + (f" {done:,} of {total:,}" if total else "")
                + ("\n" if done == total else "")
            )
        elif what not in shown or now - shown[what] >= SECONDS_BETWEEN_LINES:
            out.write(what + (f" {done:,} of {total:,}" if total else "") + "\n")
        out.flush()
        shown[what] = now

    return tell

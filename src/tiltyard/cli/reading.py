"""Says how far the reading of a long log has come: nothing in the first two seconds, then a line now and then on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

import click

QUIET_S = 2.0


class ReadingProgress:
    """`show` hears of `(events passed, events to pass)`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_at = clock()
        self._spoke = False

    def show(self, done: int, of: int) -> None:
        """Say it, if the last word is long enough ago."""
        now = self._clock()
        if now - self._said_at < QUIET_S:
            return
        self._said_at, self._spoke = now, True
        click.echo(f"reading the log: {100 * done // max(1, of)}% of {of:,} events", err=True)

    def __enter__(self) -> ReadingProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spoke and error is None:
            click.echo("reading the log: done", err=True)

"""How long work shows itself in a terminal, and in a log file."""

from __future__ import annotations

import sys
import time

import click

SAY_EVERY_S = 2.0


class TerminalProgress:
    """A bar that moves in a terminal; elsewhere a line every two seconds. Quick work shows nothing."""

    def __init__(self) -> None:
        self._moves = sys.stderr.isatty()
        self._what = ""
        self._total: int | None = None
        self._began = self._said = 0.0
        self._shown = False

    def begin(self, what: str, total_bytes: int | None) -> None:
        """Start a piece of work."""
        self._what, self._total = what, total_bytes
        self._began = self._said = time.monotonic()
        self._shown = False

    def advance_to(self, done_bytes: int) -> None:
        """Show how far it is, not more often than a person can read."""
        now = time.monotonic()
        if now - self._said < (0.1 if self._moves else SAY_EVERY_S):
            return
        self._said = now
        self._shown = True
        line = f"  {self._what}: {done_bytes / 1e6:.0f} MB"
        if self._total:
            share = min(1.0, done_bytes / self._total)
            line = f"  {self._what}: {bar(share)} {share:4.0%} of {self._total / 1e6:.0f} MB"
        click.echo(f"\r{line}" if self._moves else line, err=True, nl=not self._moves)

    def end(self) -> None:
        """Finish the line that was begun."""
        if self._shown and self._moves:
            click.echo(
                f"\r  {self._what}: {bar(1.0)} done in {time.monotonic() - self._began:.0f} s   ", err=True
            )


def bar(share: float, width: int = 24) -> str:
    """Draw a share of one.

    >>> bar(0.5, 4)
    '██░░'
    """
    full = round(share * width)
    return "█" * full + "░" * (width - full)

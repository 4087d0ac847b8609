"""What the verbs of `tiltyard events` share: the log, and how far they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from tiltyard.events.log import EventLog
from tiltyard.events.places import keys_in, log_in


@contextmanager
def opened(context: click.Context) -> Iterator[EventLog]:
    """The log that the group's options name."""
    data, log_url = context.obj
    with EventLog.open(log_url or log_in(data), keys=keys_in(data), create=False) as log:
        yield log


class Progress:
    """A bar on a terminal, silence elsewhere."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo(err=True)

    def show(self, done: int, total: int) -> None:
        """Draw how far it is."""
        if not sys.stderr.isatty():
            return
        self._shown = True
        click.echo(f"\r{self._label} {done:,} of {total:,} events", err=True, nl=False)

"""What every verb of `tiltyard release` needs: the log, the release that is meant, who asks."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager

import click

from tiltyard.cli.settings import Settings
from tiltyard.errors import NotFound
from tiltyard.events.log import EventLog
from tiltyard.release.history import states_of
from tiltyard.release.state import ReleaseState


def whoami() -> str:
    """Who is at the keyboard, for the log."""
    return os.environ.get("TILTYARD_BY") or getpass.getuser()


@contextmanager
def opened(context: click.Context) -> Iterator[tuple[Settings, EventLog]]:
    """The settings and the log."""
    settings, log_url = context.obj
    with EventLog.open(log_url or settings.log_place, keys=settings.keys_place, create=False) as log:
        yield settings, log


def last_release(log: EventLog, name: str) -> ReleaseState:
    """The release with that id, or the newest one of an alias; raises `NotFound`."""
    states = states_of(log)
    if name in states:
        return states[name]
    found = [state for state in states.values() if state.started.alias == name]
    if not found:
        raise NotFound(f"{name} was never released; `tiltyard release start plan.yaml` does that")
    return found[-1]

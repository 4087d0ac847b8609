"""What every verb of `tiltyard release` needs: the log, the release that is meant, who asks."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from tiltyard.cli.settings import Settings
from tiltyard.errors import Conflict, InvalidRequest, NotFound
from tiltyard.events.log import EventLog
from tiltyard.release.history import states_of
from tiltyard.release.state import ReleaseState


def whoami() -> str:
    """Who is at the keyboard, for the log."""
    return os.environ.get("TILTYARD_BY") or getpass.getuser()


def at_a_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()


def asked_why(why: str | None, what: str) -> str:
    """The reason for what is ordered: `--why`, else asked for at a terminal; raises `InvalidRequest` elsewhere."""
    if why is not None and why.strip():
        return why
    if not at_a_terminal():
        raise InvalidRequest(
            f"--why is missing: the history keeps who, when and why; say why you {what}", param="why"
        )
    answer: str = click.prompt(f"Why do you {what}? (kept in the history)")
    return answer


def override_or_end(refusal: Conflict) -> None:
    """Ask whether to approve what has not passed; raises the refusal, with the option that says so, where nobody can be asked."""
    if not at_a_terminal():
        raise Conflict(f"{refusal.message}\nThat is: --override --why '…'", code=refusal.code) from None
    click.echo(refusal.message, err=True)
    click.confirm("Approve all the same?", abort=True, err=True)


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

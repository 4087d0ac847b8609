"""Our own traffic as a trace, for `bench` and `plan`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click

from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.settings import load_settings
from tiltyard.cli.since import MOMENT
from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.ops.load.logged import LoggedTraffic, read_traffic, trace_of
from tiltyard.ops.load.traces import Trace

OWN_LOG = "log"
"""What `--trace` is told for it; a file of that name is `./log`."""


def logged_options(command: Callable[..., Any]) -> Callable[..., Any]:  # as click has it
    """`--data`, `--config`, `--identity`, `--since` and `--until`."""
    for option in reversed(
        (
            data_option,
            config_option,
            click.option("--identity", help="Of the log, the requests of this identity alone."),
            click.option(
                "--since", type=MOMENT, help="Of the log, from then on: 24h, 7d or 2026-12-01T08:00."
            ),
            click.option("--until", type=MOMENT, help="Of the log, until then."),
        )
    ):
        command = option(command)
    return command


def refuse_for_other_traffic(options: dict[str, object]) -> None:
    """Raise `InvalidRequest` naming an option that chooses from a log which nobody reads."""
    for name in ("identity", "since", "until"):
        if options[name] is not None:
            raise InvalidRequest(
                f"--{name} chooses from our own log; with another trace leave it out, or say --trace log",
                param=name,
            )


def logged_traffic(
    options: dict[str, object], *, newest: int | None, told: Callable[[int], None] = lambda _read: None
) -> LoggedTraffic:
    """The requests that `logged_options` name, at most the `newest`; raises as `read_traffic` and `EventLog.open` do."""
    settings = load_settings(
        cast("Path | None", options["config"]), data_dir=cast("Path | None", options["data"])
    )
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        return read_traffic(
            log,
            identity=cast("str | None", options["identity"]),
            since_s=cast("float | None", options["since"]),
            until_s=cast("float | None", options["until"]),
            newest=newest,
            told=told,
        )


def logged_trace(
    options: dict[str, object], *, newest: int | None, told: Callable[[int], None] = lambda _read: None
) -> Trace:
    """The same as a trace that begins at second 0."""
    return trace_of(logged_traffic(options, newest=newest, told=told).requests)

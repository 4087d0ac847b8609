"""`tiltyard arena`: how the arena is doing, read straight from the log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tiltyard.arena.health import ArenaHealth, Health
from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.settings import load_settings
from tiltyard.events.log import EventLog
from tiltyard.rating.shares import Share

_PIPE_WIDTH = 140  # characters, where the output is no terminal that has a width
EXIT: Final = {"ok": 0, "warn": 0, "alarm": 3}
"""Exit status by state: a cron job or a monitor needs no more."""


@click.group()
def command() -> None:
    """Look after the arena."""


@command.command()
@data_option
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print what GET /api/arena/health answers.")
@click.pass_context
def health(context: click.Context, data: Path | None, config: Path | None, as_json: bool) -> None:
    """Say whether battles are drawn as recorded, models answer and no vote waits; exit status 3 on an alarm.

    The log is read directly, up to this moment; the page and the API of a running server hold figures by model back for an hour.
    How long votes take to be written only the serving process knows.
    """
    settings = load_settings(config, data_dir=data)
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        found = Health(log).look(time.time_ns() // 1000)
    if as_json:
        click.echo(json.dumps(found.to_json(), ensure_ascii=False, indent=2))
    else:
        _show(found)
    context.exit(EXIT[found.state])


def _show(found: ArenaHealth) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    for check in found.checks:
        console.print(
            f"{check.state:5}  {check.name:16} {check.says}", soft_wrap=True, markup=False, highlight=False
        )
        if check.do:
            console.print(f"       what to do: {check.do}", soft_wrap=True, markup=False, highlight=False)
    if found.models:
        console.print(_table(found))
    console.print(
        f"{found.so_far.opened:,} battles, {found.so_far.votes:,} votes, {found.so_far.voided:,} void; "
        f"{found.so_far.made_good:,} turns answered after a failure, {found.so_far.drawn_again:,} battles drawn "
        f"again; left wins {_share(found.left_share)} of decisive votes",
        soft_wrap=True,
        highlight=False,
    )


def _table(found: ArenaHealth) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("model")
    for heading in ("battles", "on the left", "answers", "failed", "voided", "cut"):
        table.add_column(heading, justify="right")
    table.add_column("causes")
    for model in found.models:
        table.add_row(
            model.name,
            f"{model.battles:,}",
            _share(model.first_slot),
            f"{model.failed.of:,}",
            _share(model.failed),
            f"{model.voided:,}",
            _share(model.truncated),
            ", ".join(f"{count:,} {cause}" for cause, count in model.causes.items()),
        )
    return table


def _share(share: Share) -> str:
    if share.share is None or share.lower is None or share.upper is None:
        return "–"
    return f"{100 * share.share:.1f}% ({100 * share.lower:.0f}–{100 * share.upper:.0f})"

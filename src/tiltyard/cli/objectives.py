"""`tiltyard objectives`: what was promised, how much of the error budget is left, and how fast it burns."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.reading import ReadingProgress
from tiltyard.cli.settings import load_settings
from tiltyard.events.log import EventLog
from tiltyard.objectives.declaration import in_force
from tiltyard.objectives.look import Objectives
from tiltyard.objectives.prometheus_rules import prometheus_rules
from tiltyard.objectives.status import REASONS, Burn, ObjectivesReport, ObjectiveStatus

_PIPE_WIDTH = 240  # characters, where the output is no terminal that has a width
EXIT: Final = {"no data": 0, "ok": 0, "ticket": 0, "page": 3}
"""Exit status by state: a cron job or a monitor needs no more."""


@click.command()
@data_option
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print what GET /api/objectives answers.")
@click.option(
    "--prometheus-rules",
    "rules",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="Write alert rules for Prometheus to this file ('-': print them) instead; no log is needed.",
)
@click.pass_context
def command(
    context: click.Context, data: Path | None, config: Path | None, as_json: bool, rules: Path | None
) -> None:
    """Say how each objective of the settings stands, from the log alone; exit status 3 when something pages.

    "no data" is what it says: nothing was seen, or too little to judge by. It is never counted as kept.
    """
    settings = load_settings(config, data_dir=data)
    objectives = in_force(settings.file.objectives)
    if rules is not None:
        text = prometheus_rules(objectives)
        if str(rules) == "-":
            click.echo(text, nl=False)
        else:
            try:
                rules.write_text(text, encoding="utf-8")
            except OSError as error:
                raise click.FileError(str(rules), hint=error.strerror or "unknown reason") from None
            click.echo(f"wrote {rules}; check it with: promtool check rules {rules}")
        return
    with (
        EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log,
        ReadingProgress() as progress,
    ):
        report = Objectives(log, objectives).look(time.time_ns() // 1000, progress.show)
    if as_json:
        click.echo(json.dumps(report.to_json(), ensure_ascii=False, indent=2))
    else:
        _show(report)
    context.exit(EXIT[report.state])


def _show(report: ObjectivesReport) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    table = Table(box=box.SIMPLE)
    for heading in ("state", "objective", "promise"):
        table.add_column(heading)
    for heading in ("good", "of", "budget left", *(f"burn {name}" for name in _windows(report))):
        table.add_column(heading, justify="right")
    table.add_column("why")
    for one in report.objectives:
        rates = {window: rate for burn in one.burns for window, rate in _rates(burn)}
        table.add_row(
            one.state,
            one.name,
            _promise(one),
            "–" if one.good_share is None or one.target is None else f"{100 * one.good_share:.2f}%",
            f"{one.counts.total:,.0f} {one.unit}" if one.counts.total else "–",
            "–" if one.budget_left is None else f"{100 * one.budget_left:.0f}%",
            *(_times(rates.get(window)) for window in _windows(report)),
            REASONS[one.reason]
            if one.value is None or one.state == "ok"
            else f"{REASONS[one.reason]}: {one.value:,.4g}",
        )
    console.print(table)
    for one in report.objectives:
        if one.do:
            console.print(f"{one.name}: {one.do}", soft_wrap=True, markup=False, highlight=False)


def _windows(report: ObjectivesReport) -> list[str]:
    return list(dict.fromkeys(burn.long for one in report.objectives for burn in one.burns))


def _rates(burn: Burn) -> list[tuple[str, float | None]]:
    return [(burn.long, burn.long_rate)]


def _times(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.2f}x"


def _promise(one: ObjectiveStatus) -> str:
    what = one.kind.replace("_", " ")
    if one.threshold_ms is not None:
        what += f" up to {one.threshold_ms:,.10g} ms"
    if one.slice:
        what += f" ({', '.join(f'{key} {value}' for key, value in one.slice.items())})"
    if one.target is None:
        return f"{what}: none" if one.kind != "pair_assignment" else f"{what}: as recorded"
    return f"{what}: {100 * one.target:.6g}% good in {one.window_days:g} days"

"""`tiltyard cost`: prefill and decode by class, model and hardware; what the cache saved; what a vote and a release cost."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.reading import ReadingProgress
from tiltyard.cli.settings import load_settings
from tiltyard.costs.look import Costs
from tiltyard.costs.report import CostLine, CostReport, Spending
from tiltyard.costs.stretch import since_us
from tiltyard.costs.sums import BY, sums_by
from tiltyard.events.log import EventLog

_PIPE_WIDTH: Final = 240  # characters, where the output is no terminal that has a width


@click.command()
@data_option
@config_option
@click.option(
    "--since",
    default="7d",
    show_default=True,
    help="From when on: 24h, 7d, 4w, or a moment such as 2026-11-30.",
)
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(BY),
    help="Add lines up that differ in nothing named here; may be given more than once.  [all three]",
)
@click.option("--json", "as_json", is_flag=True, help="Print what GET /api/cost answers.")
def command(
    data: Path | None, config: Path | None, since: str, by: tuple[str, ...], *, as_json: bool
) -> None:
    """Say what was spent, from the log and the prices of [costs]; without a price, in seconds of the engine.

    Each second in which a worker worked is shared by the requests that it worked on, in equal parts (docs/cost.md).
    """
    settings = load_settings(config, data_dir=data)
    now_us = time.time_ns() // 1000
    began_us = since_us(since, now_us)
    with (
        EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log,
        ReadingProgress() as progress,
    ):
        report = Costs(log, settings.file.costs).look(
            since_us=began_us, until_us=now_us, report=progress.show
        )
    if as_json:
        sums = [one.to_json() for one in sums_by(report.lines, by)]
        document = report.to_json() | ({"by": list(by), "sums": sums} if by else {})
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
        return
    _show(report, sums_by(report.lines, by or BY), by or BY)


def _show(report: CostReport, sums: Sequence[CostLine], by: Sequence[str]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    if not sums:
        console.print("nothing was generated in this time")
    else:
        console.print(_lines(report, sums, by))
    if report.workers:
        console.print(_workers(report))
    for line in _causes(report):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    for name in report.unpriced:
        console.print(
            f"no price: fill in {name} (docs/cost.md)", soft_wrap=True, markup=False, highlight=False
        )
    for name in report.unmatched:
        console.print(
            f"costs.hours.{name!r} is no worker and no hardware of this log; workers and hardware are in the table above",
            soft_wrap=True, markup=False, highlight=False,
        )  # fmt: skip


def _lines(report: CostReport, sums: Sequence[CostLine], by: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE)
    for name in by:
        table.add_column(name)
    money = report.currency
    for heading in (
        "requests", "prompt", "cached", "answered", "prefill s", "decode s", f"prefill {money}", f"decode {money}",
        "prefill/M", "decode/M", "cache saved",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for one in sums:
        table.add_row(
            *(getattr(one, name) for name in by),
            f"{one.requests:,}" + (f" ({one.untimed:,} untimed)" if one.untimed else ""),
            f"{one.prompt_tokens:,}",
            f"{one.cached_tokens:,}",
            f"{one.completion_tokens:,}",
            f"{one.prefill_s:,.1f}",
            f"{one.decode_s:,.1f}",
            _amount(one.prefill_amount),
            _amount(one.decode_amount),
            _amount(one.prefill_million)
            if one.prefill_million is not None
            else _seconds(one.prefill_s_million),
            _amount(one.decode_million) if one.decode_million is not None else _seconds(one.decode_s_million),
            _amount(one.saved_amount) if one.saved_amount is not None else _seconds(one.saved_s),
        )
    return table


def _workers(report: CostReport) -> Table:
    table = Table(box=box.SIMPLE)
    for heading in ("worker", "hardware"):
        table.add_column(heading)
    for heading in ("there", "busy", "an hour", f"idle {report.currency}"):
        table.add_column(heading, justify="right")
    for one in report.workers:
        busy = f"{one.busy_s / 3600:,.2f} h"
        if one.ready_s:
            busy += f" ({100 * one.busy_s / one.ready_s:.0f}%)"
        table.add_row(
            one.worker,
            one.hardware,
            "–" if one.ready_s is None else f"{one.ready_s / 3600:,.2f} h",
            busy,
            _amount(one.hour_price),
            _amount(one.idle_amount),
        )
    return table


def _causes(report: CostReport) -> list[str]:
    votes, money = report.votes, report.currency
    found = []
    if votes.votes:
        each = (
            f"{votes.full_s:,.1f} s of engines"
            if votes.full_amount is None
            else f"{votes.full_amount:,.4g} {money} ({votes.own_amount:,.4g} for the answers that were voted on)"
        )
        found.append(
            f"a vote: {each}; {votes.votes:,} votes, {votes.without_vote.generations:,} answers led to none"
        )
    for one in report.decisions:
        parts = (
            ("fixed sets", one.evals), ("shadow", one.shadow), ("judges", one.judging), ("battles", one.people)
        )  # fmt: skip
        told = ", ".join(f"{name} {_spent(spending, money)}" for name, spending in parts)
        found.append(
            f"{one.release} ({one.candidate} for {one.alias}, {one.outcome}): {_spent(one.total, money)}: {told}; "
            f"its users' own requests {_spent(one.traffic, money)}"
        )
    return found


def _spent(spending: Spending, money: str) -> str:
    if spending.whole:
        return f"{spending.amount:,.4g} {money}"
    return f"{spending.engine_s:,.1f} s ({spending.unpriced:,} without a price)"


def _amount(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g} s"

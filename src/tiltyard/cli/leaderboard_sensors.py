"""`tiltyard leaderboard --sensors`: both sensors in one row, measured up to this moment."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import click
from rich import box
from rich.table import Table

from tiltyard.arena.measurements import Measurements
from tiltyard.cli.leaderboard_tables import console_of_output
from tiltyard.cli.settings import Settings
from tiltyard.events.log import EventLog
from tiltyard.rating.leaderboard import Leaderboard
from tiltyard.rating.sensors import SensorRow, Speed, sensor_rows
from tiltyard.rating.shares import Share
from tiltyard.rating.sources import gathered
from tiltyard.web.result_sources import result_sources
from tiltyard.web.sensors import headings, to_json


def show_sensors(settings: Settings, board: Leaderboard, as_json: bool) -> None:
    """Print the rows of a leaderboard of the log, with all that was measured on the same identities."""
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        measured = Measurements(log, costs=settings.file.costs).measured(time.time_ns() // 1000)
        rows = sensor_rows(board, measured, gathered(result_sources(log)))
    if as_json:
        click.echo(json.dumps(to_json(board, rows), ensure_ascii=False, indent=2))
        return
    console = console_of_output()
    console.print(_table(board, rows))
    for line in _environments(rows):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    names = {row.behaviour: row.name for row in rows}
    for one in dict.fromkeys(found for row in rows for found in row.disagrees):
        console.print(
            f"{one.says} puts {names[one.above]} above {names[one.below]}; {one.denies} says the opposite",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )


def _table(board: Leaderboard, rows: list[SensorRow]) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("model")
    for heading in (
        "rating", "won", "first token", "p99", "tokens/s", "memory", "1,000 calls", "cut", "refused", "failed",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for heading in headings().values():
        table.add_column(heading.lower())
    ratings = {row.model.key: row for row in board.rows}
    for row in rows:
        rating, measured = ratings[row.behaviour].rating, row.measured
        speed = measured.speeds[0] if measured is not None and measured.speeds else None
        table.add_row(
            row.name,
            "–" if rating is None else f"{rating:.0f}",
            _percent(row.win_rate),
            *_speed(speed),
            _percent(None if measured is None else measured.truncated),
            _percent(None if measured is None else measured.refused),
            _percent(None if measured is None else measured.failed),
            *(_said(row, kind) for kind in headings()),
        )
    return table


def _speed(speed: Speed | None) -> Iterator[str]:
    if speed is None:
        yield from ("–",) * 5
        return
    yield _number(speed.first_token_p50_ms, " ms")
    yield _number(speed.first_token_p99_ms, " ms")
    yield _number(speed.tokens_per_second, "")
    memory = speed.peak_memory_bytes
    yield _number(None if memory is None else memory / 1e6, " MB")
    yield "not set" if speed.cost is None else f"{speed.cost.amount:,.4g} {speed.cost.currency}"


def _environments(rows: list[SensorRow]) -> Iterator[str]:
    """Say where each speed was had: without that it means nothing."""
    for row in rows:
        for speed in row.measured.speeds[:1] if row.measured else ():
            machine = speed.environment
            where = (
                "an unknown machine"
                if machine is None
                else f"{machine.hardware}, {machine.engine_build}, {machine.isa}, {machine.threads} threads"
            )
            yield f"{row.name}: {speed.calls:,} calls of {speed.deployment[7:19]} on {where}"


def _said(row: SensorRow, kind: str) -> str:
    said = [
        f"{one.estimate:.3g} ({one.lower:.3g}–{one.upper:.3g}) {one.source}"
        for one in row.estimates
        if one.kind == kind
    ]
    return "; ".join(said) or "none yet"


def _percent(share: Share | None) -> str:
    return "–" if share is None or share.share is None else f"{100 * share.share:.1f}%"


def _number(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:,.0f}{unit}"

"""`tiltyard operations`: how serving went, slice by slice, from the log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

import click
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.reading import ReadingProgress
from tiltyard.cli.settings import load_settings
from tiltyard.costs.stretch import since_us
from tiltyard.events.log import EventLog
from tiltyard.operations.calls import Calls
from tiltyard.operations.figures import DIMENSIONS, Figures, SliceFigures, Spread, figures_of

PIPE_WIDTH: Final = 200
"""Characters, where the output is no terminal that has a width."""
HEADINGS: Final = {
    "model": "model version",
    "request": "request",
    "context": "prompt tokens",
    "tenant": "tenant",
    "class": "class",
    "region": "region",
}


@click.command()
@data_option
@config_option
@click.option(
    "--since",
    default="1h",
    show_default=True,
    help="From when on: 15m, 24h, 7d, or a moment such as 2026-11-30.",
)
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(DIMENSIONS),
    help="Only these tables; may be given more than once.  [all]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures for programs.")
@click.option("--watch", is_flag=True, help="Look again every few seconds, until Ctrl-C.")
@click.option(
    "--every", default=5.0, show_default=True, type=click.FloatRange(1, 3600), help="Seconds between looks."
)
def command(
    data: Path | None,
    config: Path | None,
    since: str,
    by: tuple[str, ...],
    *,
    as_json: bool,
    watch: bool,
    every: float,
) -> None:
    """Say how serving went: first tokens, further tokens, waiting, cache hits, failures; each slice by itself, the whole last.

    The page /operations of a running server has the same, and its workers, objectives and costs beside it.
    """
    if watch and as_json:
        raise click.UsageError("--json is said once; leave out --watch")
    settings = load_settings(config, data_dir=data)
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        calls = Calls(log)

        def look() -> Figures:
            now_us = time.time_ns() // 1000
            began_us = since_us(since, now_us)
            with ReadingProgress() as progress:
                seen = calls.look(2 * began_us - now_us, progress.show)
            return figures_of(
                seen, since_us=began_us, until_us=now_us + 1, now_us=now_us, regions=settings.file.regions
            )

        if as_json:
            click.echo(json.dumps(look().to_json(), ensure_ascii=False, indent=2))
            return
        console = Console()
        if not (watch and console.is_terminal):
            (console if console.is_terminal else Console(width=PIPE_WIDTH)).print(shown(look(), by))
            return
        with Live(shown(look(), by), console=console, auto_refresh=False, screen=False) as live:
            try:
                while True:
                    time.sleep(every)
                    live.update(shown(look(), by), refresh=True)
            except KeyboardInterrupt:
                return


def shown(figures: Figures, by: tuple[str, ...] = ()) -> RenderableType:
    """The tables as a terminal shows them."""
    if not figures.everything.requests:
        return Text("nobody asked anything in this time")
    parts: list[RenderableType] = []
    for section in figures.sections:
        if by and section.by not in by:
            continue
        table = _table(HEADINGS[section.by])
        for row in section.rows:
            table.add_row(*_cells(row.name, row))
        if section is figures.sections[-1] or (
            by and section.by == [one for one in DIMENSIONS if one in by][-1]
        ):
            table.add_section()
            table.add_row(*_cells("all", figures.everything))
        parts.append(table)
        if section.left_out:
            parts.append(Text(f"{section.left_out} more slices are not shown"))
    if figures.failures:
        parts.append(Text("newest failures"))
        parts += [
            Text(
                f"  {one.error}  {one.identity}  {one.worker}  {one.tenant}  tiltyard replay {one.generation}"
            )
            for one in figures.failures[:5]
        ]
    if figures.held_back:
        parts.append(Text(f"{figures.held_back} answers of battles of the last hour are left out"))
    return Group(*parts)


def _table(heading: str) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column(heading, overflow="fold", max_width=40)
    for name in (
        "requests", "failed", "first p50", "p95", "p99 ms", "token p50", "p95", "p99 ms", "waited p99", "cached", "accepted",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cells(name: str, row: SliceFigures) -> list[str]:
    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.1%}"

    def spread(one: Spread | None) -> list[str]:
        return ["–"] * 3 if one is None else [_ms(value) for value in (one.p50, one.p95, one.p99)]

    return [
        name,
        f"{row.requests:,}",
        share(row.failed_share),
        *spread(row.first_ms),
        *spread(row.token_ms),
        "–" if row.queue_ms is None else _ms(row.queue_ms.p99),
        share(row.cached_share),
        share(row.accepted_share),
    ]


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"

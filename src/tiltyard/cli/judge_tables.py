"""What `tiltyard judge` prints."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tiltyard.judge.report import RunReport
from tiltyard.judge.run import Done, Plan
from tiltyard.rating.proportions import Interval

_PIPE_WIDTH = 120  # characters, where the output is no terminal that has a width
SECONDS_BETWEEN_LINES = 1.0


class Counting:
    """Says on stderr how far long work has come, about once a second and at its end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown_at = time.monotonic()

    def __call__(self, done: int, total: int) -> None:  # noqa: D102  # the class says it
        now = time.monotonic()
        if done < total and now - self._shown_at < SECONDS_BETWEEN_LINES:
            return
        self._shown_at = now
        in_place = sys.stderr.isatty()
        start, newline = ("\r", done >= total) if in_place else ("", True)
        click.echo(f"{start}{self._what} {done:,} of {total:,}", err=True, nl=newline)


def console() -> Console:
    """A console as wide as the terminal, or wide enough for a pipe."""
    here = Console()
    return here if here.is_terminal else Console(width=_PIPE_WIDTH)


def percent(interval: Interval) -> str:
    """A share with its interval: `64.0% (51.2 to 75.1)`."""
    if not interval.n:
        return "–"
    return f"{interval.estimate:.1%} ({100 * interval.lower:.1f} to {100 * interval.upper:.1f})"


def run_json(report: RunReport, done: Done, planned: Plan) -> dict[str, object]:
    """A run for programs."""
    return {
        "judge": planned.judge.specification() | {"digest": planned.judge.digest, "name": planned.judge.name},
        "rubric": {"name": planned.rubric.name, "digest": planned.rubric.digest},
        "items": {
            "name": planned.items.name,
            "digest": planned.items.digest,
            "count": len(planned.items.items),
            "duplicates": planned.duplicates,
        },
        "asked": done.asked,
        "known": done.known,
        "report": asdict(report),
    }


def show_run(report: RunReport, done: Done, planned: Plan) -> None:
    """A run for people."""
    duplicates = f", {planned.duplicates} of them duplicates" if planned.duplicates else ""
    click.echo(
        f"{planned.items.name}: {len(planned.items.items):,} items{duplicates}; {done.asked:,} judgments asked for, "
        f"{done.known:,} in the log before; verdicts "
        f"{'held to a grammar' if planned.judge.held == 'grammar' else 'read from the text'}"
    )
    show_report(report)


def show_report(report: RunReport) -> None:
    """One judge under one rubric."""
    out = console()
    answered = f", answered as {report.line.answered_as}" if report.line.answered_as else ""
    out.print(f"\n[bold]{report.line.label}[/bold]{answered}", highlight=False)
    unscored = ", ".join(f"{count:,} {why}" for why, count in report.unscored.items())
    out.print(f"  judgments    {report.judgments:,}; unscored: {unscored or 'none'}", highlight=False)
    if report.outcomes:
        outcomes = ", ".join(f"{count:,} {what}" for what, count in report.outcomes.items())
        out.print(f"  pairs        {outcomes}", highlight=False)
        out.print(f"  both orders  agree in {percent(report.consistency)}", highlight=False)
        out.print(f"  first place  wins {percent(report.first_place)} of decisive judgments", highlight=False)
    if report.neutralised:
        out.print(
            f"  neutralised  {report.neutralised:,} verdict tokens and fences in answers", highlight=False
        )
    cost = "" if report.cost_usd is None else f", ${report.cost_usd:,.4f}"
    out.print(
        f"  tokens       {report.prompt_tokens:,} read, {report.completion_tokens:,} written{cost}",
        highlight=False,
    )
    table = Table(box=box.SIMPLE)
    for heading in ("identity", "measure"):
        table.add_column(heading)
    for heading in ("estimate", "interval", "n", "inconsistent", "unscored"):
        table.add_column(heading, justify="right")
    for row in report.behaviours:
        share = row.measure == "win_rate"
        numbers = (row.estimate, row.lower, row.upper)
        estimate, lower, upper = (f"{one:.1%}" if share else f"{one:.2f}" for one in numbers)
        table.add_row(
            row.identity,
            row.measure.replace("_", " "),
            estimate,
            f"{lower} to {upper}",
            f"{row.n:,}",
            f"{row.inconsistent:,}",
            f"{row.unscored:,}",
        )
    out.print(table)

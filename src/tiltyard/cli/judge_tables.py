"""What `tiltyard judge` prints."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tiltyard.cli.run_metrics import show_run_metrics
from tiltyard.judge.arena_rank import RankAgreement
from tiltyard.judge.bias import BiasReport
from tiltyard.judge.bridge import Bridge, TrendLine
from tiltyard.judge.drift import Drift
from tiltyard.judge.expert_results import ExpertReport
from tiltyard.judge.injections import Attacked
from tiltyard.judge.judgments import Line
from tiltyard.judge.people import Agreement, PoweredRate
from tiltyard.judge.preference import Training
from tiltyard.judge.report import RunReport
from tiltyard.judge.reward import RewardCalibration, ScoredBehaviour, ScoreWindow
from tiltyard.judge.run import Done, Plan
from tiltyard.rating.calibration_curve import Calibration
from tiltyard.rating.proportions import Interval
from tiltyard.rating.score_bridge import OUTCOMES, RatingBridge

_PIPE_WIDTH = 160  # characters, where the output is no terminal that has a width
SECONDS_BETWEEN_LINES = 1.0


class Counting:
    """Says on stderr how far long work has come, about once a second and at its end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown_at = time.monotonic()

    def __call__(self, done: int, total: int) -> None:  # noqa: D102  # the class says it
        show_run_metrics(done, total)
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
    if math.isnan(interval.estimate):
        return "–"
    if math.isnan(interval.lower):
        return f"{interval.estimate:.1%}"
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
    answered = f", answered as {report.line.answered_as[:40]}" if report.line.answered_as else ""
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


def show_drift(drift: Drift) -> None:
    """A repetition of a sentinel set beside the first."""
    lean = "leans one way" if drift.leans else "does not surely lean one way"
    click.echo(
        f"{drift.line.label}: repetition {drift.sample} against {drift.baseline}, {drift.items:,} judgments\n"
        f"  changed  {percent(drift.changed)}\n"
        f"  shift    {number(drift.shift)}: it {lean}\n"
        f"  unscored {drift.unscored_before:,} before, {drift.unscored_now:,} now"
    )


def show_attacks(found: Sequence[Attacked]) -> None:
    """What each kind of attack did."""
    table = Table(box=box.SIMPLE)
    table.add_column("attack")
    for heading in ("pairs", "moved", "won", "unscored"):
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(one.kind, f"{one.moved.n:,}", percent(one.moved), percent(one.won), f"{one.unscored:,}")
    console().print(table)


def show_measures(
    line: Line,
    bias: BiasReport | None,
    agreement: Sequence[Agreement],
    rates: Sequence[PoweredRate],
    ranks: RankAgreement | None,
) -> None:
    """How far a judge can be believed."""
    out = console()
    out.print(f"[bold]{line.label}[/bold]", highlight=False)
    if bias is not None:
        free = "people's votes stand for quality" if bias.controlled else (
            "no votes of people: only position is told apart from quality"
        )  # fmt: skip
        out.print(f"\nbias, of {bias.judgments:,} judgments; {free}", highlight=False)
        table = Table(box=box.SIMPLE)
        table.add_column("chance that")
        table.add_column("chance", justify="right")
        table.add_column("log-odds", justify="right")
        for effect in bias.effects:
            table.add_row(effect.meaning, percent(effect.chance), number(effect.log_odds))
        out.print(table)
    if agreement:
        out.print("agreement with people", highlight=False)
        table = Table(box=box.SIMPLE)
        table.add_column("slice")
        for heading in ("items", "votes", "same", "kappa", "both decided", "people", "alpha", "with judge"):
            table.add_column(heading, justify="right")
        for one in agreement:
            table.add_row(
                one.slice,
                f"{one.items:,}",
                f"{one.votes:,}",
                percent(one.raw),
                number(one.kappa),
                percent(one.decided),
                percent(one.people_among_themselves),
                number(one.alpha_people),
                number(one.alpha_with_judge),
            )
        out.print(table)
    if rates:
        rated = bias is None
        shown = number if rated else percent
        out.print(f"{'ratings' if rated else 'win rates'} by people and judge together", highlight=False)
        table = Table(box=box.SIMPLE)
        table.add_column("identity")
        for heading in ("together", "people alone", "judge alone", "weight", "worth"):
            table.add_column(heading, justify="right")
        for rate in rates:
            powered = rate.powered
            table.add_row(
                rate.identity,
                shown(powered.together),
                shown(powered.people),
                shown(powered.judge),
                f"{powered.weight:.2f}",
                "–" if math.isnan(powered.worth) else f"{powered.worth:.1f}x",
            )
        out.print(table)
    if ranks is not None:
        out.print(
            f"ranking of {len(ranks.models)} identities beside the arena's: rho {number(ranks.rho)}, tau "
            f"{number(ranks.tau)}",
            highlight=False,
        )


def show_bridge(bridge: Bridge) -> None:
    """A bridge that was built."""
    shift = bridge.map.shift
    click.echo(
        f"{bridge.old.label} -> {bridge.new.label}: {bridge.map.n:,} items that both judged\n"
        f"  same      {percent(bridge.agreement)}\n"
        f"  shift     {number(shift)}{'' if bridge.breaks else ', which may be nothing'}"
    )
    if isinstance(bridge.map, RatingBridge):
        click.echo(f"  map       new = {bridge.map.offset:.3f} + {bridge.map.slope:.3f} old")
        return
    for old, row in zip(OUTCOMES, bridge.map.chances, strict=True):
        chances = ", ".join(f"{new} {chance:.0%}" for new, chance in zip(OUTCOMES, row, strict=True))
        click.echo(f"  old {old:4}  {chances}")


def show_trends(found: Sequence[TrendLine]) -> None:
    """Lines of judges, apart."""
    for one in found:
        click.echo(f"{one.line.label}  {one.identity}  {one.measure.replace('_', ' ')}")
        for point in one.points:
            day = datetime.fromtimestamp(point.start_us / 1e6, UTC).strftime("%Y-%m-%d")
            shown = percent(point.interval) if one.measure == "win_rate" else number(point.interval)
            click.echo(f"  {day}  {shown}  n = {point.interval.n:,}")


def show_training(training: Training) -> None:
    """A preference model that was trained."""
    trained = training.model.trained
    click.echo(
        f"{training.model.name}: {trained.votes:,} votes, prior {trained.ridge:g}, temperature "
        f"{trained.temperature:.2f}\n"
        f"out of fold  foretells {percent(training.accuracy)} of decided votes; Brier {trained.brier:.4f} "
        f"({trained.brier_of_ignorance:.4f} of a coin)"
    )
    weights = sorted(zip(trained.features, trained.weights, strict=True), key=lambda one: -abs(one[1]))
    click.echo("weights      " + ", ".join(f"{name} {weight:+.2f}" for name, weight in weights))
    show_curve(training.calibration)


def show_scores(
    name: str,
    rows: Sequence[ScoredBehaviour],
    trend: Sequence[ScoreWindow],
    people: RewardCalibration | None,
) -> None:
    """What a scorer gave."""
    click.echo(name)
    for row in rows:
        click.echo(f"  {row.identity:24} {number(row.mean)}  n = {row.mean.n:,}")
    for window in trend if len(trend) > 1 else ():
        day = datetime.fromtimestamp(window.start_us / 1e6, UTC).strftime("%Y-%m-%d")
        click.echo(f"  from {day}  {number(window.mean)}  moved {number(window.drift)} standard deviations")
    if people is not None:
        click.echo(
            f"beside {people.votes:,} votes: foretells {percent(people.accuracy)} of the decided ones; log-odds a "
            f"standard deviation {number(people.slope)}"
        )
        show_curve(people.calibration)


def show_experts(found: Sequence[ExpertReport]) -> None:
    """What experts found."""
    for one in found:
        click.echo(
            f"{one.slice}: {one.items:,} items, {one.open:,} open, {one.adjudicated:,} adjudicated; reviewers agree in "
            f"{percent(one.agreement)}, alpha {number(one.alpha)}"
        )
        for who, interval in one.behaviours.items():
            click.echo(f"  {who:24} {number(interval)}  n = {interval.n:,}")


def show_curve(calibration: Calibration) -> None:
    """A calibration curve in characters: what was foretold, what came, and the distance."""
    width = 40
    for one in calibration.bins:
        cells = [" "] * (width + 1)
        for at in range(round(one.observed.lower * width), round(one.observed.upper * width) + 1):
            cells[at] = "─"
        cells[round(one.observed.estimate * width)] = "●"
        cells[round(one.predicted * width)] = "|"
        click.echo(
            f"  {one.predicted:6.1%} foretold  {''.join(cells)}  {percent(one.observed)}  n = {one.observed.n:,}"
        )


def number(interval: Interval) -> str:
    """Any figure with its interval: `0.31 (0.12 to 0.50)`; without one where it cannot be told."""
    if math.isnan(interval.estimate):
        return "–"
    if math.isnan(interval.lower):
        return f"{interval.estimate:.2f}"
    return f"{interval.estimate:.2f} ({interval.lower:.2f} to {interval.upper:.2f})"

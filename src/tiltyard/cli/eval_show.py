"""How `tiltyard eval` tells a report on the terminal, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tiltyard.evals.checks import Expert
from tiltyard.evals.comparison import Comparison, Summary
from tiltyard.evals.report import Report, headline, interval, label


def show(report: Report, paths: tuple[Path, Path], *, as_json: bool) -> None:
    """Print what a report says, and where it is."""
    if as_json:
        click.echo(json.dumps(_as_json(report, paths), ensure_ascii=False))
        return
    for summary in report.runs:
        unscored = sum(summary.unscored.values())
        click.echo(
            f"{label(summary)}: {interval(summary.score)}, {summary.samples} samples"
            + (f", {unscored} unscored" if unscored else "")
            + (f", {len(summary.evidence.waiting)} without an answer" if summary.evidence.waiting else "")
        )
        if (awaiting := summary.evidence.awaiting) > 0:
            run = summary.evidence.run
            for form in _forms(summary):
                click.echo(
                    f"  {awaiting} await experts: `tiltyard judge experts next {form} {run} --reviewer ID`"
                )
            click.echo(f"  `tiltyard eval reviews {run}`, or the same command, takes their verdicts in")
        for again in report.repetitions.get(summary.evidence.run, ()):
            click.echo(
                f"  {again.same} of {again.both} outputs are the same bytes as in repeat {again.repeat}"
            )
    for one in report.comparisons:
        click.echo(headline(one))
    click.echo(f"{paths[0]}\n{paths[1]}")


def _forms(summary: Summary) -> list[str]:
    checks = [check for item in summary.evidence.items.values() for check in item.checks]
    return sorted({check.form for check in checks if isinstance(check, Expert)})


def _as_json(report: Report, paths: tuple[Path, Path]) -> dict[str, object]:
    return {
        "runs": [_run_json(summary) for summary in report.runs],
        "comparisons": [_comparison_json(one) for one in report.comparisons],
        "repetitions": [
            {"run": run, "again": one.run, "same": one.same, "both": one.both}
            for run, found in report.repetitions.items()
            for one in found
        ],
        "html": str(paths[0]),
        "markdown": str(paths[1]),
    }


def _run_json(summary: Summary) -> dict[str, object]:
    score = summary.score
    return {
        "run": summary.evidence.run,
        "model": summary.evidence.started.alias,
        "behaviour": summary.evidence.started.behaviour,
        "mean": score and score.mean,
        "lower": score and score.lower,
        "upper": score and score.upper,
        "items": summary.items,
        "samples": summary.samples,
        "unscored": summary.unscored,
        "awaiting_experts": summary.evidence.awaiting,
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "cost": summary.cost,
        "outputs": summary.outputs,
    }


def _comparison_json(one: Comparison) -> dict[str, object]:
    difference, flips = one.difference, one.flips
    return {
        "against": one.other.evidence.run,
        "difference": difference and difference.mean,
        "lower": difference and difference.lower,
        "upper": difference and difference.upper,
        "pairs": one.pairs,
        "won": flips and flips.won,
        "lost": flips and flips.lost,
        "p": flips and flips.p,
        "same_outputs": one.same_outputs,
    }

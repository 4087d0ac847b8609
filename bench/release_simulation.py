"""Simulates releases whose candidate is as good as production, or two points worse, under our gate and under fixed thresholds.

    python bench/release_simulation.py            # a minute on one core; the table of docs/releases.md

Each release sees pairs (a battle's vote, or a judge's word on a copied prompt) one after the other: the candidate wins, loses
or ties (60% ties; the win rate counts a tie as half a win). The rules beside ours are those that Argo Rollouts and Flagger
document: a value is compared with a threshold at each interval, with so many failures allowed, and what has not been stopped
when the checks are over is promoted. Neither corrects for the number of looks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiltyard.rating.betting import BoundedMean

Outcome = Literal["promoted", "stopped", "held"]
TIES = 0.6
LOOK = 50
"""Pairs between two looks."""
SEED = 20_261_201


class End(NamedTuple):
    """How a simulated release ended, and after how many pairs."""

    outcome: Outcome
    pairs: int


def ours(margin: float, horizon: int) -> Callable[[NDArray[np.float64]], End]:
    """The gate `win_rate worse_by margin` with error 0.05, looked at every 50 pairs."""

    def rule(scores: NDArray[np.float64]) -> End:
        mean = BoundedMean(0.05, bounds=(-1, 1), margins=(-2 * margin,))
        for end in range(LOOK, horizon + 1, LOOK):
            mean.extend(scores[end - LOOK : end])
            if mean.below(-2 * margin):
                return End("stopped", end)
            if mean.above(-2 * margin):
                return End("promoted", end)
        return End("held", horizon)

    return rule


def threshold_so_far(limit: float, horizon: int) -> Callable[[NDArray[np.float64]], End]:
    """Argo's way with `failureLimit: 0`, on the mean of all so far: stopped at the first value beyond the limit."""

    def rule(scores: NDArray[np.float64]) -> End:
        ends = np.arange(LOOK, horizon + 1, LOOK)
        drop = -np.cumsum(scores)[ends - 1] / ends / 2
        beyond = np.flatnonzero(drop > limit)
        return End("stopped", int(ends[beyond[0]])) if beyond.size else End("promoted", horizon)

    return rule


def threshold_of_windows(
    limit: float, window: int, checks: int, allowed: int
) -> Callable[[NDArray[np.float64]], End]:
    """Flagger's way: `checks` windows, each compared by itself; stopped when more than `allowed` were beyond the limit."""

    def rule(scores: NDArray[np.float64]) -> End:
        drop = -scores[: window * checks].reshape(checks, window).mean(axis=1) / 2
        failures = np.flatnonzero(drop > limit)
        if failures.size > allowed:
            return End("stopped", int(failures[allowed] + 1) * window)
        return End("promoted", window * checks)

    return rule


def table(releases: int, horizon: int) -> str:
    """The results as Markdown."""
    rules: dict[str, Callable[[NDArray[np.float64]], End]] = {
        "tiltyard, at most 1 point worse": ours(0.01, horizon),
        "tiltyard, at most 2 points worse": ours(0.02, horizon),
        "threshold 2% on all so far, 6,000 pairs, no failure allowed (Argo)": threshold_so_far(0.02, 6000),
        "threshold 2% on all so far, 1,000 pairs, no failure allowed (Argo)": threshold_so_far(0.02, 1000),
        "threshold 2% on each of 10 windows of 100, 5 failures allowed (Flagger)": threshold_of_windows(
            0.02, 100, 10, 5
        ),
    }
    lines = [
        "| rule | equal: stopped | equal: held | 2 points worse: promoted | 2 points worse: held | median pairs to the end, equal / worse |",
        "|---|---|---|---|---|---|",
    ]
    for name, rule in rules.items():
        ends = {drop: simulate(rule, drop, releases, horizon) for drop in (0.0, 0.02)}
        equal, worse = ends[0.0], ends[0.02]
        pairs = " / ".join(f"{np.median([end.pairs for end in one]):,.0f}" for one in (equal, worse))
        lines.append(
            f"| {name} | {part(equal, 'stopped')} | {part(equal, 'held')} | {part(worse, 'promoted')} "
            f"| {part(worse, 'held')} | {pairs} |"
        )
    return "\n".join(lines)


def simulate(
    rule: Callable[[NDArray[np.float64]], End], drop: float, releases: int, horizon: int
) -> list[End]:
    """Run releases whose candidate's win rate is `drop` below one half; every rule meets the same ones."""
    rng = np.random.default_rng(SEED)
    win = (1 - TIES) / 2 - drop
    chances = [win, TIES, 1 - TIES - win]
    return [rule(rng.choice([1.0, 0.0, -1.0], p=chances, size=horizon)) for _ in range(releases)]


def part(ends: list[End], outcome: Outcome) -> str:
    """The share of releases that ended so."""
    return f"{sum(end.outcome == outcome for end in ends) / len(ends):.1%}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--releases", type=int, default=1000)
    parser.add_argument("--horizon", type=int, default=30_000, help="pairs after which ours is held")
    given = parser.parse_args()
    print(table(given.releases, given.horizon))

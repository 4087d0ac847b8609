"""How many votes information-gain pairing saves against uniform pairing until intervals are as narrow: a seeded simulation.

    TILTYARD_DATA=../shared/data python bench/pairing.py [--seeds 8]

True skills are those of real models (the fit of PyPI `leaderbot`'s 1.67 million votes); votes are drawn from Bradley-Terry
with a tie in five. Both policies get the same models and prior votes; each board is fitted as the leaderboard fits it
(sandwich intervals at 95 %), and the count is of votes until its widest, or its mean, half-interval is below the goal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tiltyard.arena.pair_weights import Standing, pair_probabilities
from tiltyard.arena.pairing_settings import PairingSettings
from tiltyard.rating.bradley_terry import fit
from tiltyard.rating.counts import PairCounts

TIE_SHARE = 0.2
BATCH = 100  # votes between two looks at the board; the arena looks again after some seconds


@dataclass(frozen=True)
class Scenario:
    """A board before the first simulated vote."""

    name: str
    skills: NDArray[np.float64]
    """theta of each model."""
    newcomers: int
    """So many of them have no votes yet; the others have `votes_each`."""
    votes_each: int
    goal_widest: float
    """Points."""
    goal_mean: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--most", type=int, default=60_000, help="votes after which a run gives up")
    chosen = parser.parse_args()
    start = time.perf_counter()
    for scenario in scenarios():
        results = {
            policy: [run(scenario, settings, seed, chosen.most) for seed in range(chosen.seeds)]
            for policy, settings in POLICIES.items()
        }
        print(f"{scenario.name} ({len(scenario.skills)} models, {chosen.seeds} seeds)")
        for goal, points in (("widest", scenario.goal_widest), ("mean", scenario.goal_mean)):
            medians = {
                policy: statistics.median(votes[goal] for votes in found) for policy, found in results.items()
            }
            uniform = medians["uniform"]
            for policy, median in medians.items():
                saved = 1 - median / uniform
                print(
                    f"  {goal:6} half-interval <= {points:4.0f}: {policy:22} {median:8,.0f} votes {saved:6.0%} fewer"
                )
    print(f"{time.perf_counter() - start:.0f} s")


POLICIES = {
    "uniform": PairingSettings(policy="uniform"),
    "information k=1": PairingSettings(sharpness=1.0),
    "information k=2": PairingSettings(sharpness=2.0),
    "information k=4": PairingSettings(sharpness=4.0),
}


def scenarios() -> list[Scenario]:
    path = Path(os.environ.get("TILTYARD_DATA", "../shared/data"))
    data = json.loads((path / "eval/votes/chatbotarena_20240814_pair_counts.json").read_text())
    ratings = fit(PairCounts.from_pairs(data["models"], data["X"], data["Y"])).ratings
    spread = np.sort(ratings)[:: -(len(ratings) // 20)][:20]  # every sixth model, best first
    top = np.sort(ratings)[::-1][:20]
    return [
        Scenario("new board, every sixth model", theta(spread), 0, 0, 30, 25),
        Scenario("new board, the best twenty", theta(top), 0, 0, 30, 25),
        Scenario("2 newcomers among 18 with 1,500 votes", theta(spread), 2, 1500, 25, 20),
    ]


def theta(ratings: NDArray[np.float64]) -> NDArray[np.float64]:
    return (ratings - ratings.mean()) * np.log(10) / 400


def run(scenario: Scenario, settings: PairingSettings, seed: int, most: int) -> dict[str, int]:
    """Return the votes that each goal took."""
    rng = np.random.default_rng(seed)
    skills = scenario.skills
    size = len(skills)
    names = [f"m{number:03}" for number in range(size)]
    first, second = np.triu_indices(size, 1)
    counts = np.zeros((len(first), 4), dtype=np.int64)
    if scenario.newcomers:
        step = size // scenario.newcomers  # newcomers of all strengths
        new = np.arange(size) % step == step // 2
        old = ~(new[first] | new[second])
        chances = np.where(old, 1.0, 0.0) / old.sum()
        vote(counts, rng, skills, chances, scenario.votes_each * int((~new).sum()) // 2)
    reached: dict[str, int] = {}
    votes = 0
    while len(reached) < 2 and votes < most:
        table = np.zeros((size, size))
        table[first, second] = counts[:, 0] + (counts[:, 2] + counts[:, 3]) / 2
        table[second, first] = counts[:, 1] + (counts[:, 2] + counts[:, 3]) / 2
        chances = pair_probabilities(Standing(table), settings)[first, second]
        vote(counts, rng, skills, chances / chances.sum(), BATCH)
        votes += BATCH
        ratings = fit(PairCounts.from_pairs(names, np.stack([first, second], axis=1), counts))
        if len(ratings.components) > 1 or ratings.unbounded or (ratings.votes < 10).any():
            continue  # an interval of a handful of votes says little; wait
        half = (ratings.upper - ratings.lower) / 2
        for goal, width, limit in (
            ("widest", float(half.max()), scenario.goal_widest),
            ("mean", float(half.mean()), scenario.goal_mean),
        ):
            if width <= limit:
                reached.setdefault(goal, votes)
    return {goal: reached.get(goal, most) for goal in ("widest", "mean")}


def vote(
    counts: NDArray[np.int64],
    rng: np.random.Generator,
    skills: NDArray[np.float64],
    chances: NDArray[np.float64],
    votes: int,
) -> None:
    """Draw so many votes into `counts`, pairs by `chances`."""
    first, second = np.triu_indices(len(skills), 1)
    drawn = rng.multinomial(votes, chances)
    p = 1 / (1 + np.exp(skills[second] - skills[first]))
    # Ties at the expense of both, as often for every pair as the smaller chance allows: scores keep their mean.
    tie = np.minimum(TIE_SHARE, 2 * np.minimum(p, 1 - p))
    outcome = np.stack([p - tie / 2, 1 - p - tie / 2, tie, np.zeros_like(tie)], axis=1)
    counts += rng.multinomial(drawn, np.maximum(outcome, 0))


if __name__ == "__main__":
    main()

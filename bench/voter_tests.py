"""How often each test of a voter flags honest voters and four kinds of others, beside the reference file.

    TILTYARD_DATA=../shared/data python bench/voter_tests.py [--voters 500]

Pairs are those of 1.67 million real votes (PyPI `leaderbot` 0.4.3). Seeded. The product rules of the Chatbot Arena paper and of
FastChat's code are computed here only to show why they are not used: `reference_anomaly_flag_rates.json` has their rates.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tiltyard.rating.counts import PairCounts
from tiltyard.rating.simulated_voters import KINDS, Kind, flag_rates, simulate
from tiltyard.rating.voter_tests import OutcomeChances

BOOSTED = "llama-2-70b-chat"
REFERENCE_NAMES = {"surprise": "surprise_z", "side": "position_binom", "model": "target_z"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--voters", type=int, default=500)
    voters = parser.parse_args().voters
    folder = Path(os.environ.get("TILTYARD_DATA", "../shared/data")) / "eval"
    data = json.loads((folder / "votes/chatbotarena_20240814_pair_counts.json").read_text())
    board = PairCounts.from_pairs(data["models"], data["X"], data["Y"])
    reference = json.loads((folder / "reference_abuse_test_power.json").read_text())
    start = time.perf_counter()
    print(f"share flagged at alpha 0.01, {voters} voters each (in brackets: the reference)")
    for votes in (20, 50, 100):
        for kind in KINDS:
            known = reference["flag_rates_by_votes_per_user"][str(votes)][
                "target" if kind == "booster" else kind
            ]
            found = flag_rates(
                board, kind, votes=votes, voters=voters, alpha=0.01, seed=votes, boosted=BOOSTED
            )
            shown = "  ".join(
                f"{test} {share:6.1%} ({known[REFERENCE_NAMES[test]]:6.1%})"
                for test, share in found._asdict().items()
            )
            print(f"  {votes:4} votes  {kind:10}  {shown}")
    rates = json.loads((folder / "reference_anomaly_flag_rates.json").read_text())["flag_rate"]
    print(f"product rules at alpha 0.05, 100 votes, {voters} voters")
    kinds: tuple[Kind, ...] = ("honest", "random")
    for kind in kinds:
        known = rates["honest" if kind == "honest" else "random_clicker"]
        found_rules = product_rules(board, kind, voters)
        print(
            f"  {kind:10}  "
            + "  ".join(f"{rule} {share:6.2%} ({known[rule]:6.2%})" for rule, share in found_rules.items())
        )
    print(f"{time.perf_counter() - start:.0f} s")


def product_rules(board: PairCounts, kind: Kind, voters: int, alpha: float = 0.05) -> dict[str, float]:
    """Share of voters that the two published rules and a valid one flag."""
    known = OutcomeChances.from_counts(board).counts
    rng = np.random.default_rng(5)
    flags = {"fastchat_code": 0, "evalue_valid": 0, "fisher_paper": 0}
    for one in simulate(board, kind, votes=100, voters=voters, seed=1):
        history = known[one.a, one.b]
        for rule, flagged in (
            ("fastchat_code", product_flag(history, one.outcomes, alpha)),
            ("evalue_valid", evalue_flag(history, one.outcomes, alpha)),
            ("fisher_paper", fisher_flag(history, one.outcomes, alpha, rng)),
        ):
            flags[rule] += flagged
    return {rule: count / voters for rule, count in flags.items()}


def product_flag(history: NDArray[np.float64], outcomes: NDArray[np.int64], alpha: float) -> bool:
    """FastChat's rule, as described in prose: the running product of 1/(2p), ties left out of the history."""
    wins, losses = history[:, 0], history[:, 1]
    total = wins + losses
    for towards, lost in ((wins, 1), (losses, 0)):
        with np.errstate(divide="ignore", invalid="ignore"):
            p = np.where(outcomes == lost, 1.0, towards / total)
            running = np.cumsum(-np.log(2 * p))
        if np.nanmax(running) >= math.log(2 / alpha):
            return True
    return False


def p_values(
    history: NDArray[np.float64], outcomes: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`(1 + #{h >= H}) / (n + 1)`, and the same from the other side, ties as a half."""
    wins, losses, ties = history[:, 0], history[:, 1], history[:, 2] + history[:, 3]
    total = wins + losses + ties
    score = np.array([1.0, 0.0, 0.5, 0.5])[outcomes]
    above = np.select([score == 1, score == 0], [wins, total], wins + ties)
    below = np.select([score == 0, score == 1], [losses, total], losses + ties)
    return (1 + above) / (1 + total), (1 + below) / (1 + total)


def evalue_flag(history: NDArray[np.float64], outcomes: NDArray[np.int64], alpha: float) -> bool:
    """The running product of 1/(2 sqrt p), which is below 2/alpha for an honest voter but for alpha/2 of them."""
    return any(
        np.cumsum(-np.log(2 * np.sqrt(p))).max() >= math.log(2 / alpha) for p in p_values(history, outcomes)
    )


def fisher_flag(
    history: NDArray[np.float64], outcomes: NDArray[np.int64], alpha: float, rng: np.random.Generator
) -> bool:
    """Equation 10 of the Chatbot Arena paper at five random moments, both directions."""
    moments = rng.integers(1, len(outcomes) + 1, 5)
    for p in p_values(history, outcomes):
        running = np.cumsum(-2 * np.log(p))
        if any(running[j - 1] >= chi2_quantile(2 * int(j), 1 - alpha / 5) for j in moments):
            return True
    return False


def chi2_quantile(freedom: int, probability: float) -> float:
    """Wilson and Hilferty's approximation (1931)."""
    z = NormalDist().inv_cdf(probability)
    return freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3


if __name__ == "__main__":
    main()

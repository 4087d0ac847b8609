from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tiltyard.errors import InvalidRequest
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.simulated_voters import KINDS, Kind, flag_rates
from tiltyard.rating.voter_tests import OutcomeChances, examine, two_sided_binomial

BOOSTED = "llama-2-70b-chat"
"""A model of middling strength (0.46 of its points): boosting a strong one surprises nobody."""


def codes(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("successes", "trials", "p"),
    # R: binom.test(3, 20)$p.value and so on
    [(3, 20, 0.002576828), (10, 20, 1.0), (0, 0, 1.0), (15, 20, 0.04138947), (60, 100, 0.05688793)],
)
def test_the_binomial_test_is_exact(successes: int, trials: int, p: float) -> None:
    assert two_sided_binomial(successes, trials) == pytest.approx(p, rel=1e-6)


def test_surprise_by_hand() -> None:
    """One vote with chances 1/2, 1/4 and 1/4 (a tie and both bad are one outcome)."""
    found = examine(np.array([[0.5, 0.25, 0.125, 0.125]]), codes(0), codes(1), codes(3))
    # s is log 2 or log 4, evenly: mean 1.5 log 2, sd 0.5 log 2; the vote is one sd above
    assert found.surprise == pytest.approx(0.5 * math.erfc(1 / math.sqrt(2)), rel=1e-12)
    assert (found.models_tested, found.model, found.worst_model) == (0, 1.0, -1)


def test_the_model_that_is_boosted_is_named() -> None:
    # model 7 meets five rivals whom it should beat half of the time, no ties, and wins every time from either side
    chances = np.tile([0.5, 0.5, 0.0, 0.0], (6, 1))
    found = examine(chances, codes(7, 1, 7, 3, 7, 5), codes(0, 7, 2, 7, 4, 7), codes(0, 1, 0, 1, 0, 1))
    z = 6 * 0.5 / math.sqrt(6 * 0.25)
    assert (found.worst_model, found.models_tested) == (7, 1)
    assert found.toward == pytest.approx(z)
    assert found.model == pytest.approx(math.erfc(z / math.sqrt(2)))
    assert found.side == 1.0


def test_no_votes_find_nothing() -> None:
    found = examine(np.zeros((0, 4)), codes(), codes(), codes())
    assert found.least == 1.0


def test_chances_of_other_votes_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="each vote needs four"):
        examine(np.zeros((2, 4)), codes(0), codes(1), codes(0))


def test_a_voter_is_compared_with_the_others_and_not_with_himself() -> None:
    votes = PairCounts.from_votes(["x"] * 9 + ["y"], ["y"] * 9 + ["x"], ["a"] * 4 + ["tie"] * 5 + ["a"])
    others = OutcomeChances.from_counts(votes).without(codes(1), codes(0), codes(0))
    assert others.counts[0, 1].tolist() == [4, 0, 5, 0]
    assert others.counts[1, 0].tolist() == [0, 4, 5, 0]


def test_chances_are_the_same_from_either_side() -> None:
    votes = PairCounts.from_votes(["x"] * 6, ["y"] * 6, ["a", "a", "b", "tie", "both_bad", "a"])
    chances = OutcomeChances.from_counts(votes).of(codes(0, 1), codes(1, 0))
    assert chances[0, [1, 0, 2, 3]] == pytest.approx(chances[1], rel=1e-12)
    assert chances.sum(axis=1) == pytest.approx([1, 1], rel=1e-12)


@pytest.mark.parametrize("votes", [20, 50, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_power_and_false_positives_are_those_of_the_reference(
    eval_data: Path, arena_counts: PairCounts, kind: Kind, votes: int
) -> None:
    """On the pairs of 1.67 million real votes, at alpha 0.01 (`docs/integrity.md` has the table).

    The reference file does not say how its bad voters vote; `simulated_voters` does, as was found to agree.
    """
    reference = json.loads((eval_data / "reference_abuse_test_power.json").read_text())
    known = "target" if kind == "booster" else kind
    expected = reference["flag_rates_by_votes_per_user"][str(votes)][known]
    voters = 150
    found = flag_rates(
        arena_counts, kind, votes=votes, voters=voters, alpha=reference["alpha"], seed=votes, boosted=BOOSTED
    )
    pairs = [(found.side, expected["position_binom"]), (found.model, expected["target_z"])]
    if (
        kind != "booster"
    ):  # how much it surprises depends on the boosted model, which the reference keeps to itself
        pairs.append((found.surprise, expected["surprise_z"]))
    for ours, theirs in pairs:
        pooled = max((ours * voters + theirs * 500) / (voters + 500), 0.005)
        # 3.5 standard errors of the difference of two simulated shares: one in 2,000 by chance
        assert abs(ours - theirs) <= 3.5 * math.sqrt(pooled * (1 - pooled) * (1 / voters + 1 / 500)), (
            ours,
            theirs,
        )

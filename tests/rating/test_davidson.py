"""Davidson's model of ties: closed forms, a known truth, and its relation to Bradley-Terry."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tiltyard.errors import InvalidRequest
from tiltyard.rating.bradley_terry import POINTS, fit
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.davidson import fit_davidson


def test_two_models_have_the_closed_form() -> None:
    # e^d = wins / losses = 8 / 2, and nu = ties / sqrt(wins * losses) = 6 / 4
    result = fit_davidson(PairCounts.from_pairs(["x", "y"], [[0, 1]], [[8, 2, 6, 0]]))
    assert np.diff(result.ratings.ratings)[0] == pytest.approx(-400 * math.log10(4))
    assert result.tie_strength == pytest.approx(1.5)
    assert result.tie_strength_lower < 1.5 < result.tie_strength_upper
    assert result.probabilities("x", "y") == pytest.approx((0.5, 0.375, 0.125))
    # The three shares are fitted exactly, so the sandwich is the delta method's: Var log(w / l) = 1/w + 1/l.
    v = result.ratings.covariance / POINTS**2
    assert v[0, 0] + v[1, 1] - 2 * v[0, 1] == pytest.approx(1 / 8 + 1 / 2)
    # Var log nu = 1/t + (1/w + 1/l) / 4
    spread = math.log(result.tie_strength_upper / result.tie_strength) / 1.959963984540054
    assert spread**2 == pytest.approx(1 / 6 + (1 / 8 + 1 / 2) / 4)


def test_without_a_tie_it_is_bradley_terry() -> None:
    counts = PairCounts.from_pairs(
        ["x", "y", "z"], [[0, 1], [1, 2], [0, 2]], [[9, 4, 0, 0], [7, 5, 0, 0], [8, 3, 0, 0]]
    )
    result, plain = fit_davidson(counts), fit(counts)
    np.testing.assert_allclose(result.ratings.ratings, plain.ratings, atol=1e-8)
    np.testing.assert_allclose(result.ratings.covariance, plain.covariance, atol=1e-6)
    assert result.tie_strength == 0
    assert result.ratings.method == "davidson/1"


def test_a_known_truth_is_found() -> None:
    # Expected counts of the model itself are fitted without residual, whatever the number of models.
    theta, nu = np.array([0.9, 0.2, -0.3, -0.8]), 0.7
    pairs = [[i, j] for i in range(4) for j in range(i + 1, 4)]
    counts = []
    for i, j in pairs:
        root = math.exp((theta[i] - theta[j]) / 2)
        total = root + 1 / root + nu
        counts.append([round(1e9 * root / total), round(1e9 / root / total), round(1e9 * nu / total), 0])
    result = fit_davidson(PairCounts.from_pairs(["k", "l", "m", "n"], pairs, counts))
    np.testing.assert_allclose(result.ratings.ratings, 1000 + POINTS * theta, atol=1e-4)
    assert result.tie_strength == pytest.approx(nu, abs=1e-7)
    assert result.ratings.converged


def test_both_bad_and_anchor_are_the_same_options() -> None:
    counts = PairCounts.from_pairs(["x", "y"], [[0, 1]], [[8, 2, 2, 4]])
    assert fit_davidson(counts).tie_strength == pytest.approx(1.5)
    dropped = fit_davidson(counts, both_bad="drop", anchor=("y", 900.0))
    assert dropped.tie_strength == pytest.approx(0.5)
    assert dropped.ratings.ratings[1] == 900.0


def test_an_undefeated_model_stays_finite_and_is_named() -> None:
    result = fit_davidson(
        PairCounts.from_pairs(["x", "y", "z"], [[0, 1], [1, 2]], [[5, 0, 0, 0], [4, 3, 2, 0]])
    )
    assert result.ratings.unbounded == {"x": "undefeated"}
    assert np.isfinite(result.ratings.upper).all()


def test_nothing_but_ties_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="all 3 votes are ties") as caught:
        fit_davidson(PairCounts.from_pairs(["x", "y"], [[0, 1]], [[0, 0, 3, 0]]))
    assert caught.value.param == "ties"


def test_no_votes_give_no_ratings() -> None:
    result = fit_davidson(PairCounts.from_pairs(["x", "y"], [], []))
    assert np.isnan(result.ratings.ratings).all()

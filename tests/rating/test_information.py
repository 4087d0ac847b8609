from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.errors import InvalidRequest
from tiltyard.rating.information import PRIOR, Knowledge, gains, knowledge, win_probabilities


def table(size: int, seed: int) -> np.ndarray:
    wins = np.random.default_rng(seed).integers(0, 30, (size, size)).astype(float)
    np.fill_diagonal(wins, 0)
    return wins


def test_two_models_by_hand() -> None:
    # H = 100/4 L + prior I; along (1, -1)/sqrt 2 it is 2 * 25 + prior, so V_11 = 1/2 / (50 + prior)
    known = knowledge(np.array([[0.0, 50.0], [50.0, 0.0]]))
    assert known.theta.tolist() == [0.0, 0.0]
    assert known.covariance[0, 0] == pytest.approx(0.5 / (50 + PRIOR), rel=1e-12)
    narrower = 2 * (math.sqrt(0.5 / (50 + PRIOR)) - math.sqrt(0.5 / (50.5 + PRIOR)))
    assert gains(known)[0, 1] == pytest.approx(narrower, rel=1e-9)


@given(st.integers(2, 7), st.integers(0, 2**32 - 1))
def test_the_gain_is_what_one_more_vote_takes_from_all_intervals(size: int, seed: int) -> None:
    """The update of rank one equals inverting the larger information anew."""
    known = knowledge(table(size, seed))
    p = win_probabilities(known.theta)
    centre = np.eye(size) - 1 / size
    # the inverse of V on the sum-zero space
    information = np.linalg.pinv(known.covariance)
    before = np.sqrt(np.diagonal(known.covariance)).sum()
    gain = gains(known)
    for i in range(size):
        for j in range(i):
            x = np.zeros(size)
            x[i], x[j] = 1, -1
            more = information + p[i, j] * (1 - p[i, j]) * np.outer(x, x)
            after = centre @ np.linalg.inv(more + np.ones((size, size))) @ centre
            assert gain[i, j] == pytest.approx(before - np.sqrt(np.diagonal(after)).sum(), rel=1e-5, abs=1e-9)
            assert gain[j, i] == gain[i, j] >= 0


def test_the_pair_that_teaches_most_holds_the_model_that_nobody_knows() -> None:
    wins = np.full((5, 5), 40.0)
    np.fill_diagonal(wins, 0)
    wins[4, :] = wins[:, 4] = 1
    wins[4, 4] = 0
    gain = gains(knowledge(wins))
    assert gain[4, :4].min() > 10 * gain[:4, :4].max()


def test_a_pair_that_is_decided_beforehand_teaches_less_than_an_even_one() -> None:
    known = Knowledge(np.array([2.0, 0.0, 0.0, -2.0]), np.eye(4) - 0.25)
    gain = gains(known)
    assert gain[1, 2] > gain[0, 1] > gain[0, 3]


@pytest.mark.parametrize("wins", [[[0.0, -1.0], [0.0, 0.0]], [[0.0, math.nan], [0.0, 0.0]], [[0.0, 1.0]]])
def test_counts_that_are_none_are_refused(wins: list[list[float]]) -> None:
    with pytest.raises(InvalidRequest, match="not negative"):
        knowledge(np.array(wins))


def test_a_prior_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="above 0"):
        knowledge(np.zeros((2, 2)), prior=0)

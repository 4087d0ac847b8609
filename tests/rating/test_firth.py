"""Logistic regression whose intervals hold near certainty: against a published example, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tiltyard.errors import InvalidRequest
from tiltyard.rating.firth import fit_firth


def test_one_chance_is_jeffreys_posterior_mode() -> None:
    """With an intercept alone Firth's estimate of k in n is (k + 1/2) / (n + 1): Firth (1993), section 3.1."""
    outcomes = np.array([1.0] * 9 + [0.0])
    fit = fit_firth(np.ones((10, 1)), outcomes)
    assert 1 / (1 + math.exp(-fit.coefficients[0])) == pytest.approx(9.5 / 11, abs=1e-6)


def test_a_cause_that_decides_everything_has_a_finite_effect_and_both_ends_of_its_interval() -> None:
    """Maximum likelihood has none here. By hand: the profile of k = n is n log p + 1/2 log(p (1 - p)), with its maximum at (n + 1/2) / (n + 1)."""
    n = 20
    found = fit_firth(np.ones((n, 1)), np.ones(n)).interval(0)
    best = (n + 0.5) / (n + 1)

    def height(p: float) -> float:
        return n * math.log(p) + 0.5 * math.log(p * (1 - p))

    for bound in (found.lower, found.upper):
        p = 1 / (1 + math.exp(-bound))
        assert 2 * (height(best) - height(p)) == pytest.approx(1.959964**2, rel=1e-3)
    assert found.lower < found.estimate < found.upper


@pytest.mark.parametrize("effect", [0.0, 2.0, 4.0])
def test_intervals_hold_at_every_size_of_an_effect(effect: float) -> None:
    """A normal interval with the sandwich covers 58 to 74 in 100 at log-odds 4 and 50 questions asked in both orders."""
    rng = np.random.default_rng(20261201)
    first = np.tile([1.0, -1.0], 50)
    inside, times = 0, 120
    for _ in range(times):
        other = np.repeat(rng.uniform(-1, 1, 50), 2)
        design = np.stack([first, other], 1)
        outcomes = (rng.random(100) < 1 / (1 + np.exp(-effect * first))).astype(float)
        found = fit_firth(design, outcomes, clusters=[*np.repeat(np.arange(50), 2)])
        inside += all(
            found.interval(column).lower <= truth <= found.interval(column).upper
            for column, truth in ((0, effect),)
        )
    # 0.05 misses are expected of 1: 120 of them are at most 12 in 99.4 of 100 runs.
    assert inside >= times - 12


def test_copies_of_a_question_make_nothing_surer() -> None:
    rng = np.random.default_rng(7)
    first = rng.choice([-1.0, 1.0], 60)
    outcomes = (rng.random(60) < 1 / (1 + np.exp(-first))).astype(float)
    alone = fit_firth(first[:, None], outcomes, clusters=[*range(60)]).interval(0)
    copied = fit_firth(
        np.repeat(first, 5)[:, None], np.repeat(outcomes, 5), clusters=[*np.repeat(np.arange(60), 5)]
    ).interval(0)
    assert copied.clusters == 60
    assert copied.half == pytest.approx(
        alone.half, rel=0.12
    )  # Jeffreys' prior weighs a fifth beside five copies


@pytest.mark.parametrize(
    ("design", "outcomes", "param"),
    [
        (np.ones((3, 1)), np.ones(2), "outcomes"),
        (np.ones((2, 1)), np.array([0.0, 1.5]), "outcomes"),
        (np.ones((3, 2)), np.ones(3), "design"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    design: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    outcomes: np.ndarray[tuple[int], np.dtype[np.float64]],
    param: str,
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        fit_firth(design, outcomes)
    assert refused.value.param == param

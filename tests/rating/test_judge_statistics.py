"""Bridges, logistic regression, rank correlation and calibration, against known truths and other programs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tiltyard.errors import InvalidRequest
from tiltyard.rating.calibration_curve import calibrate
from tiltyard.rating.logistic import fit_logistic, logistic
from tiltyard.rating.proportions import Interval, mean_interval
from tiltyard.rating.rank_correlation import kendall, spearman
from tiltyard.rating.score_bridge import OUTCOMES, bridge_ratings, bridge_verdicts


def test_a_bridge_recovers_a_known_shift_and_stretch() -> None:
    """New = 1.5 + 0.8 old, each judge with noise of its own: the line is inside its interval in 95 of 100 bridges."""
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        quality = rng.normal(6, 1.5, 120)
        old = quality + rng.normal(0, 0.5, 120)
        new = 1.5 + 0.8 * (quality + rng.normal(0, 0.5, 120))
        bridge = bridge_ratings(old, new)
        across = bridge.across(Interval(7.0, 7.0, 7.0, 1, 1))
        inside += across.lower <= 1.5 + 0.8 * 7.0 <= across.upper
    assert abs(inside - 190) <= 13  # four standard deviations
    assert bridge.slope == pytest.approx(0.8, abs=0.1)


def test_a_bridge_there_and_back_is_where_it_began() -> None:
    rng = np.random.default_rng(4)
    old = rng.normal(6, 1, 50)
    new = old * 0.5 + rng.normal(0, 0.4, 50)
    there, back = bridge_ratings(old, new), bridge_ratings(new, old)
    mean = mean_interval(old)
    crossed = there.across(mean)
    assert back.across(crossed).estimate == pytest.approx(mean.estimate)
    assert crossed.half > there.slope * mean.half  # the bridge's own doubt is added


def test_a_bridge_of_verdicts_recovers_the_stricter_judges_shares() -> None:
    """The new judge says tie where the old one saw a winner in 3 of 10 pairs, whichever side won."""
    rng = np.random.default_rng(5)
    old = rng.choice(OUTCOMES, 400, p=[0.5, 0.1, 0.4])
    new = np.where(rng.random(400) < 0.3, "tie", old)
    bridge = bridge_verdicts(list(old), list(new))
    assert bridge.chances[0] == pytest.approx([0.7, 0.3, 0.0], abs=0.06)
    assert bridge.chances[0] == pytest.approx(bridge.chances[2][::-1])
    across = bridge.across([800, 0, 200])
    # 0.8 wins become 0.56 wins and 0.3 more ties: 0.71; the interval knows it
    assert across.lower < 0.71 < across.upper
    assert across.half < 0.05


def test_judges_that_never_disagreed_on_the_sample_may_still_do_so_elsewhere() -> None:
    """40 pairs alike: by Wilson (1927) up to z^2 / (n + z^2) = 8.76% of others may differ, in either direction."""
    old = ["a"] * 25 + ["b"] * 15
    bridge = bridge_verdicts(old, old)
    assert bridge.shift.estimate == 0
    assert (bridge.shift.lower, bridge.shift.upper) == pytest.approx((-0.08762, 0.08762), abs=1e-5)
    across = bridge.across([900, 0, 100])
    assert across.half > 0.02  # 1,000 old verdicts alone would give 0.0186


def test_the_shift_of_a_bridge_is_inside_its_interval_in_95_of_100_samples() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        old = rng.choice(OUTCOMES, 60, p=[0.5, 0.1, 0.4])
        new = np.where(
            (old == "a") & (rng.random(60) < 0.1), "b", old
        )  # -1 where a won, in one of ten: -0.05
        shift = bridge_verdicts(list(old), list(new)).shift
        inside += shift.lower <= -0.05 <= shift.upper
    assert inside >= 180  # 190 are expected; below 180 is one run in a thousand


def test_a_bridge_that_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="3 items that both judges scored; it needs 8"):
        bridge_ratings([1, 2, 3], [1, 2, 3])
    with pytest.raises(InvalidRequest, match="the same rating"):
        bridge_ratings([1] * 9, list(range(9)))
    with pytest.raises(InvalidRequest, match="one cluster"):
        bridge_verdicts(["a"] * 9, ["b"] * 9, clusters=[0] * 9)


def test_coefficients_and_clustered_errors_are_those_of_statsmodels() -> None:
    """`GLM(Binomial).fit(cov_type="cluster")` of statsmodels 0.14, its errors times sqrt(10 / 9)."""
    y = np.array([1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1.0])
    x = np.array([1, 0, 1, 0.5, 0, 1, 0.5, 0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0.5, 0, 1])
    design = np.stack([np.ones(20), x, np.arange(20) / 10], axis=1)
    fit = fit_logistic(design, y, clusters=[row // 2 for row in range(20)])
    assert fit.converged
    assert fit.coefficients == pytest.approx([-3.43999625, 7.02417286, 1.23722023], abs=1e-6)
    assert np.sqrt(np.diagonal(fit.covariance)) == pytest.approx(
        [1.56994897, 1.88831946, 0.91292386], abs=1e-5
    )


def test_separated_outcomes_are_finite_under_a_ridge_and_said_not_to_converge_without() -> None:
    """AlpacaEval #260, #310: the model that corrected for length broke, or warned and went on."""
    x = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    y = np.array([0.0, 0.0, 1.0, 1.0])
    assert not fit_logistic(x, y).converged
    held = fit_logistic(x, y, ridge=1.0)
    assert held.converged
    assert 0.5 < held.coefficients[0] < 3
    with pytest.raises(InvalidRequest, match="not independent"):
        fit_logistic(np.ones((4, 2)), y)


def test_rank_correlations_are_those_of_scipy() -> None:
    """`spearmanr` and `kendalltau` of SciPy 1.16 on columns with ties."""
    x, y = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8]
    rho, tau = spearman(x, y), kendall(x, y)
    assert rho.estimate == pytest.approx(0.13471506281091267)
    assert tau.estimate == pytest.approx(0.13041013273932525)
    assert rho.lower < 0 < rho.upper
    assert spearman([1, 2, 3, 4, 5], [5, 4, 3, 2, 1]).estimate == pytest.approx(-1)
    assert math.isnan(kendall([1, 1, 1], [1, 2, 3]).estimate)


def test_chances_that_hold_are_calibrated_and_bold_ones_are_not() -> None:
    rng = np.random.default_rng(6)
    logits = rng.normal(0, 1.5, 4000)
    truth = (rng.random(4000) < logistic(logits)).astype(float)
    right, bold = calibrate(logistic(logits), truth), calibrate(logistic(3 * logits), truth)
    assert right.gap < 0.03
    assert bold.gap > 0.08
    assert right.brier.estimate < bold.brier.estimate
    assert right.bias.lower < 0 < right.bias.upper
    assert sum(one.observed.n for one in right.bins) == 4000
    assert sum(one.observed.lower <= one.predicted <= one.observed.upper for one in right.bins) >= 8

"""Tests that may be looked at all the time: validity at every look, power, and the arithmetic by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.errors import InvalidRequest
from tiltyard.rating.betting import TRUNCATION, BoundedMean
from tiltyard.rating.mixture_sequence import BURN_IN, Moments, mixture_interval
from tiltyard.rating.quantile_sequence import plausible_ranks, quantile, quantile_interval

ALPHA = 0.05


def log_capital(values: list[float], m: float, sign: int) -> list[float]:
    """aGRAPA (Waudby-Smith & Ramdas 2024, eq. 37) written as in the paper, value by value; the oracle."""
    log, path, total, squares = 0.0, [], 0.5, 0.25
    for t, x in enumerate(values, 1):
        mean, variance = total / t, squares / t
        bet = (mean - m) / (variance + (mean - m) ** 2)
        bet = min(max(bet, 0), TRUNCATION / m) if sign > 0 else max(min(bet, 0), -TRUNCATION / (1 - m))
        log += math.log(1 + bet * (x - m))
        path.append(log)
        total += x
        squares += (x - total / (t + 1)) ** 2
    return path


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=120),
    st.sampled_from([0.2, 0.5, 0.9]),
    st.integers(1, 50),
)
@settings(max_examples=40)
def test_the_capital_is_the_papers_however_the_values_come(values: list[float], m: float, size: int) -> None:
    mean = BoundedMean(ALPHA, margins=(m,))
    for start in range(0, len(values), size):
        mean.extend(values[start : start + size])
    limit = math.log(1 / ALPHA)
    assert mean.above(m) == (max(log_capital(values, m, +1)) >= limit)
    assert mean.below(m) == (max(log_capital(values, m, -1)) >= limit)


def streams(rng: np.random.Generator, drop: float, ties: float, runs: int, n: int) -> np.ndarray:
    """Outcomes 1, 0, -1 of pairs; the candidate's win rate (a tie is half a win) is `drop` below one half."""
    win = (1 - ties) / 2 - drop
    return rng.choice([1.0, 0.0, -1.0], p=[win, ties, 1 - ties - win], size=(runs, n))


def test_looking_after_each_of_three_thousand_pairs_errs_in_at_most_five_of_a_hundred() -> None:
    """Argo #1905 and all fixed thresholds: the more often one looks, the more often chance decides."""
    rng = np.random.default_rng(20_261_201)
    wrong = naive = 0
    for x in streams(rng, 0.0, 0.5, 200, 3000):
        mean = BoundedMean(ALPHA, bounds=(-1, 1), margins=(0.0,))
        mean.extend(x)
        wrong += mean.below(0.0)
        n = np.arange(1, x.size + 1)
        z = np.cumsum(x)[50:] / np.sqrt(n[50:] * 0.5)
        naive += bool((z < -1.645).any())
    assert wrong <= 18  # Binomial(200, 0.05): 18 or fewer with probability 0.995
    assert naive > 60  # the same look with a z of 1.645 and no correction


def test_at_the_margin_itself_a_candidate_passes_in_at_most_five_of_a_hundred() -> None:
    rng = np.random.default_rng(7)
    passed = 0
    for x in streams(rng, 0.02, 0.6, 200, 4000):
        mean = BoundedMean(ALPHA, bounds=(-1, 1), margins=(-0.04,))
        mean.extend(x)
        passed += mean.above(-0.04)
    assert passed <= 18


def test_an_equal_candidate_is_certified_within_the_anchors_number_of_pairs() -> None:
    """The shared canary arithmetic: 2 points, 60% ties, a median of 2,200 pairs."""
    rng = np.random.default_rng(11)
    needed = []
    for x in streams(rng, 0.0, 0.6, 60, 8000):
        mean = BoundedMean(ALPHA, bounds=(-1, 1), margins=(-0.04,))
        needed.append(8000)
        for start in range(0, 8000, 100):
            mean.extend(x[start : start + 100])
            if mean.above(-0.04):
                needed[-1] = start + 100
                break
    assert 1_400 <= np.median(needed) <= 2_600


def test_the_interval_holds_the_mean_at_all_looks() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(40):
        mean = BoundedMean(0.025)
        values = rng.random(600) < 0.3
        missed = False
        for start in range(0, 600, 60):
            mean.extend(values[start : start + 60])
            missed |= not mean.interval.low <= 0.3 <= mean.interval.high
        wrong += missed
    assert wrong <= 7  # Binomial(40, 0.05): 7 or fewer with probability 0.999
    assert mean.interval.high - mean.interval.low < 0.2


def test_values_beyond_the_bounds_and_nonsense_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="between 0 and 1"):
        BoundedMean(ALPHA).extend([1.5])
    with pytest.raises(InvalidRequest, match="alpha is 2"):
        BoundedMean(2.0)
    assert BoundedMean(ALPHA).mean is None


def test_the_mixture_boundary_is_the_formulas() -> None:
    # n = 10 000, s = 1, 2 alpha = 0.05, tuned for 1 000: r^2 = (5.9915 + ln 6.9915) / 1000 = 0.0079362; n r^2 + 1 = 80.362;
    # sqrt(80.362 / (1e8 * 0.0079362) * ln(80.362 / 0.0025)) = sqrt(1.01260e-4 * 10.3780) = 0.032417
    interval = mixture_interval(Moments(10_000, 0.0, 9_999.0), 0.025)
    assert interval is not None
    assert interval.high == pytest.approx(0.032417, abs=2e-6)
    assert mixture_interval(Moments(BURN_IN - 1, 0.0, 1.0), 0.025) is None


def test_moments_are_those_of_the_values() -> None:
    moments = Moments()
    for value in (2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0):
        moments = moments.with_value(value)
    assert (moments.n, moments.mean) == (8, 5.0)
    assert moments.variance == pytest.approx(32 / 7)  # sum of squared deviations 32, by hand


def test_mixture_intervals_of_skewed_values_miss_rarely_at_any_look() -> None:
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(200):
        x = rng.exponential(size=2000)
        n = np.arange(1, 2001)
        mean = np.cumsum(x) / n
        squares = np.cumsum(x**2) - n * mean**2
        looks = range(BURN_IN, 2000, 25)
        intervals = [mixture_interval(Moments(i + 1, mean[i], squares[i]), 0.025) for i in looks]
        wrong += any(i is not None and not i.low <= 1.0 <= i.high for i in intervals)
    assert wrong <= 18


def test_quantile_intervals_miss_rarely_at_any_look() -> None:
    rng = np.random.default_rng(9)
    wrong = 0
    for _ in range(150):
        x = rng.exponential(size=1500)
        intervals = [quantile_interval(x[:n], 0.9, 0.025) for n in range(20, 1501, 80)]
        wrong += any(not i.low <= math.log(10) <= i.high for i in intervals)
    assert wrong <= 15  # Binomial(150, 0.05): 15 or fewer with probability 0.996


def test_few_values_say_nothing_of_a_ninety_ninth_percentile() -> None:
    first, last = plausible_ranks(100, 0.99, 0.025)
    assert first <= 99 <= last == 100
    assert quantile_interval([1.0] * 100, 0.99, 0.025).high == math.inf
    assert quantile([5.0, 1.0, 9.0], 0.99) == 9.0

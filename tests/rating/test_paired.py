"""Means and differences over the same items: worked examples, published intervals, and coverage in simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.errors import InvalidRequest
from tiltyard.rating.paired import (
    clustered_error,
    flips,
    mean_score,
    paired_difference,
    t_quantile,
)
from tiltyard.rating.proportions import z_of


def test_clusters_widen_the_error_by_hand() -> None:
    """Inspect #1251: the clustered standard error lacked C/(C-1).

    Scores 1 1 0 0 in two clusters: residuals sum to 1 and -1, so (1 + 1) / 16 = 1/8, times 2/1 is 1/4. Alone, each
    has a residual of 1/2: 4 * 1/4 / 16 * 4/3 = 1/12.
    """
    x = np.array([1.0, 1.0, 0.0, 0.0])
    assert clustered_error(x, ["a", "a", "b", "b"]) == (pytest.approx(math.sqrt(1 / 4)), 2)
    assert clustered_error(x, ["a", "b", "c", "d"]) == (pytest.approx(math.sqrt(1 / 12)), 4)
    assert clustered_error(x, ["a", "b", "c", "d"])[0] == pytest.approx(x.std(ddof=1) / 2)


def test_quantiles_are_those_of_the_tables() -> None:
    # NIST/SEMATECH e-Handbook, table 1.3.6.7.2; normal: 1.959964, 2.575829.
    assert z_of(0.95) == pytest.approx(1.959963984540054, abs=1e-12)
    assert z_of(0.99) == pytest.approx(2.575829303548901, abs=1e-12)
    for p, degrees, value in [
        (0.975, 1, 12.706),
        (0.975, 5, 2.571),
        (0.95, 30, 1.697),
        (0.995, 10, 3.169),
        (0.975, 100, 1.984),
    ]:
        assert t_quantile(p, degrees) == pytest.approx(value, abs=5e-4)
    assert t_quantile(0.025, 5) == -t_quantile(0.975, 5)


def test_a_mean_of_zeros_and_ones_has_wilson_s_interval() -> None:
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3: as printed there.
    for right, n, lower, upper in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        found = mean_score([1.0] * right + [0.0] * (n - right), [str(i) for i in range(n)])
        assert (found.lower, found.upper, found.method) == (
            pytest.approx(lower, abs=5e-5),
            pytest.approx(upper, abs=5e-5),
            "wilson",
        )


def test_matched_pairs_have_agresti_and_min_s_interval() -> None:
    # Agresti and Min 2005: Wald on b + 1/2, c + 1/2, n + 2. Here b = 9, c = 2, n = 40: (9.5 - 2.5) / 42 = 1/6,
    # variance (12 - 49/42) / 42^2.
    one = [1.0] * 9 + [0.0] * 2 + [1.0] * 29
    other = [0.0] * 9 + [1.0] * 2 + [1.0] * 29
    found = paired_difference(one, other, [str(i) for i in range(40)])
    half = z_of(0.95) * math.sqrt(12 - 49 / 42) / 42
    assert (found.mean, found.method, found.decided) == (7 / 40, "agresti-min", True)
    assert (found.lower, found.upper) == (pytest.approx(1 / 6 - half), pytest.approx(1 / 6 + half))


def test_no_flips_are_no_proof_of_equality() -> None:
    found = paired_difference([1.0] * 30, [1.0] * 30, [str(i) for i in range(30)])
    assert (found.mean, found.decided) == (0.0, False)
    assert found.upper == pytest.approx(z_of(0.95) / 32)


def test_flips_are_tested_exactly() -> None:
    # McNemar, exact: 1 of 9 two-sided is 2 * (1 + 9) / 2^9.
    found = flips([1.0] * 8 + [-1.0] + [0.0] * 100)
    assert (found.won, found.lost, found.p) == (8, 1, 20 / 512)
    assert flips([0.0]).p == 1.0
    assert flips([1.0, -1.0]).p == 1.0
    assert flips([1.0] * 2000).p == pytest.approx(0.0, abs=1e-300)


def test_intervals_of_clusters_cover_and_those_that_ignore_them_do_not() -> None:
    """Ten items a passage that rise and fall together: 95% intervals by clusters cover, by items far less."""
    rng = np.random.default_rng(7)
    passages = np.repeat(np.arange(24), 10)
    by_cluster = by_item = 0
    rounds = 120
    for _ in range(rounds):
        shared = rng.normal(0, 0.3, 24)[passages]
        x = 0.2 + shared + rng.normal(0, 0.1, 240)
        clustered = paired_difference(x.tolist(), [0.0] * 240, [str(p) for p in passages])
        alone = paired_difference(x.tolist(), [0.0] * 240, [str(i) for i in range(240)])
        by_cluster += clustered.lower <= 0.2 <= clustered.upper
        by_item += alone.lower <= 0.2 <= alone.upper
    assert by_cluster / rounds > 0.9
    assert by_item / rounds < 0.6


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from("abcd")
        ),
        min_size=2,
    )
)
def test_turning_the_sides_turns_the_interval(rows: list[tuple[float, float, str]]) -> None:
    one, other, clusters = zip(*rows, strict=True)
    found, turned = paired_difference(one, other, clusters), paired_difference(other, one, clusters)
    assert found.mean == -turned.mean
    assert (found.lower, found.upper) == (pytest.approx(-turned.upper), pytest.approx(-turned.lower))
    assert found.lower - 1e-12 <= found.mean <= found.upper + 1e-12 or found.method == "agresti-min"
    assert -1 <= found.lower <= found.upper <= 1


def test_what_makes_no_sense_is_refused_by_name() -> None:
    for call, field in [
        (lambda: mean_score([], []), "scores"),
        (lambda: mean_score([1.0], []), "clusters"),
        (lambda: paired_difference([1.0], [], ["a"]), "scores"),
        (lambda: mean_score([1.0], ["a"], confidence=1.0), "confidence"),
    ]:
        with pytest.raises(InvalidRequest) as refused:
            call()
        assert refused.value.param == field
    alone = mean_score([0.5, 0.7], ["a", "a"])
    assert (alone.lower, alone.upper, alone.method) == (0.0, 1.0, "none")

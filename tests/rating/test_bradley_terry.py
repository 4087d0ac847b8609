"""Bradley-Terry by hand: small cases whose answer has a closed form, and properties that hold for any votes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.errors import InvalidRequest
from tiltyard.rating.bootstrap import bootstrap
from tiltyard.rating.bradley_terry import CENTRE, POINTS, fit
from tiltyard.rating.counts import PairCounts

Z_95 = 1.959963984540054


def pair(wins: int, losses: int, ties: int = 0, both_bad: int = 0) -> PairCounts:
    return PairCounts.from_pairs(["x", "y"], [[0, 1]], [[wins, losses, ties, both_bad]])


def variance_of_difference(counts: PairCounts, model: str, rival: str) -> float:
    ratings = fit(counts)
    i, j = ratings.models.index(model), ratings.models.index(rival)
    v = ratings.covariance / POINTS**2
    return float(v[i, i] + v[j, j] - 2 * v[i, j])


def test_three_wins_to_one_is_the_logarithm_of_three() -> None:
    # theta_x - theta_y = ln 3, each half of it from the mean; in points 200 log10 3.
    ratings = fit(pair(3, 1))
    assert ratings.ratings == pytest.approx([1000 + 200 * math.log10(3), 1000 - 200 * math.log10(3)])
    # p = 3/4: H = 4 * 3/16 = 3/4, G = 3 (1/4)^2 + (3/4)^2 = 3/4; the difference has variance 4/3, a rating 1/3.
    half = Z_95 * POINTS * math.sqrt(1 / 3)
    assert ratings.upper - ratings.ratings == pytest.approx([half, half])
    assert ratings.win_probability("x", "y") == pytest.approx(0.75)
    assert ratings.converged


def test_ties_count_half_and_narrow_the_sandwich() -> None:
    # 3 wins, 1 loss, 2 ties: p = 4/6, theta difference ln 2. H = 6 * 2/9 = 4/3;
    # G = 3 (1/3)^2 + (2/3)^2 + 2 (1/6)^2 = 5/6; G / H^2 = 15/32, where coin flips would give 1/H = 3/4.
    counts = pair(3, 1, 2)
    assert fit(counts).ratings[0] == pytest.approx(1000 + 200 * math.log10(2))
    assert variance_of_difference(counts, "x", "y") == pytest.approx(15 / 32)


def test_three_models_that_agree_exactly() -> None:
    # x:y 2:1, y:z 2:1, x:z 4:1 is fitted without residual by steps of ln 2. Without ties V = H+, and the
    # variance of a difference is the effective resistance between the two in a network of conductances
    # 2/3, 2/3, 4/5: x-z 1 / (4/5 + 1/3) = 15/17; x-y 1 / (2/3 + (2/3 * 4/5) / (2/3 + 4/5)) = 33/34.
    counts = PairCounts.from_pairs(
        ["x", "y", "z"], [[0, 1], [1, 2], [0, 2]], [[2, 1, 0, 0], [2, 1, 0, 0], [4, 1, 0, 0]]
    )
    step = 400 * math.log10(2)
    assert fit(counts).ratings == pytest.approx([1000 + step, 1000, 1000 - step])
    assert variance_of_difference(counts, "x", "z") == pytest.approx(15 / 17)
    assert variance_of_difference(counts, "x", "y") == pytest.approx(33 / 34)


def test_both_bad_is_a_tie_or_nothing_by_name() -> None:
    """FastChat #1440: "both bad" was a tie without anybody saying so."""
    counts = pair(3, 1, 0, 4)
    assert fit(counts).ratings[0] == pytest.approx(1000 + 200 * math.log10(5 / 3))
    dropped = fit(counts, both_bad="drop")
    assert dropped.ratings[0] == pytest.approx(1000 + 200 * math.log10(3))
    assert (fit(counts).votes.tolist(), dropped.votes.tolist()) == ([8, 8], [4, 4])
    with pytest.raises(InvalidRequest, match="'tie' or 'drop'") as caught:
        fit(counts, both_bad="loss")  # type: ignore[arg-type]
    assert caught.value.param == "both_bad"


def test_an_anchor_moves_every_rating_and_widens_no_interval() -> None:
    """FastChat #3377: anchored bootstrap draws inflated every other interval."""
    counts = PairCounts.from_pairs(
        ["x", "y", "z"], [[0, 1], [1, 2], [0, 2]], [[9, 4, 1, 0], [7, 5, 0, 2], [8, 3, 2, 0]]
    )
    free, anchored = fit(counts), fit(counts, anchor=("y", 1114.0))
    assert anchored.ratings[1] == 1114.0
    np.testing.assert_allclose(np.diff(anchored.ratings), np.diff(free.ratings), atol=1e-9)
    np.testing.assert_allclose(anchored.upper - anchored.lower, free.upper - free.lower, atol=1e-9)
    with pytest.raises(InvalidRequest, match="'w' has no votes") as caught:
        fit(counts, anchor=("w", 1000.0))
    assert caught.value.param == "anchor"


def test_one_single_vote_has_a_finite_rating_a_wide_interval_and_a_mark() -> None:
    # Half a virtual win each way makes it 1.5 : 0.5, that is ln 3; n p (1 - p) = 2 * 3/16 = 3/8.
    ratings = fit(pair(1, 0))
    assert ratings.ratings[0] == pytest.approx(1000 + 200 * math.log10(3))
    assert ratings.standard_errors[0] == pytest.approx(POINTS * math.sqrt(8 / 3) / 2)
    assert ratings.unbounded == {"x": "undefeated", "y": "winless"}
    assert ratings.virtual_pairs == 1
    assert ratings.votes.tolist() == [1, 1]  # virtual votes are not counted as votes


def test_one_single_tie_does_not_get_an_interval_of_zero() -> None:
    # The squared residual of a tie at even odds is 0; the model's own variance n p (1 - p) = 1/4 stands in.
    ratings = fit(pair(0, 0, 1))
    assert ratings.ratings.tolist() == [1000.0, 1000.0]
    assert ratings.standard_errors[0] == pytest.approx(POINTS * math.sqrt(4) / 2)
    assert ratings.model_based == {"x", "y"}
    assert not ratings.unbounded


def test_an_undefeated_newcomer_leaves_the_others_almost_where_they_were() -> None:
    board = [[0, 1], [1, 2], [0, 2]]
    votes = [[30, 20, 10, 0], [25, 15, 5, 0], [40, 10, 5, 5]]
    before = fit(PairCounts.from_pairs(["x", "y", "z"], board, votes))
    after = fit(PairCounts.from_pairs(["x", "y", "z", "new"], [*board, [3, 0]], [*votes, [3, 0, 0, 0]]))
    assert after.unbounded == {"new": "undefeated"}
    assert after.virtual_pairs == 1
    assert after.models[0] == "new"
    assert after.ratings[0] > after.ratings[1:].max()
    gaps = np.diff(after.ratings[1:]) - np.diff(before.ratings)
    assert np.abs(gaps).max() < 12  # half a win more for x, out of 130 votes


def test_two_groups_divided_by_one_sided_votes_are_called_separated() -> None:
    ratings = fit(
        PairCounts.from_pairs(
            ["a", "b", "c", "d", "e"],
            [[0, 1], [2, 3], [3, 4], [2, 4], [0, 2]],
            [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [5, 0, 0, 0]],
        )
    )
    assert ratings.unbounded == {"a": "separated", "b": "separated"}
    assert np.isfinite(ratings.ratings).all()


def test_parts_that_no_vote_connects_are_named_and_never_compared() -> None:
    ratings = fit(
        PairCounts.from_pairs(["a", "b", "c", "d", "idle"], [[0, 1], [2, 3]], [[3, 1, 0, 0], [20, 10, 0, 0]])
    )
    assert ratings.components == (("c", "d"), ("a", "b"))
    assert ratings.component.tolist() == [1, 1, 0, 0, -1]
    assert ratings.ratings[:2].mean() == pytest.approx(1000)
    assert ratings.ratings[2:4].mean() == pytest.approx(1000)
    assert math.isnan(ratings.ratings[4])
    assert (ratings.covariance[:2, 2:] == 0).all()
    for rival in ("c", "idle"):
        with pytest.raises(InvalidRequest, match="no chain of votes connects 'a'"):
            ratings.win_probability("a", rival)
    shifted = fit(
        PairCounts.from_pairs(["a", "b", "c", "d"], [[0, 1], [2, 3]], [[3, 1, 0, 0], [20, 10, 0, 0]]),
        anchor=("a", 1500),
    )
    assert shifted.ratings[2:].mean() == pytest.approx(1000)  # another part is not shifted


@pytest.mark.parametrize("models", [[], ["x"], ["x", "y", "z"]])
def test_no_votes_give_no_ratings(models: list[str]) -> None:
    ratings = fit(PairCounts.from_pairs(models, [], []))
    assert np.isnan(ratings.ratings).all()
    assert ratings.components == ()
    assert ratings.converged


def test_a_thousand_to_one_is_no_problem_for_newton() -> None:
    ratings = fit(pair(1_000_000, 1))
    assert ratings.converged
    assert ratings.ratings[0] - ratings.ratings[1] == pytest.approx(400 * 6)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, float("nan")])
def test_a_confidence_that_is_no_share_is_refused(confidence: float) -> None:
    with pytest.raises(InvalidRequest, match="between 0 and 1") as caught:
        fit(pair(1, 1), confidence=confidence)
    assert caught.value.param == "confidence"


@pytest.mark.parametrize("weights", [[1.0, 1.0], [0.0], [-1.0], [float("nan")]])
def test_weights_that_fit_no_pair_are_refused(weights: list[float]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fit(pair(1, 1), weights=np.array(weights))
    assert caught.value.param == "weights"


def test_one_resample_is_no_interval() -> None:
    with pytest.raises(InvalidRequest, match="2 or more"):
        bootstrap(pair(3, 1), seed=1, resamples=1)


def test_bootstrap_of_an_undefeated_model_stays_finite_and_says_so() -> None:
    drawn = bootstrap(pair(5, 0), seed=1, resamples=20)
    assert np.isfinite(drawn.upper).all()
    assert drawn.completed == 20


VOTES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from(["a", "b", "tie", "both_bad"])).filter(
        lambda vote: vote[0] != vote[1]
    ),
    max_size=40,
)
RING = [(node, (node + 1) % 5, "a") for node in range(5)]  # makes every rating finite
FLIP = {"a": "b", "b": "a", "tie": "tie", "both_bad": "both_bad"}
Vote = tuple[int, int, str]


def counts_of(votes: list[Vote], names: str = "vwxyz") -> PairCounts:
    return PairCounts.from_votes(
        [names[a] for a, _, _ in votes], [names[b] for _, b, _ in votes], [choice for _, _, choice in votes]
    )


@given(VOTES, st.randoms(use_true_random=False))
def test_neither_order_nor_side_of_votes_changes_a_bit(votes: list[Vote], random: object) -> None:
    shuffled = [(b, a, FLIP[choice]) if (a + b) % 2 else (a, b, choice) for a, b, choice in votes]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = fit(counts_of(votes)), fit(counts_of(shuffled))
    assert one.models == other.models
    np.testing.assert_array_equal(one.ratings, other.ratings)
    np.testing.assert_array_equal(one.covariance, other.covariance)


@given(VOTES, st.permutations("vwxyz"))
def test_renaming_models_renames_ratings(votes: list[Vote], names: list[str]) -> None:
    one, other = fit(counts_of(votes + RING)), fit(counts_of(votes + RING, "".join(names)))
    for old, new in zip("vwxyz", names, strict=True):
        i, j = one.models.index(old), other.models.index(new)
        assert one.ratings[i] == pytest.approx(other.ratings[j], abs=1e-6)
        assert one.upper[i] == pytest.approx(other.upper[j], abs=1e-6)


@given(VOTES)
def test_turning_every_vote_around_mirrors_the_ratings(votes: list[Vote]) -> None:
    turned = [(a, b, FLIP[choice]) for a, b, choice in votes + RING]
    one, other = fit(counts_of(votes + RING)), fit(counts_of(turned))
    np.testing.assert_allclose(one.ratings + other.ratings, 2 * CENTRE, atol=1e-6)


@given(VOTES)
def test_mean_rating_is_one_thousand_and_covariances_sum_to_zero(votes: list[Vote]) -> None:
    ratings = fit(counts_of(votes + RING))
    assert ratings.ratings.mean() == pytest.approx(CENTRE)
    np.testing.assert_allclose(ratings.covariance.sum(axis=1), 0, atol=1e-6)


@given(VOTES)
def test_twice_the_votes_narrow_intervals_by_the_root_of_two(votes: list[Vote]) -> None:
    once, twice = fit(counts_of(votes + RING)), fit(counts_of(2 * (votes + RING)))
    np.testing.assert_allclose(twice.ratings, once.ratings, atol=1e-6)
    np.testing.assert_allclose(twice.upper - twice.lower, (once.upper - once.lower) / math.sqrt(2), rtol=1e-6)


@given(VOTES)
def test_any_votes_give_finite_ratings_and_no_interval_of_zero(votes: list[Vote]) -> None:
    ratings = fit(counts_of(votes))
    assert ratings.converged
    assert np.isfinite(ratings.ratings).all()
    assert (ratings.upper - ratings.lower > 1).all()


@given(VOTES)
def test_expected_scores_equal_observed_scores(votes: list[Vote]) -> None:
    # The first-order condition of the maximum: each model's predicted score is the score that it took.
    counts = counts_of(votes + RING)
    ratings = fit(counts)
    for node, model in enumerate(ratings.models):
        wins, _, ties, both_bad = counts.tally[node]
        predicted = 0.0
        for i, j, row in zip(counts.first, counts.second, counts.counts, strict=True):
            if node in (i, j):
                rival = ratings.models[j if node == i else i]
                predicted += row.sum() * ratings.win_probability(model, rival)
        assert predicted == pytest.approx(wins + (ties + both_bad) / 2, abs=1e-6)


def test_copies_of_one_model_with_the_same_votes_have_the_same_interval_to_the_bit() -> None:
    """arena-hard-auto #8: 100 unseeded resamples gave identical copies other intervals, and others in each run."""
    counts = PairCounts.from_pairs(
        ["base", "copy one", "copy two"], [[0, 1], [0, 2]], [[11, 7, 3, 1], [11, 7, 3, 1]]
    )
    ratings = fit(counts)
    half = ratings.upper - ratings.ratings
    assert half[1] == pytest.approx(half[2], rel=1e-12)
    assert ratings.ratings[1] == pytest.approx(ratings.ratings[2], rel=1e-12)
    np.testing.assert_array_equal(fit(counts).upper, ratings.upper)
    np.testing.assert_array_equal(bootstrap(counts, seed=4).upper, bootstrap(counts, seed=4).upper)

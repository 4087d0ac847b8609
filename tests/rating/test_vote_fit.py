"""Ratings from single votes: weights, clusters, and the same numbers as from counts where they must agree."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.errors import InvalidRequest
from tiltyard.rating.bradley_terry import POINTS, fit
from tiltyard.rating.vote_fit import fit_votes
from tiltyard.rating.votes import Votes
from tiltyard.rating.weights import (
    effective_votes,
    inverse_probability,
    pair_balance,
    recency,
    to_mean_one,
    voter_cap,
)

Columns = tuple[list[str], list[str], list[str]]
DAY_US = 86_400_000_000


def simulated(seed: int, votes: int = 400) -> Votes:
    rng = np.random.default_rng(seed)
    names = ["k", "l", "m", "n", "o"]
    a, b = rng.permuted(np.tile(np.arange(5), (votes, 1)), axis=1)[:, :2].T
    outcome = rng.choice(["a", "b", "tie", "both_bad"], votes, p=[0.4, 0.3, 0.2, 0.1])
    return Votes.from_columns(
        [names[i] for i in a],
        [names[i] for i in b],
        outcome.tolist(),
        voter=[f"voter {v}" for v in rng.integers(0, 40, votes)],
        time_us=np.arange(votes) * DAY_US,
        pair_probability=rng.uniform(0.05, 0.2, votes),
    )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 30), drop=st.booleans())
def test_single_votes_give_what_their_counts_give(seed: int, size: int, drop: bool) -> None:
    # Small sizes have models without votes, undefeated models, groups and lone ties among them.
    votes = simulated(seed, size)
    one, other = (
        fit_votes(votes, both_bad="drop" if drop else "tie").ratings,
        fit(votes.counts, both_bad="drop" if drop else "tie"),
    )
    np.testing.assert_allclose(one.ratings, other.ratings, atol=1e-6)
    np.testing.assert_allclose(one.covariance, other.covariance, atol=1e-4)
    assert (one.unbounded, one.model_based, one.components) == (
        other.unbounded,
        other.model_based,
        other.components,
    )
    assert one.votes.tolist() == other.votes.tolist()


def test_balanced_pairs_equal_the_reweighted_run_of_arena_rank(
    csv_votes: Columns, reference: dict[str, Any]
) -> None:
    run = reference["arena33k_subset_25938|reweighted=True|tight"]["result"]
    votes = Votes.from_columns(*csv_votes)
    ratings = fit_votes(votes, weights=to_mean_one(pair_balance(votes))).ratings
    np.testing.assert_allclose(ratings.ratings, [run[model]["rating"] for model in ratings.models], atol=1e-3)


def test_a_weight_of_two_is_two_votes_for_ratings() -> None:
    votes = simulated(3)
    weights = np.where(np.arange(len(votes)) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(len(votes)), weights.astype(int))
    doubled = Votes(votes.models, votes.a[twice], votes.b[twice], votes.outcome[twice])
    np.testing.assert_allclose(
        fit_votes(votes, weights=weights).ratings.ratings, fit(doubled.counts).ratings, atol=1e-8
    )


def test_inverse_probability_recovers_ratings_where_the_draw_followed_the_outcome_of_a_third_thing() -> None:
    # x beats y 3:1 when served often (P = 3/4) and loses 1:3 when served seldom (P = 1/4); in the population where
    # both are served alike they are equal.
    votes = Votes.from_columns(
        ["x"] * 16,
        ["y"] * 16,
        ["a"] * 9 + ["b"] * 3 + ["a"] + ["b"] * 3,
        pair_probability=[0.75] * 12 + [0.25] * 4,
    )
    weights = to_mean_one(inverse_probability(votes))
    assert fit_votes(votes, weights=weights).ratings.ratings == pytest.approx([1000.0, 1000.0])
    assert fit_votes(votes).ratings.ratings[0] > 1040
    # 12 votes of weight 4/3 and 4 of weight 4: 32^2 / (12 * 16/9 + 4 * 16)
    assert fit_votes(votes, weights=weights).effective_votes == pytest.approx(12)


def test_one_voter_who_votes_a_hundred_times_widens_the_clustered_interval_only() -> None:
    """Inspect #1251: standard errors that know which observations belong together."""
    # 20 voters each for x or for y on 5 equal votes: the effective number of votes is 20, not 100.
    winner = ["a"] * 60 + ["b"] * 40
    votes = Votes.from_columns(
        ["x"] * 100, ["y"] * 100, winner, voter=[f"v{number // 5}" for number in range(100)]
    )
    alone, grouped = fit_votes(votes), fit_votes(votes, by_voter=True)
    assert grouped.voters == 20
    np.testing.assert_allclose(grouped.ratings.ratings, alone.ratings.ratings)
    # Within a voter all votes agree: G grows by 5, and 20 / 19 is the correction for few voters.
    ratio = grouped.ratings.standard_errors / alone.ratings.standard_errors
    assert ratio == pytest.approx([np.sqrt(5 * 20 / 19)] * 2)


def test_clustered_sandwich_equals_dense_algebra() -> None:
    votes = simulated(5)
    result = fit_votes(votes, by_voter=True)
    theta = (result.ratings.ratings - 1000) / POINTS
    x = np.zeros((len(votes), 5))
    x[np.arange(len(votes)), votes.a] = 1
    x[np.arange(len(votes)), votes.b] = -1
    p = 1 / (1 + np.exp(-x @ theta))
    y = np.array([1, 0, 0.5, 0.5])[votes.outcome]
    assert votes.voter is not None
    sums = np.zeros((votes.voter.max() + 1, 5))
    np.add.at(sums, votes.voter, (y - p)[:, None] * x)
    inverse = np.linalg.pinv(x.T @ (x * (p * (1 - p))[:, None]))
    clusters = len(np.unique(votes.voter))
    expected = inverse @ (sums.T @ sums) @ inverse * clusters / (clusters - 1)
    np.testing.assert_allclose(result.ratings.covariance / POINTS**2, expected, atol=1e-10)


def test_real_voters_are_clusters(eval_data: Any, crowd_votes: Columns) -> None:
    with (eval_data / "llmfao/crowd-comparisons.csv").open(newline="", encoding="utf-8") as stream:
        workers = [row["worker"] for row in csv.DictReader(stream)]
    votes = Votes.from_columns(*crowd_votes, voter=workers)
    alone, grouped = fit_votes(votes), fit_votes(votes, by_voter=True)
    assert grouped.voters == 124  # evaluation.md, section (d)
    np.testing.assert_array_equal(alone.ratings.ratings, grouped.ratings.ratings)
    ratio = grouped.ratings.standard_errors / alone.ratings.standard_errors
    assert ratio.mean() > 1.1
    assert grouped.ratings.model_based == alone.ratings.model_based


def test_old_votes_fade_by_half_lives() -> None:
    votes = simulated(1, 3)
    assert recency(votes, half_life_days=1, now_us=2 * DAY_US).tolist() == [0.25, 0.5, 1.0]
    with pytest.raises(InvalidRequest, match="2 votes are later") as caught:
        recency(votes, half_life_days=1, now_us=0)
    assert caught.value.param == "now_us"


def test_a_voter_weighs_no_more_than_the_cap() -> None:
    votes = Votes.from_columns(["x"] * 5, ["y"] * 5, ["a"] * 5, voter=["p", "p", "p", "p", "q"])
    assert voter_cap(votes, 2).tolist() == [0.5] * 4 + [1.0]


def test_effective_votes_are_kishs() -> None:
    assert effective_votes(np.array([1.0, 1, 2])) == pytest.approx(16 / 6)
    assert effective_votes(np.zeros(0)) == 0


def test_unknown_labels_are_refused_or_counted_and_never_ties(judged_votes: Columns) -> None:
    # evaluation.md, finding 5: 644 blank or "invalid" of 67,031; read as ties one rating moves by 29.9 points
    vocabulary = {"model_a": "a", "model_b": "b", "tie": "tie", "tie(all bad)": "both_bad"}
    with pytest.raises(InvalidRequest, match="644 of 67,031"):
        Votes.from_columns(*judged_votes, vocabulary=vocabulary)  # type: ignore[arg-type]
    votes = Votes.from_columns(*judged_votes, vocabulary=vocabulary, unknown="count")  # type: ignore[arg-type]
    assert sum(votes.unknown.values()) == 644
    assert len(votes) == 66_387
    a, b, winner = judged_votes
    as_ties = Votes.from_columns(
        a, b, [w if w in vocabulary else "tie" for w in winner], vocabulary=vocabulary
    )  # type: ignore[arg-type]
    moved = np.abs(fit(as_ties.counts).ratings - fit(votes.counts).ratings)
    assert moved.max() == pytest.approx(29.9, abs=0.1)


def test_groups_are_refused_with_their_members() -> None:
    votes = Votes.from_columns(["p", "p", "r"], ["q", "q", "s"], ["a", "b", "tie"])
    with pytest.raises(InvalidRequest, match=r"2 groups .* \(1\) p, q; \(2\) r, s") as caught:
        fit_votes(votes).ratings.refuse_unconnected()
    assert caught.value.param == "models"
    joined = Votes.from_columns(["p", "q"], ["q", "p"], ["a", "a"])
    assert fit_votes(joined).ratings.refuse_unconnected().converged


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (lambda v: fit_votes(v, weights=np.zeros(3)), "weights"),
        (lambda v: fit_votes(v, ridge=-1.0), "ridge"),
        (lambda v: fit_votes(v, by_voter=True), "voter"),
        (inverse_probability, "pair_probability"),
        (lambda v: recency(v, half_life_days=30, now_us=0), "time_us"),
        (lambda v: voter_cap(v, 0), "voter_cap"),
        (lambda v: pair_balance(v, 0), "least"),
    ],
)
def test_what_the_votes_do_not_carry_is_named(call: Any, param: str) -> None:
    votes = Votes.from_columns(["x"] * 2, ["y"] * 2, ["a", "b"])
    with pytest.raises(InvalidRequest) as caught:
        call(votes)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("columns", "param"),
    [
        ({"pair_probability": [0.0]}, "pair_probability"),
        ({"time_us": [1, 2]}, "time_us"),
        ({"traits": {"language": ["en", "de"]}}, "language"),
    ],
)
def test_a_column_that_does_not_fit_is_named(columns: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Votes.from_columns(["x"], ["y"], ["a"], **columns)
    assert caught.value.param == param
    with pytest.raises(InvalidRequest, match="'x' against itself"):
        Votes.from_columns(["x"], ["x"], ["a"])


def test_intervals_by_voter_hold_the_truth_as_often_as_they_say_and_plain_ones_do_not() -> None:
    # Four equal models; 40 voters with tastes of their own (sd 1 per model) cast 12 votes each. By symmetry the truth is
    # 1000 for all. Of 200 * 4 intervals 95 % should hold it; their standard error, dependence included, is about 1 %.
    rng = np.random.default_rng(20)
    held = np.zeros(2)
    voter = np.repeat(np.arange(40), 12)
    for _ in range(200):
        taste = rng.normal(0, 1, (40, 4))
        a, b = rng.permuted(np.tile(np.arange(4), (480, 1)), axis=1)[:, :2].T
        p = 1 / (1 + np.exp(taste[voter, b] - taste[voter, a]))
        outcome = (rng.random(480) > p).astype(np.int64)
        votes = Votes(("k", "l", "m", "n"), a, b, outcome, voter=voter)
        for place, by_voter in enumerate((False, True)):
            ratings = fit_votes(votes, by_voter=by_voter).ratings
            held[place] += ((ratings.lower < 1000) & (ratings.upper > 1000)).mean() / 200
    assert held[1] == pytest.approx(0.95, abs=0.03)
    assert held[0] < 0.85


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_sides_change_nothing_but_the_sign_of_what_the_left_is_worth(seed: int) -> None:
    votes = simulated(seed, 200)
    turned = Votes(votes.models, votes.b, votes.a, np.array([1, 0, 2, 3])[votes.outcome], voter=votes.voter)
    here, there = (
        fit_votes(cast, by_voter=True, covariates={"left_side": np.ones(200)}) for cast in (votes, turned)
    )
    np.testing.assert_allclose(here.ratings.ratings, there.ratings.ratings, atol=1e-7)
    np.testing.assert_allclose(here.ratings.covariance, there.ratings.covariance, atol=1e-5)
    assert here.effects[0].coefficient == pytest.approx(-there.effects[0].coefficient, abs=1e-9)

"""Our ratings against what arena-rank 0.1.1 found on the same votes with its tolerances tightened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tiltyard.rating.bootstrap import bootstrap
from tiltyard.rating.bradley_terry import (
    POINTS,
    Ratings,
    component_labels,
    fit,
    gauge,
    information,
    sandwich,
    scores_of,
)
from tiltyard.rating.counts import PairCounts

# arena-rank adds 1e-5 to the diagonal of the Hessian of its mean loss before inverting it.
PEER_RIDGE = 1e-5
Columns = tuple[list[str], list[str], list[str]]
Z_95 = 1.959963984540054


def without(counts: PairCounts, *columns: int) -> PairCounts:
    kept = counts.counts.copy()
    kept[:, columns] = 0
    return PairCounts.from_pairs(counts.models, np.stack([counts.first, counts.second], axis=1), kept)


def peer_weights(counts: PairCounts) -> NDArray[np.float64]:
    return 1 / np.maximum(counts.counts.sum(axis=1), 50)


@pytest.fixture(scope="session")
def dataset(
    arena_counts: PairCounts, csv_votes: Columns, crowd_votes: Columns, judged_votes: Columns
) -> dict[str, PairCounts]:
    votes_25938 = PairCounts.from_votes(*csv_votes)
    clean = [row for row in zip(*judged_votes, strict=True) if row[2] not in ("", "invalid")]
    a, b, winner = zip(*clean, strict=True)
    vocabulary = {"model_a": "a", "model_b": "b", "tie": "tie", "tie(all bad)": "both_bad"}
    return {
        "arena33k_subset_25938": votes_25938,
        "arena33k_subset_decisive": without(votes_25938, 2, 3),
        "arena_20240814_all": arena_counts,
        "arena_20240814_no_bothbad": without(arena_counts, 3),
        "arena_20240814_decisive": without(arena_counts, 2, 3),
        "elobench_gpt4judge_clean": PairCounts.from_votes(a, b, winner, vocabulary=vocabulary),
        "llmfao_crowd_8931": PairCounts.from_votes(*crowd_votes),
    }


DATASETS = (
    "arena33k_subset_25938",
    "arena33k_subset_decisive",
    "arena_20240814_all",
    "arena_20240814_no_bothbad",
    "arena_20240814_decisive",
    "elobench_gpt4judge_clean",
    "llmfao_crowd_8931",
)


def column(run: dict[str, Any], ratings: Ratings, name: str) -> NDArray[np.float64]:
    assert set(run["result"]) == set(ratings.models)
    return np.array([run["result"][model][name] for model in ratings.models])


@pytest.mark.parametrize("reweighted", [False, True])
@pytest.mark.parametrize("name", DATASETS)
def test_ratings_and_intervals_equal_the_tight_runs_of_arena_rank(
    name: str, reweighted: bool, dataset: dict[str, PairCounts], reference: dict[str, Any]
) -> None:
    run = reference[f"{name}|reweighted={reweighted}|tight"]
    counts = dataset[name]
    assert (counts.votes, len(counts.models)) == (run["votes"], run["models"])
    weights = peer_weights(counts) if reweighted else None
    ratings = fit(counts, weights=weights)

    assert ratings.converged
    assert not ratings.unbounded
    assert not ratings.model_based
    np.testing.assert_allclose(ratings.ratings, column(run, ratings, "rating"), atol=1e-3, rtol=0)

    # The same sandwich with the peer's ridge gives the peer's intervals ...
    scores = scores_of(counts, "tie", weights)
    theta = (ratings.ratings - 1000) / POINTS
    hessian = information(scores, theta)
    projector = gauge(component_labels(len(counts.models), scores))
    ours = sandwich(scores, projector, theta)[0]
    meat = hessian @ ours @ hessian  # V = H+ G H+, and G has no part along the constants
    ridge = PEER_RIDGE * (counts.votes if not reweighted else 1.0)
    inverse = np.linalg.inv(hessian + ridge * np.eye(len(theta)))
    half = Z_95 * POINTS * np.sqrt(np.diagonal(inverse @ meat @ inverse))
    expected = (column(run, ratings, "upper") - column(run, ratings, "lower")) / 2
    np.testing.assert_allclose(half, expected, atol=1e-3, rtol=0)
    # ... and without a ridge none of ours is narrower than theirs.
    assert (ratings.upper - ratings.ratings >= expected - 1e-3).all()


def test_log_likelihood_equals_the_reference(
    dataset: dict[str, PairCounts], reference: dict[str, Any]
) -> None:
    run = reference["arena_20240814_all|reweighted=False|tight"]
    ratings = fit(dataset["arena_20240814_all"])
    assert -ratings.log_likelihood / run["votes"] == pytest.approx(run["mean_nll"], abs=1e-12)


def test_dropping_both_bad_is_the_reference_without_those_votes(
    dataset: dict[str, PairCounts], reference: dict[str, Any]
) -> None:
    run = reference["arena_20240814_no_bothbad|reweighted=False|tight"]
    ratings = fit(dataset["arena_20240814_all"], both_bad="drop")
    np.testing.assert_allclose(ratings.ratings, column(run, ratings, "rating"), atol=1e-3, rtol=0)
    assert ratings.votes.sum() == 2 * run["votes"]


def test_top_of_the_real_board_is_the_published_one(arena_counts: PairCounts) -> None:
    # evaluation.md, section (d): chatgpt-4o-latest 1203.93 (1199.30-1208.57), with the peer's ridge
    ratings = fit(arena_counts)
    top = int(np.argmax(ratings.ratings))
    assert ratings.models[top] == "chatgpt-4o-latest"
    assert ratings.ratings[top] == pytest.approx(1203.93, abs=0.005)
    assert ratings.lower[top] == pytest.approx(1199.30, abs=0.15)


def test_bootstrap_widths_equal_the_reference_within_their_noise(
    csv_votes: Columns,
) -> None:
    # evaluation.md: mean width on 25,938 votes, sandwich 24.8, bootstrap of 100 resamples 23.6
    counts = PairCounts.from_votes(*csv_votes)
    drawn = bootstrap(counts, seed=7, resamples=400)
    ratings = fit(counts)
    assert drawn.converged
    assert drawn.completed == 0
    assert float((ratings.upper - ratings.lower).mean()) == pytest.approx(24.8, abs=0.05)
    # A 2.5 % quantile of 400 draws has a standard error of about 7 % of the half width; the mean of 20 less.
    ratio = (drawn.upper - drawn.lower) / (ratings.upper - ratings.lower)
    assert float(ratio.mean()) == pytest.approx(1.0, abs=0.06)
    np.testing.assert_allclose(drawn.median, ratings.ratings, atol=1.5)


def test_the_same_seed_gives_the_same_bootstrap(csv_votes: Columns) -> None:
    counts = PairCounts.from_votes(*csv_votes)
    one, same, other = (bootstrap(counts, seed=seed, resamples=5) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.lower, same.lower)
    assert (one.lower != other.lower).any()

"""Against an independent NumPy Newton (`bt_newton.py` of the public data) and a peer's own bootstrap."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tiltyard.rating.bootstrap import bootstrap
from tiltyard.rating.bradley_terry import POINTS, fit
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.elo import online_elo

Columns = tuple[list[str], list[str], list[str]]


@pytest.fixture(scope="module")
def newton(eval_data: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bt_newton", eval_data / "tools/bt_newton.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome_rows(counts: PairCounts) -> NDArray[np.float64]:
    """Rows `(i, j, score of i, count)` as the reference takes them."""
    pairs = np.stack([counts.first, counts.second], axis=1)
    tied = counts.counts[:, 2] + counts.counts[:, 3]
    rows = [
        np.column_stack([pairs, np.full(len(pairs), score), many])
        for score, many in ((1.0, counts.counts[:, 0]), (0.0, counts.counts[:, 1]), (0.5, tied))
    ]
    whole = np.concatenate(rows)
    return whole[whole[:, 3] > 0]


@pytest.mark.parametrize("reweighted", [False, True])
def test_ratings_and_sandwich_equal_the_independent_newton_on_1_670_250_votes(
    newton: ModuleType, arena_counts: PairCounts, reweighted: bool
) -> None:
    rows, size = outcome_rows(arena_counts), len(arena_counts.models)
    weights = newton.pair_weights(rows, size) if reweighted else None
    theta, hessian = newton.fit(rows, size, weights)
    covariance = newton.sandwich(rows, size, theta, hessian, weights)
    per_pair = 1 / np.maximum(arena_counts.counts.sum(axis=1), 50) if reweighted else None
    ours = fit(arena_counts, weights=per_pair)
    np.testing.assert_allclose(ours.ratings, 1000 + POINTS * theta, atol=1e-6)
    np.testing.assert_allclose(ours.standard_errors, POINTS * np.sqrt(np.diagonal(covariance)), rtol=1e-6)


def test_online_elo_equals_the_independent_one(newton: ModuleType, csv_votes: Columns) -> None:
    score = {"model_a": 1.0, "model_b": 0.0, "tie": 0.5, "tie (bothbad)": 0.5}
    records = [(a, b, score[winner]) for a, b, winner in zip(*csv_votes, strict=True)]
    assert online_elo(*csv_votes, k=32) == pytest.approx(newton.online_elo(records, k=32), abs=1e-9)


def test_a_peers_bootstrap_is_ours_within_the_noise_of_its_100_resamples(
    eval_data: Path, csv_votes: Columns
) -> None:
    result: dict[str, Any] = json.loads((eval_data / "reference_bootstrap_vs_sandwich.json").read_text())[
        "result"
    ]
    drawn = bootstrap(PairCounts.from_votes(*csv_votes), seed=1, resamples=400)
    ratings = fit(PairCounts.from_votes(*csv_votes))
    theirs = np.array([result[model]["bootstrap"] for model in drawn.models])
    # A 2.5 % quantile of 100 draws has a standard error of 0.27 standard deviations, of 400 draws 0.13; together
    # 0.30. Of 40 bounds the furthest is expected within 3.3 of those.
    allowed = 3.3 * 0.30 * ratings.standard_errors
    assert (np.abs(theirs[:, 0] - drawn.lower) < allowed).all()
    assert (np.abs(theirs[:, 1] - drawn.upper) < allowed).all()
    assert (theirs[:, 1] - theirs[:, 0]).mean() == pytest.approx((drawn.upper - drawn.lower).mean(), rel=0.08)


def test_the_published_board_of_2024_08_13_comes_back(eval_data: Path, arena_counts: PairCounts) -> None:
    # evaluation.md, finding 1: anchored at mixtral-8x7b-instruct-v0.1 = 1114, 127 models, mean 0.19, at most 2.63 points
    ratings = fit(arena_counts, anchor=("mixtral-8x7b-instruct-v0.1", 1114.0))
    with (eval_data / "leaderboards/chatbot_arena_alltime.csv").open(newline="", encoding="utf-8") as stream:
        published = {
            row["key"]: float(row["rating"]) for row in csv.DictReader(stream) if row["date"] == "20240813"
        }
    apart = [
        abs(published[model] - rating)
        for model, rating in zip(ratings.models, ratings.ratings.tolist(), strict=True)
        if model in published
    ]
    assert len(apart) == 127
    assert np.mean(apart) == pytest.approx(0.19, abs=0.005)
    assert max(apart) == pytest.approx(2.63, abs=0.005)

"""Style and speed control: arena-rank's figures where it does the same, and a truth that must come back."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiltyard.errors import InvalidRequest
from tiltyard.rating.bradley_terry import POINTS
from tiltyard.rating.style import SPEED, differences, left_side, relative_difference, style_of
from tiltyard.rating.vote_fit import fit_votes
from tiltyard.rating.votes import Votes
from tiltyard.rating.weights import pair_balance

FEATURES = ("words", "header", "bold", "list")


@pytest.fixture(scope="module")
def styled(eval_data: Path) -> tuple[Votes, dict[str, Any]]:
    """8,931 real votes with the style of both answers (LLMFAO)."""
    with (eval_data / "llmfao/style_features_8931.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    votes = Votes.from_columns(
        [row["model_a"] for row in rows],
        [row["model_b"] for row in rows],
        [row["winner"] for row in rows],
        voter=[row["worker"] for row in rows],
    )
    sides = {
        name: ([float(row[f"{name}_a"]) for row in rows], [float(row[f"{name}_b"]) for row in rows])
        for name in FEATURES
    }
    return votes, differences(sides)


@pytest.fixture(scope="module")
def peer(eval_data: Path) -> dict[str, Any]:
    return json.loads((eval_data / "reference_arena_rank_style.json").read_text())["runs"]


@pytest.mark.parametrize("reweighted", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_ratings_and_coefficients_equal_arena_rank(
    styled: tuple[Votes, Any], peer: dict[str, Any], reweighted: bool, ridge: float
) -> None:
    votes, covariates = styled
    run = peer[f"reweighted={reweighted}|reg={ridge}"]
    weights = pair_balance(votes) if reweighted else np.ones(len(votes))
    weights /= weights.mean()
    # Theirs is a mean loss, so their ridge is ours times the number of votes.
    result = fit_votes(votes, weights=weights, covariates=covariates, centre=True, ridge=ridge * len(votes))
    assert result.ratings.converged
    for name in FEATURES:
        effect = result.effect(name)
        assert effect.coefficient == pytest.approx(run["coeffs"][name], abs=2e-6)
        assert (effect.middle, effect.deviation) == pytest.approx(
            (run["normalisation"][name]["mean"], run["normalisation"][name]["pop_std"]), abs=1e-12
        )
    expected = [run["result"][model]["rating"] for model in result.ratings.models]
    np.testing.assert_allclose(result.ratings.ratings, expected, atol=1e-3)
    # Their 1e-5 ridge on the mean Hessian narrows half widths; ours are those without it.
    if ridge:
        return  # with a ridge their Hessian leaves it out, ours has it
    half = [
        (run["result"][model]["upper"] - run["result"][model]["lower"]) / 2 for model in result.ratings.models
    ]
    ratio = (result.ratings.upper - result.ratings.ratings) / half
    assert 1 - 1e-6 < ratio.min() <= ratio.max() < 1.08


def test_the_default_does_not_switch_style_off(styled: tuple[Votes, Any]) -> None:
    # evaluation.md, finding 3: the length coefficient is 0.0014 with the peer's default and 0.106 without a ridge.
    votes, covariates = styled
    by_default = fit_votes(votes, covariates=covariates, centre=True)
    assert by_default.effect("words").coefficient == pytest.approx(0.1078, abs=2e-4)
    a_prior_of_one = fit_votes(votes, covariates=covariates, centre=True, ridge=1.0)
    assert a_prior_of_one.effect("words").coefficient == pytest.approx(0.1078, abs=1e-3)
    header = by_default.effect("header")
    assert header.lower < header.coefficient < header.upper < 0
    assert header.points == pytest.approx(-37.4, abs=0.05)
    grouped = fit_votes(votes, covariates=covariates, centre=True, by_voter=True)
    assert grouped.voters == 124
    assert grouped.effect("words").coefficient == pytest.approx(by_default.effect("words").coefficient)
    assert grouped.effect("words").upper != by_default.effect("words").upper


def known_truth(seed: int, size: int = 20_000) -> tuple[Votes, dict[str, Any], Any]:
    # Verbose models (the last) would gain by their length; beta and the left side's advantage are known.
    rng = np.random.default_rng(seed)
    theta = np.array([0.6, 0.2, -0.2, -0.6])
    a, b = rng.permuted(np.tile(np.arange(4), (size, 1)), axis=1)[:, :2].T
    words = np.exp(rng.normal(5 + np.array([0, 0.3, 0.6, 0.9])[np.stack([a, b])], 0.4))
    first_token = np.exp(rng.normal(-1, 0.5, (2, size)))
    covariates = differences({"length": (words[0], words[1]), SPEED[0]: (first_token[0], first_token[1])})
    scaled = {name: x / x.std() for name, x in covariates.items()}
    odds = theta[a] - theta[b] + 0.1 + 0.35 * scaled["length"] - 0.2 * scaled[SPEED[0]]
    winner = np.where(rng.random(size) < 1 / (1 + np.exp(-odds)), "a", "b")
    names = np.array(["k", "l", "m", "n"])
    votes = Votes.from_columns(names[a].tolist(), names[b].tolist(), winner.tolist())
    return votes, {**covariates, **left_side(size)}, theta


def test_the_truth_behind_length_speed_and_side_comes_back_inside_its_intervals() -> None:
    votes, covariates, theta = known_truth(11)
    controlled = fit_votes(votes, covariates=covariates, confidence=0.999)
    for name, truth in (("length", 0.35), (SPEED[0], -0.2), ("left_side", 0.1)):
        effect = controlled.effect(name)
        assert effect.lower < truth < effect.upper
        assert effect.upper - effect.lower < 0.15
    assert (controlled.ratings.lower < 1000 + POINTS * theta).all()
    assert (controlled.ratings.upper > 1000 + POINTS * theta).all()
    plain = fit_votes(votes)
    assert plain.ratings.ratings[3] > controlled.ratings.upper[3]  # what verbosity had bought


def test_a_covariate_that_models_explain_alone_is_refused() -> None:
    votes, *_ = known_truth(12, 400)
    level = np.array([4.0, 2.0, 1.0, 0.5])
    own = {"level": level[votes.a] - level[votes.b]}
    with pytest.raises(InvalidRequest, match="level") as caught:
        fit_votes(votes, covariates=own)
    assert caught.value.param == "covariates"
    with pytest.raises(InvalidRequest, match="repeat its prior"):
        fit_votes(votes, covariates=own, ridge=1.0)
    with pytest.raises(InvalidRequest, match="0 on every vote"):
        fit_votes(votes, covariates={"bold": np.zeros(400)})
    with pytest.raises(InvalidRequest, match="no number"):
        fit_votes(votes, covariates={"bold": np.full(400, np.nan)})


def test_markdown_is_counted_outside_fences_only() -> None:
    text = (
        "# Title\n\nSome **bold** and __also__ words, not 2**3**4 * 5.\n\n1. one\n2) two\n- three\n  * four\n"
    )
    code = "```python\n# no header\n- no list\n**no**\n```\n"
    style = style_of(text + code)
    assert style[1:] == (1, 3, 4)
    assert style_of(text)[1:] == style[1:]
    assert style.length == len((text + code).split())
    assert style_of("```\n# never closed\n")[1:] == (0, 0, 0)
    assert style_of("").length == 0
    assert style_of("我們 vote twice").length == 4


def test_a_relative_difference_is_bounded_and_turns_with_the_sides() -> None:
    a, b = np.array([0.0, 5, 0, 7]), np.array([0.0, 0, 3, 7])
    assert relative_difference(a, b).tolist() == [0, 1, -1, 0]
    np.testing.assert_array_equal(relative_difference(a, b), -relative_difference(b, a))
    for wrong in ([-1.0], [np.nan]):
        with pytest.raises(InvalidRequest, match="negative or no number"):
            relative_difference(wrong, [1.0])


def test_a_covariate_that_decides_every_vote_is_refused_and_a_ridge_makes_it_finite() -> None:
    votes, *_ = known_truth(13, 200)
    winning = {"winning": np.where(votes.outcome == 0, 1.0, -1.0)}
    with pytest.raises(InvalidRequest, match="coefficient of winning is infinite") as caught:
        fit_votes(votes, covariates=winning)
    assert caught.value.param == "covariates"
    finite = fit_votes(votes, covariates=winning, ridge=0.1)
    assert finite.ratings.converged
    assert 1 < finite.effect("winning").coefficient < 30

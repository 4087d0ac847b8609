"""Online Elo: its constants, and how far the order of the votes alone moves it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiltyard.errors import InvalidRequest
from tiltyard.rating.elo import EloConstants, elo_spread, online_elo
from tiltyard.rating.votes import Votes

Columns = tuple[list[str], list[str], list[str]]


def test_order_moves_elo_as_much_as_was_measured(csv_votes: Columns, elo_reference: dict[str, Any]) -> None:
    """FastChat #3065: Elo is the wrong tool for models that do not change; here is how wrong."""
    # evaluation.md, section (a): over 20 shuffles sd 12.6 points; the reversed order differs by up to 93.9.
    spread = elo_spread(Votes.from_columns(*csv_votes), seed=3, runs=20)
    expected = [elo_reference["K=4,init=1000"][model] for model in spread.models]
    np.testing.assert_allclose(spread.as_they_came, expected, atol=1e-8)
    assert np.abs(spread.reversed - spread.as_they_came).max() == pytest.approx(93.9, abs=0.05)
    assert spread.shuffled_deviation.mean() == pytest.approx(12.6, abs=1.5)  # 20 orders, 20 models
    assert (spread.lower < spread.median).all()
    assert (spread.median < spread.upper).all()


def test_the_vectorised_pass_is_the_plain_one_for_any_constants() -> None:
    a, b, winner = ["x", "y", "x", "z"], ["y", "z", "z", "y"], ["a", "tie", "both_bad", "b"]
    spread = elo_spread(
        Votes.from_columns(a, b, winner), seed=1, runs=2, constants=EloConstants(32, 2.0, 100.0, 1500)
    )
    plain = online_elo(a, b, winner, k=32, base=2.0, scale=100.0, initial=1500)
    assert spread.as_they_came == pytest.approx([plain[model] for model in spread.models])
    back = online_elo(a[::-1], b[::-1], winner[::-1], k=32, base=2.0, scale=100.0, initial=1500)
    assert spread.reversed == pytest.approx([back[model] for model in spread.models])


def test_a_seed_decides_everything() -> None:
    votes = Votes.from_columns(["x"] * 9, ["y"] * 9, ["a", "b", "a"] * 3)
    one, same, other = (elo_spread(votes, seed=seed, runs=5) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.median, same.median)
    assert (one.lower != other.lower).any()


def test_constants_out_of_range_are_named() -> None:
    for wrong, param in (({"k": 0.0}, "k"), ({"base": 1.0}, "base"), ({"scale": -400.0}, "scale")):
        with pytest.raises(InvalidRequest) as caught:
            online_elo(["x"], ["y"], ["a"], **wrong)
        assert caught.value.param == param
    with pytest.raises(InvalidRequest, match="2 or more"):
        elo_spread(Votes.from_columns(["x"], ["y"], ["a"]), seed=1, runs=1)

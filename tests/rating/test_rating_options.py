"""Options as a value: which fit they choose, what they are called, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiltyard.errors import InvalidRequest
from tiltyard.rating.bootstrap import bootstrap
from tiltyard.rating.bradley_terry import fit
from tiltyard.rating.davidson import fit_davidson
from tiltyard.rating.leaderboard import Evidence, lay_out, make_leaderboard
from tiltyard.rating.options import RatingOptions, Weight, rate, rate_over_time
from tiltyard.rating.slices import Condition
from tiltyard.rating.votes import Votes

DAY_US = 86_400_000_000


def votes() -> Votes:
    rng = np.random.default_rng(4)
    a, b = rng.permuted(np.tile(np.arange(4), (300, 1)), axis=1)[:, :2].T
    names = np.array(["k", "l", "m", "n"])
    return Votes.from_columns(
        names[a].tolist(),
        names[b].tolist(),
        rng.choice(["a", "b", "tie"], 300, p=[0.5, 0.3, 0.2]).tolist(),
        time_us=np.arange(300) * DAY_US // 10,
        voter=[f"v{number % 17}" for number in range(300)],
        pair_probability=np.full(300, 1 / 6),
        traits={
            "language": ["en", "zh", "zh"] * 100,
            "length_a": rng.integers(10, 300, 300),
            "length_b": rng.integers(10, 300, 300),
        },
    )


def test_each_option_chooses_its_fit_and_its_name() -> None:
    cast, now = votes(), 40 * DAY_US
    plain = rate(cast, RatingOptions(), now_us=now)
    np.testing.assert_array_equal(plain.ratings.ratings, fit(cast.counts).ratings)
    assert (plain.ratings.method, plain.details) == ("bradley-terry/2", {})

    tied = rate(cast, RatingOptions(ties="davidson"), now_us=now)
    np.testing.assert_array_equal(tied.ratings.ratings, fit_davidson(cast.counts).ratings.ratings)
    assert tied.ratings.method == "davidson/1"
    assert tied.details["tie_strength"][0] == pytest.approx(fit_davidson(cast.counts).tie_strength, abs=1e-6)  # type: ignore[index]

    full = RatingOptions(
        weights=(Weight.parse("half-life=7d"), Weight.parse("voter-cap=10")),
        by_voter=True,
        controls=("length", "left_side"),
        ridge=0.5,
        conditions=(Condition.parse("language=zh"),),
    )
    rated = rate(cast, full, now_us=now)
    assert rated.ratings.method == (
        "bradley-terry/2 + half-life=7d + voter-cap=10 + by-voter + control(length, left_side; ridge 0.5)"
        " + where language=zh"
    )
    assert rated.counts.votes == 200
    assert rated.details["voters"] == 17
    assert [effect["name"] for effect in rated.details["effects"]] == ["length", "left_side"]  # type: ignore[index, union-attr, call-overload]
    assert 20 < float(str(rated.details["effective_votes"])) < 200


def test_equal_probabilities_weigh_nothing_differently() -> None:
    rated = rate(votes(), RatingOptions(weights=(Weight.parse("inverse-probability"),)), now_us=0)
    np.testing.assert_allclose(rated.ratings.ratings, fit(votes().counts).ratings, atol=1e-8)
    assert rated.details["effective_votes"] == 300


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"ties": "davidson", "by_voter": True}, "ties", "pair counts"),
        ({"controls": ("style",)}, "control", "headers_a and headers_b"),
        ({"controls": ("language",)}, "control", "language_a"),
        ({"anchor": ("nobody", 1.0)}, "anchor", "no votes here"),
    ],
)
def test_an_option_that_these_votes_cannot_serve_is_named(options: Any, param: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        rate(votes(), RatingOptions(**options), now_us=0)
    assert caught.value.param == param


@pytest.mark.parametrize("text", ["", "half-life", "half-life=0d", "voter-cap=-1", "age"])
def test_a_weight_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no weight") as caught:
        Weight.parse(text)
    assert caught.value.param == "weight"


def test_a_board_of_another_method_has_another_digest_and_the_default_has_its_old_one() -> None:
    cast, evidence = votes(), Evidence(ruleset="tests")
    default = make_leaderboard(cast.counts, evidence=evidence, minimum_votes=1)
    rated = rate(cast, RatingOptions(), now_us=0)
    same = lay_out(rated.counts, rated.ratings, evidence=evidence, minimum_votes=1, details=rated.details)
    assert same.digest == default.digest
    assert "details" not in same.to_json()
    by_voter = rate(cast, RatingOptions(by_voter=True), now_us=0)
    other = lay_out(
        by_voter.counts,
        by_voter.ratings,
        evidence=evidence,
        minimum_votes=1,
        simultaneous=True,
        details=by_voter.details,
    )
    assert other.digest != default.digest
    assert other.to_json()["details"] == {"effective_votes": 300.0, "voters": 17}
    best, worst = other.rows[0].ranks_simultaneous or (0, 0)
    assert 1 <= best <= (other.rows[0].rank_by_differences or 0) <= worst <= 4
    with pytest.raises(InvalidRequest, match="different models"):
        lay_out(cast.counts.with_models(["z"]), rated.ratings, evidence=evidence, minimum_votes=1)


def test_bootstrap_bounds_stand_beside_the_ratings_and_follow_the_anchor() -> None:
    cast = votes()
    free = rate(cast, RatingOptions(bootstrap=20, seed=3), now_us=0).details["bootstrap"]
    drawn = bootstrap(cast.counts, seed=3, resamples=20)
    assert isinstance(free, dict)
    assert free["bounds"]["l"] == pytest.approx(  # type: ignore[index, call-overload]
        [drawn.lower[1], drawn.median[1], drawn.upper[1]], abs=1e-3
    )
    anchored = rate(cast, RatingOptions(bootstrap=20, seed=3, anchor=("k", 1500.0)), now_us=0).details[
        "bootstrap"
    ]
    assert isinstance(anchored, dict)
    width = [bounds["bounds"]["l"][2] - bounds["bounds"]["l"][0] for bounds in (free, anchored)]  # type: ignore[index, call-overload, operator]
    assert width[0] == pytest.approx(width[1], abs=2e-3)
    with pytest.raises(InvalidRequest, match="refits pair counts"):
        rate(cast, RatingOptions(bootstrap=20, by_voter=True), now_us=0)


def test_each_window_is_rated_alone() -> None:
    # 300 votes, ten a day: windows of ten days end at day 10, 20 and 30 and hold 100 votes each.
    cast = votes()
    windows = list(rate_over_time(cast, RatingOptions(), days=10, step_days=10))
    assert [period.end_us // DAY_US for period, _ in windows] == [10, 20, 30]
    assert [rated.counts.votes for _, rated in windows] == [100, 100, 100]
    alone = fit(cast.select(np.arange(300) >= 200).counts)
    np.testing.assert_array_equal(windows[-1][1].ratings.ratings, alone.ratings)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"ridge": float("nan")}, "ridge"),
        ({"ridge": -1.0}, "ridge"),
        ({"seed": 10**23}, "seed"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_number_that_no_event_could_hold_is_refused_by_name(given: dict[str, float], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        RatingOptions(**given)  # type: ignore[arg-type]
    assert refused.value.param == param

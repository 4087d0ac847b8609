"""Parts of the votes, the win matrix, and ranks that hold for all models at once."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from tiltyard.errors import InvalidRequest
from tiltyard.rating.bradley_terry import fit
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.davidson import fit_davidson
from tiltyard.rating.matrix import win_matrix
from tiltyard.rating.ranks import ranks_by_differences, ranks_simultaneously
from tiltyard.rating.slices import Condition, Period, by_value, rolling, where
from tiltyard.rating.votes import Votes

DAY_US = 86_400_000_000


def traited() -> Votes:
    return Votes.from_columns(
        ["x"] * 6,
        ["y"] * 6,
        ["a", "b", "tie", "a", "a", "both_bad"],
        time_us=[0, DAY_US - 1, DAY_US, 30 * DAY_US - 1, 30 * DAY_US, 40 * DAY_US],
        traits={"language": ["en", "en", "zh", "en", "de", "zh"], "turns": [1, 2, 3, 1, 2, 1]},
    )


def test_conditions_select_votes_and_models_stay() -> None:
    votes = traited()
    assert len(where(votes, [Condition.parse("language=en")])) == 3
    assert len(where(votes, [Condition.parse("language!=en"), Condition.parse("turns>=2")])) == 2
    assert where(votes, [Condition.parse("turns > 3")]).models == ("x", "y")
    assert len(where(votes, [])) == 6
    assert {key: len(part) for key, part in by_value(votes, "language").items()} == {
        "en": 3,
        "zh": 2,
        "de": 1,
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("language", "is no condition"),
        ("country=en", "no trait 'country'; they have language, turns"),
        ("language<en", "text, which < does not order"),
        ("turns=many", "'many' is none"),
    ],
)
def test_a_condition_that_means_nothing_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        where(traited(), [Condition.parse(text)])
    assert caught.value.param == "where"


def test_windows_are_half_open_and_end_at_midnight_utc() -> None:
    votes = traited()
    periods = list(rolling(votes, days=30, step_days=1))
    assert (periods[0].start_us, periods[0].end_us) == (0, 30 * DAY_US)
    assert periods[-1].end_us == 41 * DAY_US
    assert len(periods) == 12
    assert str(periods[0]) == "[1970-01-01T00:00:00Z, 1970-01-31T00:00:00Z)"
    # The vote at 30 days is out of the first window and in the second; the one at 0 the other way round.
    assert [len(period.of(votes)) for period in periods[:2]] == [4, 3]
    assert len(Period(DAY_US, DAY_US).of(votes)) == 0


def test_windows_touch_so_that_each_vote_is_in_exactly_one() -> None:
    votes = traited()
    periods = list(rolling(votes, days=1, step_days=1))
    assert all(one.end_us == other.start_us for one, other in pairwise(periods))
    assert sum(len(period.of(votes)) for period in periods) == len(votes)


def test_few_days_of_votes_are_one_window() -> None:
    votes = Votes.from_columns(["x"], ["y"], ["a"], time_us=[5 * DAY_US + 7])
    assert [(p.start_us, p.end_us) for p in rolling(votes)] == [(-24 * DAY_US, 6 * DAY_US)]
    with pytest.raises(InvalidRequest, match="no times"):
        list(rolling(Votes.from_columns(["x"], ["y"], ["a"])))


CYCLE = PairCounts.from_pairs(
    ["x", "y", "z", "far", "isle", "reef"],
    [[0, 1], [1, 2], [2, 0], [2, 3], [4, 5]],
    [[80, 20, 0, 0], [80, 20, 0, 0], [80, 20, 0, 0], [2, 2, 0, 0], [1, 1, 1, 0]],
)


def test_the_matrix_shows_a_cycle_that_ratings_cannot() -> None:
    # x beats y beats z beats x, 80:20 each: the ratings are equal and each pair is off by 0.3 sqrt(100) / 0.5 = 6.
    matrix = win_matrix(CYCLE, fit(CYCLE))
    pair = matrix.pair("x", "y")
    assert (pair.votes, pair.observed) == (100, 0.8)
    assert pair.predicted == pytest.approx(0.5, abs=1e-6)
    assert pair.surprise == pytest.approx(6, abs=1e-4)
    assert matrix.pair("y", "x").surprise == pytest.approx(-6, abs=1e-4)
    assert {frozenset((p.model, p.rival)) for p in matrix.most_surprising(3)} == {
        frozenset("xy"),
        frozenset("yz"),
        frozenset("xz"),
    }
    assert matrix.calibration == pytest.approx(3 * 36 / 5, rel=1e-4)


def test_the_worst_connected_pairs_hang_on_few_votes_and_groups_have_no_prediction() -> None:
    matrix = win_matrix(CYCLE, fit(CYCLE))
    assert all("far" in (pair.model, pair.rival) for pair in matrix.worst_connected(3))
    never_met = matrix.pair("far", "x")
    assert never_met.votes == 0
    assert never_met.observed is None
    assert never_met.predicted == pytest.approx(0.5, abs=1e-6)
    assert math.isnan(matrix.pair("isle", "x").predicted)
    with pytest.raises(InvalidRequest, match="no row"):
        matrix.pair("x", "nobody")


def test_davidsons_prediction_counts_his_ties_as_half() -> None:
    # 8 wins, 2 losses, 6 ties are fitted exactly: the share is (8 + 3) / 16, and nothing surprises.
    counts = PairCounts.from_pairs(["x", "y"], [[0, 1]], [[8, 2, 6, 0]])
    tied = fit_davidson(counts)
    pair = win_matrix(counts, tied.ratings, tie_strength=tied.tie_strength).pair("x", "y")
    assert pair.predicted == pytest.approx(11 / 16)
    assert pair.observed == pytest.approx(11 / 16)
    assert pair.surprise == pytest.approx(0, abs=1e-9)


def test_a_tie_is_half_a_win_in_every_share() -> None:
    """FastChat #1886: a win rate that ignored ties."""
    counts = PairCounts.from_pairs(["x", "y"], [[0, 1]], [[3, 1, 4, 2]])
    matrix = win_matrix(counts, fit(counts))
    assert (matrix.pair("x", "y").observed, matrix.pair("x", "y").votes) == (0.6, 10)
    without = win_matrix(counts, fit(counts, both_bad="drop"))
    assert (without.pair("x", "y").observed, without.pair("x", "y").votes) == (0.625, 8)


def test_predictions_add_up_to_the_observed_scores(csv_votes: tuple[list[str], list[str], list[str]]) -> None:
    # The likelihood equations: each model's predicted score is its observed one.
    counts = PairCounts.from_votes(*csv_votes)
    matrix = win_matrix(counts, fit(counts))
    expected = np.nansum(matrix.predicted * matrix.votes, axis=1)
    np.testing.assert_allclose(
        np.nansum(np.nan_to_num(matrix.observed) * matrix.votes, axis=1), expected, atol=1e-6
    )


@pytest.mark.parametrize(("models", "q"), [(3, 3.314), (10, 4.474)])
def test_equal_independent_models_need_tukeys_studentised_range(models: int, q: float) -> None:
    # Tables of the studentised range, infinite degrees of freedom, 5 %: a difference needs q / sqrt(2).
    found = ranks_simultaneously(np.zeros(models), np.eye(models), draws=40_000, seed=5)
    assert found.critical == pytest.approx(q / math.sqrt(2), abs=0.03)
    assert found.ranks.best.tolist() == [1] * models
    assert found.ranks.worst.tolist() == [models] * models


def test_two_models_need_what_one_test_needs_and_more_models_more() -> None:
    ratings, covariance = np.array([2.1, 0.0]), np.eye(2) / 2
    assert ranks_simultaneously(ratings, covariance).critical == pytest.approx(1.959964)
    assert ranks_simultaneously(ratings, covariance).ranks.best.tolist() == [1, 2]
    three = np.array([2.1, 0.0, -2.1])
    alone = ranks_by_differences(three, np.eye(3) / 2)
    together = ranks_simultaneously(three, np.eye(3) / 2)
    assert alone.best.tolist() == [1, 2, 3]
    assert together.ranks.best.tolist() == [1, 1, 2]  # 2.1 is not enough, 4.2 is
    assert together.ranks.worst.tolist() == [2, 3, 3]


def test_simultaneous_ranges_hold_the_single_ones_on_real_votes(
    csv_votes: tuple[list[str], list[str], list[str]],
) -> None:
    ratings = fit(PairCounts.from_votes(*csv_votes))
    alone = ranks_by_differences(ratings.ratings, ratings.covariance)
    together = ranks_simultaneously(ratings.ratings, ratings.covariance)
    assert (together.ranks.best <= alone.best).all()
    assert (together.ranks.worst >= alone.worst).all()
    again = ranks_simultaneously(ratings.ratings, ratings.covariance)
    assert again.critical == together.critical
    assert ranks_simultaneously(np.zeros(0), np.zeros((0, 0))).ranks.best.size == 0

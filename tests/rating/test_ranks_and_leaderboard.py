"""Ranks that respect intervals, and the rows that a reader sees."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.bradley_terry import Ratings, fit
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.leaderboard import Evidence, Leaderboard, make_leaderboard
from tiltyard.rating.ranks import ranks_by_differences, ranks_by_intervals
from tiltyard.rating.rated_models import RatedModel, rated_models

EVIDENCE = Evidence(ruleset="every-vote/1")
TRIANGLE = PairCounts.from_pairs(
    ["x", "y", "z"], [[0, 1], [1, 2], [0, 2]], [[60, 20, 10, 4], [30, 28, 5, 0], [8, 1, 0, 1]]
)


def board(counts: PairCounts = TRIANGLE, minimum_votes: int = 10, **settings: Any) -> Leaderboard:
    return make_leaderboard(counts, evidence=EVIDENCE, minimum_votes=minimum_votes, **settings)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), min_size=1, max_size=12))
def test_ranks_follow_their_definition(intervals: list[tuple[int, int]]) -> None:
    lower = np.array([float(low) for low, _ in intervals])
    upper = np.array([float(low + width) for low, width in intervals])
    ranks = ranks_by_intervals(lower, upper)
    for model in range(len(lower)):
        assert ranks.best[model] == 1 + sum(low > upper[model] for low in lower)
        assert ranks.worst[model] == sum(high >= lower[model] for high in upper)
        assert 1 <= ranks.best[model] <= ranks.worst[model] <= len(lower)


def test_a_touching_interval_does_not_push_a_rank_down() -> None:
    ranks = ranks_by_intervals(np.array([10.0, 5.0, 4.0]), np.array([12.0, 10.0, 9.99]))
    assert ranks.best.tolist() == [1, 1, 2]
    assert ranks.worst.tolist() == [2, 3, 3]


def test_a_clear_difference_ranks_lower_than_overlapping_intervals_do() -> None:
    # Standard errors of 1 apart by 3: intervals of +-1.96 overlap, yet z = 3 / sqrt 2 = 2.12 > 1.96.
    ratings = np.array([3.0, 0.0])
    covariance = np.eye(2)
    assert ranks_by_intervals(ratings - 1.96, ratings + 1.96).best.tolist() == [1, 1]
    by_difference = ranks_by_differences(ratings, covariance)
    assert by_difference.best.tolist() == [1, 2]
    assert by_difference.worst.tolist() == [1, 2]


def test_74_of_129_real_models_change_rank_when_differences_are_tested(arena_counts: PairCounts) -> None:
    # evaluation.md, section (a): 74 of 129 models change rank, mean +0.84
    ratings = fit(arena_counts)
    by_interval = ranks_by_intervals(ratings.lower, ratings.upper).best
    by_difference = ranks_by_differences(ratings.ratings, ratings.covariance).best
    changed = by_difference - by_interval
    assert np.count_nonzero(changed) == 74
    assert float(changed.mean()) == pytest.approx(0.84, abs=0.005)


def test_rows_carry_rank_range_interval_and_counts() -> None:
    result = board()
    first = result.rows[0]
    assert [row.model.name for row in result.rows] == ["x", "y", "z"]
    assert (first.rank, first.status, first.notes) == (1, "ranked", ())
    assert (first.wins, first.losses, first.ties, first.both_bad, first.votes) == (68, 21, 10, 5, 104)
    assert first.lower is not None
    assert first.upper is not None
    assert first.rating is not None
    assert first.lower < first.rating < first.upper
    assert first.rank_worst is not None
    assert first.rank_worst >= 1


def test_a_model_with_too_few_votes_says_so_instead_of_a_rank() -> None:
    result = board(minimum_votes=80)
    shown = {row.model.name: row for row in result.rows}
    assert shown["z"].rank is None
    assert shown["z"].status == "provisional"
    assert shown["z"].votes_needed == 80 - 73
    assert shown["z"].notes == ("needs 7 more votes",)
    assert shown["z"].rating is not None  # its votes still count in the fit
    assert (shown["x"].rank, shown["y"].rank) == (1, 2)  # and it pushes nobody down
    assert result.rows[-1].model.name == "z"


def test_a_model_without_votes_has_a_row_without_numbers() -> None:
    result = board(models=[RatedModel("new", "newcomer", license="MIT")])
    row = result.rows[-1]
    assert row.model.name == "newcomer"
    assert (row.rank, row.rating, row.lower, row.votes) == (None, None, None, 0)
    assert row.notes == ("needs 10 more votes",)


def test_minimum_counts_only_votes_that_bear_on_the_rating() -> None:
    counts = PairCounts.from_pairs(["x", "y"], [[0, 1]], [[5, 4, 0, 3]])
    assert [row.rank is None for row in board(counts).rows] == [False, False]
    dropped = board(counts, both_bad="drop")
    assert [row.notes for row in dropped.rows] == [("needs 1 more vote",)] * 2
    assert dropped.rows[0].both_bad == 3  # still shown


def test_models_outside_the_main_group_have_no_rating_and_say_why() -> None:
    counts = PairCounts.from_pairs(["a", "b", "c", "d"], [[0, 1], [2, 3]], [[30, 20, 0, 0], [12, 9, 0, 0]])
    shown = {row.model.name: row for row in board(counts).rows}
    assert shown["c"].status == "unconnected"
    assert (shown["c"].rank, shown["c"].rating) == (None, None)
    assert "no chain of votes connects it" in shown["c"].notes[0]
    assert shown["a"].rank == 1
    assert shown["b"].rank is not None


def test_an_undefeated_model_is_marked() -> None:
    counts = PairCounts.from_pairs(["x", "y", "z"], [[0, 1], [1, 2]], [[20, 0, 0, 0], [9, 8, 1, 0]])
    shown = {row.model.name: row for row in board(counts).rows}
    assert "undefeated" in shown["x"].notes[0]
    assert shown["x"].rank == 1
    assert shown["y"].notes == ()


def test_the_digest_names_numbers_and_settings_and_not_names() -> None:
    assert board().digest == board().digest
    renamed = board(models=[RatedModel("x", "another name", organization="someone")])
    assert renamed.digest == board().digest
    one_more = TRIANGLE.counts.copy()
    one_more[0, 0] += 1
    pairs = np.stack([TRIANGLE.first, TRIANGLE.second], axis=1)
    others = [
        board(PairCounts.from_pairs(TRIANGLE.models, pairs, one_more)),
        board(minimum_votes=11),
        board(both_bad="drop"),
        board(confidence=0.9),
        board(anchor=("y", 1000.0)),
        make_leaderboard(TRIANGLE, evidence=replace(EVIDENCE, window="30d"), minimum_votes=10),
    ]
    assert len({board().digest, *(other.digest for other in others)}) == 7


def test_json_has_what_is_needed_to_check_every_number() -> None:
    body = board().to_json()
    pairs = body["pairs"]
    assert isinstance(pairs, list)
    models = sorted({pair["model_a"] for pair in pairs} | {pair["model_b"] for pair in pairs})
    again = PairCounts.from_pairs(
        models,
        [[models.index(pair["model_a"]), models.index(pair["model_b"])] for pair in pairs],
        [[pair["wins_a"], pair["wins_b"], pair["ties"], pair["both_bad"]] for pair in pairs],
    )
    assert again.digest == body["counts_digest"]
    assert board(again).digest == body["digest"]
    assert body["method"] == "bradley-terry/2"
    assert (body["converged"], body["votes"]) == (True, 167)


def test_a_minimum_below_one_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        board(minimum_votes=0)
    assert caught.value.param == "minimum_votes"


@dataclass(frozen=True)
class Declared:
    organization: str = ""
    license: str = ""
    description: str = ""


@dataclass(frozen=True)
class Registered:
    name: str
    behaviour: str
    declaration: Declared = Declared()


def test_a_name_given_to_another_behaviour_supersedes_the_earlier_one() -> None:
    found = rated_models(
        [
            Registered("chat", "sha256:1", Declared("Lab", "MIT", "first")),
            Registered("chat", "sha256:2", Declared("Lab", "MIT", "second")),
            Registered("other", "sha256:3"),
            Registered("alias", "sha256:3"),
        ]
    )
    assert [(e.name, e.behaviour, e.superseded) for e in found] == [
        ("chat", "sha256:1", True),
        ("chat", "sha256:2", False),
        ("alias", "sha256:3", False),
    ]
    assert found[0].description == "first"


def test_a_model_without_a_vote_has_whole_counts_and_no_number_that_is_none() -> None:
    """FastChat #3184: battle counts that were NaN."""
    body = board(TRIANGLE.with_models(["idle"])).to_json()
    idle = next(row for row in body["rows"] if row["model"] == "idle")  # type: ignore[union-attr, index, call-overload]
    assert (idle["votes"], idle["wins"], idle["rating"]) == (0, 0, None)  # type: ignore[index, call-overload]
    assert "NaN" not in json.dumps(body)


OLD_HANDS = (["a"] * 400, ["b"] * 400, ["model_a"] * 200 + ["model_b"] * 100 + ["tie"] * 100)


def test_a_newcomer_with_four_votes_moves_nobody_and_widens_no_interval() -> None:
    """FastChat #3377, through the mean: about the mean of all three, a and b would stand at ±115 and share a rank."""
    before = make_leaderboard(PairCounts.from_votes(*OLD_HANDS), evidence=EVIDENCE, minimum_votes=10)
    came = ([*OLD_HANDS[0], *"bbbb"], [*OLD_HANDS[1], *"nnnn"], [*OLD_HANDS[2], *["model_a", "model_b"] * 2])
    after = make_leaderboard(PairCounts.from_votes(*came), evidence=EVIDENCE, minimum_votes=10)
    numbers = {
        row.model.key: (row.rank, row.rank_worst, row.rating, row.lower, row.upper) for row in after.rows
    }
    for row in before.rows:
        assert numbers[row.model.key] == (row.rank, row.rank_worst, row.rating, row.lower, row.upper)
    assert numbers["a"][:3] == (1, 1, pytest.approx(1044.37, abs=0.001))
    assert numbers["n"][:2] == (None, None)
    of_all = fit(PairCounts.from_votes(*came))
    assert of_all.upper[0] - of_all.ratings[0] > 100


@given(st.integers(1, 60), st.sampled_from([None, ("m1", 1200.0)]))
def test_which_mean_is_held_changes_no_difference(minimum: int, anchor: tuple[str, float] | None) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 5, 150), rng.integers(0, 5, 150)
    met = a != b
    outcomes = rng.choice(["model_a", "model_b", "tie"], met.sum()).tolist()
    counts = PairCounts.from_votes([f"m{i}" for i in a[met]], [f"m{i}" for i in b[met]], outcomes)
    free = fit(counts, anchor=anchor)
    held = free.about(minimum)

    def differences(ratings: Ratings) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        r, c = ratings.ratings, ratings.covariance
        d = np.diagonal(c)
        return r[:, None] - r, d[:, None] + d - 2 * c

    for one, other in zip(differences(free), differences(held), strict=True):
        assert np.allclose(one, other, atol=1e-6)
    chosen = free.votes >= minimum
    if chosen.any():
        if anchor is None:
            assert held.ratings[chosen].mean() == pytest.approx(1000.0)
        else:
            assert held.ratings[1] == pytest.approx(1200.0)
        assert abs(held.covariance[np.ix_(chosen, chosen)].sum()) < 1e-4  # the mean itself is certain

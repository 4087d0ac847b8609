"""From labels to pair counts, and the rules that say which votes count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.errors import InvalidRequest
from tiltyard.rating.admission import MICROSECONDS_PER_DAY, RULESET, Window, admit
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.elo import online_elo
from tiltyard.rating.outcomes import EVENT_LABELS, FILE_LABELS, encode, look_up

Columns = tuple[list[str], list[str], list[str]]


def test_four_labels_stay_four_labels() -> None:
    assert encode(["model_a", "model_b", "tie", "tie (bothbad)"]).tolist() == [0, 1, 2, 3]
    assert encode(["leftvote", "rightvote", "tievote", "bothbad_vote"]).tolist() == [0, 1, 2, 3]
    assert encode(["a", "b", "tie", "both_bad"], EVENT_LABELS).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [0, 1, 2, 256, 257, 1000])
def test_names_become_numbers_whatever_their_number(size: int) -> None:
    numbers = {f"model {number}": number for number in range(size)}
    column = [f"model {number}" for number in reversed(range(size))] * 2
    assert look_up(column, numbers).tolist() == [numbers[name] for name in column]
    assert look_up(column[:1], numbers).tolist() == [size - 1][: len(column)]
    with pytest.raises(KeyError):
        look_up([*column, "nobody", "nobody"], numbers)


@pytest.mark.parametrize("label", ["", "invalid", "A", "draw", "tie "])
def test_an_unknown_label_is_refused_and_never_a_tie(label: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PairCounts.from_votes(["x"] * 3, ["y"] * 3, ["model_a", label, label])
    assert caught.value.param == "winner"
    assert f"{label!r} (2 times)" in caught.value.message
    assert "the first is vote 2" in caught.value.message
    assert "not counted as ties" in caught.value.message


def test_the_dirty_judge_file_is_refused_with_its_644_bad_rows(judged_votes: Columns) -> None:
    vocabulary = {**FILE_LABELS, "tie(all bad)": "both_bad"}
    with pytest.raises(InvalidRequest, match=r"644 of 67,031 .* '' \(409 times\), 'invalid' \(235 times\)"):
        PairCounts.from_votes(*judged_votes, vocabulary=vocabulary)


def test_sides_are_put_in_order_and_wins_follow_them() -> None:
    counts = PairCounts.from_votes(
        ["y", "x", "y", "y"], ["x", "y", "x", "x"], ["model_a", "model_a", "tie", "tie (bothbad)"]
    )
    assert counts.models == ("x", "y")
    assert counts.counts.tolist() == [[1, 1, 1, 1]]
    assert counts.tally.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1]]


def test_the_file_of_25938_votes_adds_up(csv_votes: Columns) -> None:
    counts = PairCounts.from_votes(*csv_votes)
    # label counts of the file itself: 9,252 model_a, 9,068 model_b, 2,846 tie, 4,772 tie (bothbad)
    assert counts.votes == 25_938
    assert counts.counts.sum(axis=0)[2:].tolist() == [2_846, 4_772]
    assert counts.counts.sum(axis=0)[:2].sum() == 9_252 + 9_068
    assert counts.tally[:, 0].sum() == counts.tally[:, 1].sum() == 9_252 + 9_068


def test_many_models_are_counted_without_a_table_of_all_pairs() -> None:
    names = [f"m{position:05d}" for position in range(5000)]
    counts = PairCounts.from_votes(names[:-1], names[1:], ["model_b"] * 4999)
    assert len(counts.counts) == 4999
    assert counts.counts.tolist() == [[0, 1, 0, 0]] * 4999


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)).filter(lambda v: v[0] != v[1])
    )
)
def test_counts_equal_a_plain_loop(votes: list[tuple[int, int, int]]) -> None:
    names = ["f", "b", "e", "a", "d", "c"]
    expected: dict[tuple[str, str], list[int]] = {}
    for a, b, outcome in votes:
        turned = names[a] > names[b]
        key = (names[b], names[a]) if turned else (names[a], names[b])
        row = expected.setdefault(key, [0, 0, 0, 0])
        row[1 - outcome if turned and outcome < 2 else outcome] += 1
    a, b, outcomes = (np.array([vote[column] for vote in votes], dtype=np.int64) for column in range(3))
    counts = PairCounts.from_codes(names, a, b, outcomes)
    found = {
        (counts.models[i], counts.models[j]): row
        for i, j, row in zip(counts.first, counts.second, counts.counts.tolist(), strict=True)
    }
    assert found == expected
    assert counts.votes == len(votes)


def test_digest_names_the_votes_and_not_their_order() -> None:
    one = PairCounts.from_votes(["x", "z"], ["y", "x"], ["model_a", "tie"])
    same = PairCounts.from_votes(["x", "y"], ["z", "x"], ["tie", "model_b"])
    other = PairCounts.from_votes(["x", "z"], ["y", "x"], ["model_a", "tie (bothbad)"])
    assert one.digest == same.digest
    assert one.digest != other.digest
    assert one.digest == one.with_models(["idle"]).digest


@pytest.mark.parametrize(
    ("models", "pairs", "counts", "param"),
    [
        (["x", "x"], [[0, 1]], [[1, 0, 0, 0]], "models"),
        (["x", "y"], [[0, 1]], [], "counts"),
        (["x", "y"], [[0, 1]], [[-1, 0, 0, 0]], "counts"),
        (["x", "y"], [[0, 2]], [[1, 0, 0, 0]], "pairs"),
        (["x", "y"], [[1, 1]], [[1, 0, 0, 0]], "model_b"),
    ],
)
def test_counts_that_make_no_sense_are_refused(
    models: list[str], pairs: list[list[int]], counts: list[list[int]], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PairCounts.from_pairs(models, pairs, counts)
    assert caught.value.param == param


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="2, 1 and 2 values"):
        PairCounts.from_votes(["x", "x"], ["y"], ["model_a", "tie"])


@pytest.mark.parametrize(
    ("key", "k", "initial"),
    [("K=4,init=1000", 4, 1000), ("K=32,init=1000", 32, 1000), ("K=32,init=1500", 32, 1500)],
)
def test_online_elo_equals_the_reference(
    key: str, k: float, initial: float, csv_votes: Columns, elo_reference: dict[str, dict[str, float]]
) -> None:
    assert online_elo(*csv_votes, k=k, initial=initial) == pytest.approx(elo_reference[key], abs=1e-9)


@dataclass(frozen=True)
class Vote:
    sequence: int
    time_us: int
    choice: str
    behaviour_a: str = "sha256:x"
    behaviour_b: str = "sha256:y"


def test_a_window_is_half_open() -> None:
    now = 100 * MICROSECONDS_PER_DAY
    start = now - 30 * MICROSECONDS_PER_DAY
    votes = [Vote(1, start - 1, "a"), Vote(2, start, "b"), Vote(3, now - 1, "tie"), Vote(4, now, "a")]
    admitted = admit(votes, window=Window.parse("30d"), now_us=now)
    assert admitted.counts.counts.tolist() == [[0, 1, 1, 0]]
    assert (admitted.first_sequence, admitted.last_sequence) == (2, 3)
    assert admit(votes, window=Window.parse("all"), now_us=now).counts.votes == 4


def test_a_vote_between_equal_behaviours_is_left_out_with_its_reason() -> None:
    votes = [Vote(7, 0, "a"), Vote(8, 0, "b", behaviour_b="sha256:x")]
    admitted = admit(votes, window=Window(), now_us=1)
    assert admitted.counts.votes == 1
    assert admitted.excluded == {"same_behaviour_on_both_sides": 1}
    assert admitted.ruleset == RULESET
    assert admitted.last_sequence == 7


@pytest.mark.parametrize("text", ["", "30", "0d", "-3d", "30D", "1e3d", "99999d", "month"])
def test_a_window_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="'all', or 1 to 9999 days") as caught:
        Window.parse(text)
    assert caught.value.param == "window"

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from test_transcript import REF

from tiltyard.arena.pacing import REST_S, Pacer, in_step
from tiltyard.arena.transcript import Answer, Turn


def turn(a: Answer, b: Answer) -> Turn:
    return Turn(0, 0, "question", REF, {"a": a, "b": b})


def test_while_both_write_each_shows_as_much_as_the_shorter_has() -> None:
    assert in_step(turn(Answer(text="x" * 9), Answer(text="y" * 4))) == {"a": 4, "b": 4}
    assert in_step(turn(Answer(text="x" * 9, finish="stop"), Answer(text="y" * 4))) == {"a": 4, "b": 4}
    assert in_step(turn(Answer(text="x" * 9), Answer(text="y" * 4, finish="stop"))) == {"a": 9, "b": 4}


def test_the_rest_of_the_longer_follows_at_the_pace_seen_and_within_its_time() -> None:
    now = [0.0]
    pacer = Pacer(clock_s=lambda: now[0])
    race = turn(Answer(), Answer())
    a, b = race.answers["a"], race.answers["b"]
    a.text, b.text = "x" * 1000, "y"
    assert pacer.shown(race) == {"a": 1, "b": 1}
    now[0], b.text, b.finish, a.finish = 10.0, "y" * 800, "stop", "stop"
    assert pacer.shown(race) == {"a": 800, "b": 800}  # 80 characters a second so far
    now[0] = 11.0
    assert pacer.shown(race) == {"a": 880, "b": 800}
    a.text = "x" * 100_000  # far more than that pace brings in time
    now[0] = 10.0 + REST_S
    assert pacer.shown(race) == {"a": 100_000, "b": 800}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0, 3)), max_size=20), st.booleans())
def test_what_was_shown_is_never_taken_back_and_never_ahead_of_a_side_that_writes(
    steps: list[tuple[int, int, float]], a_ends: bool
) -> None:
    now = [0.0]
    pacer = Pacer(clock_s=lambda: now[0])
    race = turn(Answer(), Answer())
    before = {"a": 0, "b": 0}
    for number, (a, b, wait_s) in enumerate(steps):
        now[0] += wait_s
        if race.answers["a"].finish is None:
            race.answers["a"].text += "x" * a
        race.answers["b"].text += "y" * b
        if a_ends and number == len(steps) // 2:
            race.answers["a"].finish = "stop"
        shown = pacer.shown(race)
        for side in ("a", "b"):
            assert before[side] <= shown[side] <= len(race.answers[side].text)
        if race.answers["a"].finish is None:
            assert shown["a"] == shown["b"]
        before = dict(shown)

from __future__ import annotations

import pytest

from tiltyard.arena.transcript import Answer, Battle, CastVote, Limits, Turn, Voided
from tiltyard.arena.troubles import BROKE_OFF, WORDS_GONE
from tiltyard.errors import Conflict, ContentMissing, InvalidRequest
from tiltyard.events.schema import ContentRef, Contestant
from tiltyard.identity.canonical import digest_of

REF = ContentRef(id="1", subject="voter", digest="hmac-sha256:00", size_bytes=1)
STOPPED = {"finish": "stop", "text": "yes"}


def battle(*turns: Turn) -> Battle:
    return Battle(
        id="bat_1",
        voter="voter_1",
        contestants={
            "a": Contestant(side="a", identity="x", behaviour=digest_of(b"x")),
            "b": Contestant(side="b", identity="y", behaviour=digest_of(b"y")),
        },
        pair_probability=1.0,
        side_probability=0.5,
        vote_token_digest=digest_of(b"token"),
        turns=list(turns),
    )


def turn(number: int, a: Answer, b: Answer, *, attempt: int = 0, settled: bool = True) -> Turn:
    return Turn(number, attempt, f"question {number}", REF, {"a": a, "b": b}, settled)


def said(text: str = "yes") -> Answer:
    return Answer(text=text, finish="stop")


def failed() -> Answer:
    return Answer(finish="failed", trouble=BROKE_OFF)


def test_each_side_hears_only_what_it_said_itself() -> None:
    going_on = battle(
        turn(0, said("A0"), said("B0")),
        turn(1, said("A1"), said("B1")),
        turn(2, Answer(), Answer(), settled=False),
    )
    assert going_on.conversation("b") == [
        {"role": "user", "content": "question 0"},
        {"role": "assistant", "content": "B0"},
        {"role": "user", "content": "question 1"},
        {"role": "assistant", "content": "B1"},
        {"role": "user", "content": "question 2"},
    ]


@pytest.mark.parametrize(
    ("answer", "judged"),
    [
        (Answer(text="", finish="stop"), True),  # saying nothing is an answer too
        (Answer(text="x", finish="length"), True),
        (Answer(text="x", finish="cancelled"), True),
        (Answer(text=" \n", finish="cancelled"), False),
        (Answer(text="x", finish="failed", trouble=BROKE_OFF), False),
        (Answer(text="", finish="stop", trouble=WORDS_GONE), False),
        (Answer(text="x"), False),
    ],
)
def test_which_answers_can_be_judged(answer: Answer, judged: bool) -> None:
    assert answer.can_be_judged is judged


def test_a_vote_waits_until_both_sides_have_spoken() -> None:
    """FastChat #2091: a slow side kept the buttons away."""
    with pytest.raises(Conflict, match="not said anything yet"):
        battle(turn(0, said(), Answer(), settled=False)).check_vote()
    battle(turn(0, said(), Answer(text="so far"), settled=False)).check_vote()  # FastChat #2091
    with pytest.raises(Conflict, match="not said anything yet"):
        battle(turn(0, said(), failed(), settled=False)).check_vote()


def test_nothing_goes_on_in_a_void_battle() -> None:
    void = battle(turn(0, said(), failed()))
    void.voided = Voided("bat_2")
    for check in (
        void.check_vote,
        lambda: void.check_next_turn(Limits()),
        lambda: void.check_regenerate(Limits()),
    ):
        with pytest.raises(Conflict, match="counts for nobody"):
            check()


def test_a_vote_needs_a_pair_of_answers() -> None:
    with pytest.raises(Conflict, match="nothing to compare"):
        battle(turn(0, said(), failed())).check_vote()
    with pytest.raises(Conflict, match="nothing to compare"):
        battle().check_vote()


def test_a_vote_counts_the_complete_turns_when_the_last_one_failed() -> None:
    one = battle(turn(0, said(), said()), turn(1, failed(), said()))
    one.check_vote()
    assert [judged.number for judged in one.judged_turns] == [0]


def test_no_message_follows_a_turn_without_a_pair_of_answers() -> None:
    with pytest.raises(Conflict, match="Regenerate it"):
        battle(turn(0, said(), failed())).check_next_turn(Limits())


def test_a_failure_can_be_tried_again_past_the_limit_of_attempts() -> None:
    down = battle(turn(0, said(), failed(), attempt=5))
    down.check_regenerate(Limits(attempts_per_turn=6))


def test_limits_of_turns_and_attempts_are_named() -> None:
    limits = Limits(turns=2, attempts_per_turn=3)
    full = battle(turn(0, said(), said()), turn(1, said(), said(), attempt=2))
    with pytest.raises(InvalidRequest, match="has 2 messages, the most"):
        full.check_next_turn(limits)
    with pytest.raises(InvalidRequest, match="answered 3 times, the most"):
        full.check_regenerate(limits)
    full.check_next_turn(Limits(turns=3))
    full.check_regenerate(Limits(attempts_per_turn=4))


def test_a_vote_closes_the_battle() -> None:
    closed = battle(turn(0, said(), said()))
    closed.vote = CastVote("a", "event", 0, 1, ("gen_a",), ("gen_b",))
    for check in (
        closed.check_open,
        lambda: closed.check_next_turn(Limits()),
        lambda: closed.check_regenerate(Limits()),
    ):
        with pytest.raises(Conflict, match="has its vote and is closed"):
            check()
    with pytest.raises(Conflict, match="the first one counts"):
        closed.check_vote()


def test_erased_words_close_the_battle() -> None:
    erased = battle(turn(0, said(), said()))
    erased.erased = True
    for check in (
        erased.check_vote,
        lambda: erased.check_next_turn(Limits()),
        lambda: erased.check_regenerate(Limits()),
    ):
        with pytest.raises(ContentMissing, match="are gone or may no longer be read"):
            check()

"""The review queue: who is suspected, what somebody decided, and what that changes on the board."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tiltyard.arena.boards import Boards, Question
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.arena.review import cases, decision
from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.schema import BattleOpened, Choice, Contestant, Side, VoteCast
from tiltyard.rating.ruleset import Ruleset

PLUM, QUINCE = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def vote(log: EventLog, number: int, voter: str, choice: Choice, leaks: tuple[Side, ...] = ()) -> None:
    name = f"bat_{number}"
    log.append_blocking(
        BattleOpened(
            battle=name,
            voter=voter,
            contestants=(
                Contestant(side="a", identity="plum", behaviour=PLUM),
                Contestant(side="b", identity="quince", behaviour=QUINCE),
            ),
            pair_probability=1.0,
            side_probability=0.5,
            policy="uniform/1",
            vote_token_digest=PLUM,
        ),
        subject=name,
        source="tests",
    )
    log.append_blocking(
        VoteCast(
            battle=name,
            voter=voter,
            choice=choice,
            identity_a="plum",
            identity_b="quince",
            behaviour_a=PLUM,
            behaviour_b=QUINCE,
            pair_probability=1.0,
            side_probability=0.5,
            turns=1,
            generations_a=("gen_1",),
            generations_b=("gen_2",),
            leaks=leaks,
        ),
        subject=name,
        source="tests",
    )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    """60 honest votes, half for each side, one of them on a leak; 30 of a voter who always clicks the left."""
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as opened:
        for number in range(60):
            vote(
                opened,
                number,
                f"voter_{number}",
                "a" if number % 2 else "b",
                leaks=("a",) if number == 1 else (),
            )
        for number in range(60, 90):
            vote(opened, number, "voter_left", "a")
        yield opened


@pytest.fixture
def recorded(log: EventLog) -> RecordedVotes:
    return RecordedVotes(log, Ruleset(least_seconds=0))


def decide(recorded: RecordedVotes, name: str, verdict: str) -> None:
    made = decision(recorded, name, verdict, reason="looked at it", by="ann")
    recorded.log.append_blocking(made, subject=name, source="tests")


def votes_of(recorded: RecordedVotes) -> tuple[int, dict[str, int]]:
    board = Boards(recorded).ask(Question(), now_us=0).leaderboard
    return board.votes, dict(board.evidence.excluded)


def test_suspects_wait_with_their_reason_and_evidence(recorded: RecordedVotes) -> None:
    voter, leak = cases(recorded, waiting_only=True)
    assert (voter.of, voter.name, voter.reason, voter.votes) == ("voter", "voter_left", "voter_side", 30)
    assert voter.p == pytest.approx(2 * 0.5**30)
    assert voter.battles == ("bat_89", "bat_88", "bat_87", "bat_86", "bat_85")
    assert (leak.of, leak.name, leak.reason, leak.counts) == ("vote", "bat_1", "identity_leak", False)


def test_a_decision_is_an_event_that_the_next_board_heeds(recorded: RecordedVotes) -> None:
    assert votes_of(recorded) == (59, {"identity_leak": 1, "voter_side": 30})
    decide(recorded, "voter_left", "keep")
    decide(recorded, "bat_2", "exclude")
    assert votes_of(recorded) == (88, {"excluded_by_review": 1, "identity_leak": 1})
    assert [one.name for one in cases(recorded, waiting_only=True)] == ["bat_1"]
    decided = {one.name: one for one in cases(recorded) if one.decided}
    assert decided["voter_left"].counts
    assert (decided["bat_2"].reason, decided["bat_2"].why, decided["bat_2"].by) == (
        "decided",
        "looked at it",
        "ann",
    )
    decide(recorded, "voter_left", "withdraw")
    decide(recorded, "bat_2", "withdraw")
    assert votes_of(recorded) == (59, {"identity_leak": 1, "voter_side": 30})


def test_a_decision_about_a_vote_comes_before_one_about_its_voter(recorded: RecordedVotes) -> None:
    decide(recorded, "voter_left", "exclude")
    decide(recorded, "bat_60", "keep")
    assert votes_of(recorded) == (60, {"excluded_by_review": 29, "identity_leak": 1})


def test_a_board_of_before_a_decision_is_computed_again_as_it_was(recorded: RecordedVotes) -> None:
    """A published board reads up to its place in the log; what was decided later changes nothing of it."""
    boards = Boards(recorded)
    before = boards.ask(Question(), now_us=0)
    decide(recorded, "voter_left", "keep")
    assert boards.ask(Question(), now_us=0).leaderboard.votes == 89
    again = boards.again(before.leaderboard.evidence.question)
    assert again.leaderboard.digest == before.leaderboard.digest


def test_what_cannot_be_decided_is_refused_by_name(recorded: RecordedVotes) -> None:
    with pytest.raises(NotFound, match="nobody_such"):
        decision(recorded, "nobody_such", "keep", reason="r", by="ann")
    with pytest.raises(NotFound, match="nothing was decided"):
        decision(recorded, "voter_left", "withdraw", reason="r", by="ann")
    with pytest.raises(InvalidRequest, match="on one line, why") as refused:
        decision(recorded, "voter_left", "keep", reason=" ", by="ann")
    assert refused.value.param == "reason"
    with pytest.raises(InvalidRequest, match="must be one of keep, exclude, withdraw"):
        decision(recorded, "voter_left", "drop", reason="r", by="ann")

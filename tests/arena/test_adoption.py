"""Rulesets over a real log: what it says of each vote, and the event of a change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tiltyard.arena.adoption import adoption
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.events.log import EventLog
from tiltyard.events.schema import BattleOpened, Choice, Contestant, Side, VoteCast
from tiltyard.identity.canonical import digest_of
from tiltyard.rating.admission import Window
from tiltyard.rating.ruleset import Ruleset

PLUM, QUINCE = digest_of(b"plum"), digest_of(b"quince")
LATER = 2**52
AT_ONCE = Ruleset(name="at-once", least_seconds=0, exclude_leaks=False)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as opened:
        yield opened


def open_battle(log: EventLog, number: int) -> None:
    opened = BattleOpened(
        battle=f"bat_{number}",
        voter=f"voter_{number}",
        contestants=(
            Contestant(side="a", identity="plum", behaviour=PLUM),
            Contestant(side="b", identity="quince", behaviour=QUINCE),
        ),
        pair_probability=1.0,
        side_probability=0.5,
        policy="uniform/1",
        network="net_1",
        prompt_digest="abc",
        vote_token_digest=PLUM,
    )
    log.append_blocking(opened, subject=opened.battle, source="tests")


def vote(log: EventLog, number: int, choice: Choice, leaks: tuple[Side, ...] = ()) -> None:
    cast = VoteCast(
        battle=f"bat_{number}",
        voter=f"voter_{number}",
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
    )
    log.append_blocking(cast, subject=cast.battle, source="tests")


def test_a_vote_knows_its_battle_also_when_both_were_read_at_different_times(log: EventLog) -> None:
    recorded = RecordedVotes(log, Ruleset())
    open_battle(log, 1)
    assert recorded.votes() == []
    vote(log, 1, "a", leaks=("b",))
    vote(log, 2, "tie")  # of a battle that the log does not have
    known, unknown = recorded.votes()
    opened, cast = list(log.read(subject="bat_1"))
    assert (known.network, known.prompt_digest, known.leaked) == ("net_1", "abc", True)
    assert known.seconds == (cast.time_us - opened.time_us) / 1e6
    assert (unknown.network, unknown.leaked, unknown.seconds) == ("", False, None)
    assert [row.sequence for row in recorded.votes()] == [2, 3]
    assert recorded.judge().reasons == {2: "identity_leak"}


def test_new_votes_are_judged_and_a_moment_of_the_past_knows_only_its_own(log: EventLog) -> None:
    recorded = RecordedVotes(log, Ruleset())
    vote(log, 1, "a")
    assert recorded.admit(Window(), LATER).excluded == {}
    vote(log, 2, "b", leaks=("a",))
    admitted = recorded.admit(Window(), LATER)
    assert (admitted.counts.votes, admitted.excluded) == (1, {"identity_leak": 1})
    second = recorded.votes()[1]
    before = recorded.admit(Window(), second.time_us)
    assert (before.counts.votes, before.excluded) == (1, {})
    assert recorded.admit(Window(), LATER, AT_ONCE).counts.votes == 2


def test_votes_share_what_is_alike_in_all_of_them(log: EventLog) -> None:
    """A soak showed what a vote takes for as long as a server runs: 1.25 kB; 0.9 with shared texts and no dictionaries."""
    for number in range(2):
        vote(log, number, "a")
    first, second = RecordedVotes(log, Ruleset()).votes()
    for name in ("behaviour_a", "behaviour_b", "identity_a", "identity_b", "tenant", "language", "category"):
        assert getattr(first, name) is getattr(second, name), name
    assert not hasattr(first, "__dict__")


def test_the_first_ruleset_is_compared_with_every_vote_and_the_same_one_is_adopted_once(
    log: EventLog,
) -> None:
    for number in range(12):
        vote(log, number, "a" if number < 8 else "b", leaks=("a",) if number < 4 else ())
    recorded = RecordedVotes(log, Ruleset(why="Models say their names."))
    first = adoption(recorded, minimum_votes=1, now_us=LATER)
    assert first is not None
    assert (first.previous, first.ruleset, first.why) == (None, Ruleset().label, "Models say their names.")
    assert (first.votes_before, first.votes_after) == (12, 8)
    # 8 : 4 is ln 2 between them, 60.206 points from the mean of 1000; 4 : 4 is even
    assert {m.behaviour: (m.before, m.after) for m in first.moved} == {
        PLUM: (1060.206, 1000.0),
        QUINCE: (939.794, 1000.0),
    }
    log.append_blocking(first, subject="ruleset", source="tests")
    assert adoption(recorded, minimum_votes=1, now_us=LATER) is None
    assert Ruleset.model_validate(first.rules).digest == first.digest


def test_a_change_is_compared_with_the_rules_before(log: EventLog) -> None:
    for number in range(12):
        vote(log, number, "a" if number < 8 else "b", leaks=("a",) if number < 4 else ())
    first = adoption(RecordedVotes(log, Ruleset()), minimum_votes=1, now_us=LATER)
    assert first is not None
    log.append_blocking(first, subject="ruleset", source="tests")
    second = adoption(RecordedVotes(log, AT_ONCE), minimum_votes=1, now_us=LATER)
    assert second is not None
    assert (second.previous, second.votes_before, second.votes_after) == (first.ruleset, 8, 12)
    # rules of a version that has others can be kept, not applied
    unreadable = first.model_copy(update={"rules": {"moon_phase": 3}, "digest": PLUM})
    log.append_blocking(unreadable, subject="ruleset", source="tests")
    third = adoption(RecordedVotes(log, Ruleset()), minimum_votes=1, now_us=LATER)
    assert third is not None
    assert (third.votes_before, third.votes_after) == (12, 8)


def test_a_log_without_votes_adopts_its_rules_too(log: EventLog) -> None:
    first = adoption(RecordedVotes(log, Ruleset()), minimum_votes=1, now_us=LATER)
    assert first is not None
    assert (first.votes_before, first.votes_after, first.moved) == (0, 0, ())

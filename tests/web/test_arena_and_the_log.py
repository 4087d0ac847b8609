"""What the log keeps of a battle: over a restart, after an erasure, when it refuses."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from arena_standin import Gate
from arena_yard import NAMES, Yard, held, listen, open_battle, vote, votes

from tiltyard.arena.boards import Boards, Question
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.errors import ContentMissing, StorageFailed
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    BattleOpened,
    BattleTurnFinished,
    GenerationFinished,
    VotesNotWritten,
)
from tiltyard.rating.options import RatingOptions
from tiltyard.rating.ruleset import Ruleset
from tiltyard.rating.slices import Condition


def test_a_battle_survives_a_restart_of_the_arena(open_yard: Callable[..., Yard]) -> None:
    before = open_yard()
    with before.visitor() as visitor:
        battle, token = open_battle(visitor, "Before?")
        text = listen(visitor, battle).text
        cookies = visitor.cookies
    after = open_yard()
    with after.visitor() as visitor:
        visitor.cookies.update(cookies)
        assert listen(visitor, battle).text == text
        visitor.post(f"/api/arena/battles/{battle}/turns", json={"content": "After?"})
        listen(visitor, battle)
        sides = {model: messages for model, messages in after.models.asked if len(messages) == 3}
        shown = vote(visitor, battle, token).json()
    for side in ("a", "b"):
        assert [message["content"] for message in sides[shown[side]["name"]]] == [
            "Before?",
            text[side],
            "After?",
        ]


def test_a_battle_with_erased_words_is_closed(open_yard: Callable[..., Yard], log: EventLog) -> None:
    before = open_yard()
    with before.visitor() as visitor:
        battle, token = open_battle(visitor, "A secret?")
        listen(visitor, battle)
        cookies = visitor.cookies
    opened = log.find(BattleOpened, subject=battle)
    assert opened is not None
    assert isinstance(opened.data, BattleOpened)
    generations = [event.data for event in log.read(types=[GenerationFinished])]
    log.erase_subject(opened.data.voter)
    for generation in generations:  # the answers were kept under the voter's key too
        assert isinstance(generation, GenerationFinished)
        assert generation.response is not None
        with pytest.raises(ContentMissing):
            log.own_words("test").read(generation.response)
    after = open_yard()
    with after.visitor() as visitor:
        visitor.cookies.update(cookies)
        page = visitor.get(f"/battles/{battle}")
        assert page.status_code == 200
        assert "The words can no longer be shown." in page.text
        assert "A secret?" not in page.text
        assert vote(visitor, battle, token).status_code == 410


def test_words_that_another_process_erases_are_gone_from_a_battle_in_memory(
    yard: Yard, log: EventLog, tmp_path: Path
) -> None:
    for name in NAMES:
        yard.models.answers[name] = lambda messages: ["You said: " + messages[-1]["content"]]
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor, "A secret?")
        assert listen(visitor, battle).text["a"] == "You said: A secret?"
        opened = log.find(BattleOpened, subject=battle)
        assert opened is not None
        assert isinstance(opened.data, BattleOpened)
        with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as another:
            another.erase_subject(opened.data.voter)
        page = visitor.get(f"/battles/{battle}").text
        assert "The words can no longer be shown." in page
        assert "The words of this battle are gone or may no longer be read, so it is closed." in page
        assert "secret" not in page + listen(visitor, battle).raw
        assert "Regenerate" not in page
        assert vote(visitor, battle, token).status_code == 410


def test_words_erased_while_the_answers_are_written_end_them(yard: Yard, log: EventLog) -> None:
    gate = Gate()
    held(yard.models, gate)
    with yard.visitor() as visitor:
        battle, _ = open_battle(visitor, "A secret?")
        listen(visitor, battle, until=lambda heard: all(heard.text.values()))
        opened = log.find(BattleOpened, subject=battle)
        assert opened is not None
        assert isinstance(opened.data, BattleOpened)
        log.erase_subject(opened.data.voter)
        page = visitor.get(f"/battles/{battle}").text
        gate.open()
    assert "first half" not in page
    assert "secret" not in page
    finished = log.find(BattleTurnFinished, subject=battle)
    assert finished is not None


def test_a_refused_write_is_told_and_nothing_is_acknowledged(yard: Yard, tmp_path: Path) -> None:
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        listen(visitor, battle)
        yard.log.close()
        reply = vote(visitor, battle, token)
        assert reply.status_code == 507
        assert reply.json()["error"]["code"] == "storage_failed"
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as again:
        assert votes(again) == []


def test_votes_that_were_refused_are_counted_as_soon_as_the_log_is_well(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_what: object, **_more: object) -> None:
        raise StorageFailed("the disk is full")

    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        listen(visitor, battle)
        with monkeypatch.context() as ill:
            ill.setattr(yard.log, "append", refuse)
            assert [vote(visitor, battle, token).status_code for _ in range(2)] == [507, 507]
        assert list(yard.log.read(types=[VotesNotWritten])) == []
        assert vote(visitor, battle, token).status_code == 200
    (told,) = yard.log.read(types=[VotesNotWritten])
    assert isinstance(told.data, VotesNotWritten)
    assert (told.data.votes, told.data.why) == (2, "the disk is full")
    assert told.data.first_us <= told.data.last_us <= told.time_us
    assert len(votes(yard.log)) == 1


def test_votes_are_sliced_by_the_language_and_kind_of_their_first_message(yard: Yard, log: EventLog) -> None:
    for question in ("Write a Python function.", "為什麼天空是藍色的?", "Why is the sky blue?"):
        with yard.visitor() as visitor:
            battle, token = open_battle(visitor, question)
            listen(visitor, battle)
            assert vote(visitor, battle, token).status_code == 200
    boards = Boards(RecordedVotes(log, Ruleset(least_seconds=0)))
    for condition, count in (("category=code", 1), ("category=explanation", 2), ("language=zh-Hant", 1)):
        options = RatingOptions(conditions=(Condition.parse(condition),))
        board = boards.ask(Question(options), now_us=time.time_ns() // 1000).leaderboard
        assert (condition, board.votes) == (condition, count)

"""Style and speed of both answers of a vote, from a real log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tiltyard.arena.answer_traits import AnswerTraits
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.cli.main import main
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ChoiceOutcome, GenerationFinished, VoteCast
from tiltyard.identity.canonical import canonical_json
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.rating.ruleset import Ruleset

PLUM, QUINCE = ("sha256:" + letter * 64 for letter in "ab")


def answered(
    log: EventLog, name: str, text: str, *, tokens: int, first_ms: float | None, total_ms: float
) -> None:
    words = log.content("someone", canonical_json({"choices": [{"index": 0, "text": text}]}))
    event = GenerationFinished(
        generation=name,
        endpoint="chat.completions",
        behaviour=PLUM,
        deployment=PLUM,
        alias="plum",
        identity="plum",
        worker="plum-0",
        prompt=None,
        response=words.ref,
        prompt_token_digest=None,
        sampling=DefaultSampling(),
        seed=0,
        stream=True,
        choices=(ChoiceOutcome(index=0, finish_reason="stop", completion_tokens=tokens),),
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=tokens,
        time_to_first_token_ms=first_ms,
        total_ms=total_ms,
    )
    log.append_blocking(event, subject=name, source="tests", contents=[words])


def voted(
    log: EventLog, number: int, choice: str, *, turned: bool, a: tuple[str, ...], b: tuple[str, ...]
) -> None:
    sides = (("quince", QUINCE), ("plum", PLUM)) if turned else (("plum", PLUM), ("quince", QUINCE))
    event = VoteCast(
        battle=f"bat_{number}",
        voter=f"voter {number % 5}",
        choice=choice,  # type: ignore[arg-type]
        identity_a=sides[0][0],
        identity_b=sides[1][0],
        behaviour_a=sides[0][1],
        behaviour_b=sides[1][1],
        pair_probability=1.0,
        side_probability=0.5,
        turns=len(a),
        generations_a=a,
        generations_b=b,
    )
    log.append_blocking(event, subject=event.battle, source="tests")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 votes with words and times; one with neither generation in the log, one whose server told no times."""
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        for number in range(24):
            long = f"# Title {number}\n\n- **one**\n- two\n"
            answered(
                log,
                f"gen_a{number}",
                long * (number % 3),
                tokens=20 + number % 7,
                first_ms=100.0,
                total_ms=1100.0,
            )
            answered(log, f"gen_b{number}", "plain", tokens=10, first_ms=200.0 + number % 4, total_ms=1200.0)
            voted(
                log,
                number,
                "ab"[number % 5 > 2],
                turned=number % 2 == 0,
                a=(f"gen_a{number}",),
                b=(f"gen_b{number}",),
            )
        voted(log, 24, "a", turned=False, a=("gen_lost",), b=("gen_b0",))
        answered(log, "gen_untimed", "plain", tokens=10, first_ms=None, total_ms=9.0)
        voted(log, 25, "a", turned=False, a=("gen_untimed",), b=("gen_b0",))
    return tmp_path


def test_turns_add_up_and_what_is_not_known_leaves_the_vote_out(folder: Path) -> None:
    with EventLog.open(folder / "log.db", keys=folder / "keys.db") as log:
        voted(log, 26, "a", turned=False, a=("gen_a1", "gen_a2"), b=("gen_b1", "gen_b2"))
        names = ("length", "headers", "bold", "lists", "time_to_first_token", "tokens_per_second")
        votes, answers = RecordedVotes(log, Ruleset()).votes(), AnswerTraits(log)
        rows, traits = answers.of(votes, names)
        assert len(rows) == 25
        last = {name: values[-1] for name, values in traits.items()}
        assert last == {
            "length_a": 21 + 22,
            "length_b": 20,
            "headers_a": 1 + 2,
            "headers_b": 0,
            "bold_a": 1 + 2,
            "bold_b": 0,
            "lists_a": 2 + 4,
            "lists_b": 0,
            "time_to_first_token_a": 100,
            "time_to_first_token_b": 201.5,
            "tokens_per_second_a": 43 / 2,
            "tokens_per_second_b": pytest.approx(20 / (2 * 1.2 - 0.403)),
        }
        assert len(answers.of(votes, ["length"])[0]) == 26  # tokens need neither words nor times


def test_an_answer_that_ended_after_the_vote_and_beyond_the_position_is_not_known_there(folder: Path) -> None:
    with EventLog.open(folder / "log.db", keys=folder / "keys.db") as log:
        voted(log, 30, "a", turned=False, a=("gen_a1",), b=("gen_slow",))
        position, answers = log.last_sequence(), AnswerTraits(log)
        votes = RecordedVotes(log, Ruleset()).votes()[-1:]
        assert answers.of(votes, ["length"])[0] == []
        answered(log, "gen_slow", "late", tokens=9, first_ms=5.0, total_ms=9000.0)
        assert answers.of(votes, ["length"], read_to=position)[0] == []
        assert answers.of(votes, ["length"])[1]["length_b"] == [9.0]


def test_the_command_controls_style_and_speed_of_its_own_log(folder: Path) -> None:
    arguments = [
        "leaderboard",
        "--data",
        str(folder),
        "--json",
        "--control",
        "headers",
        "--control",
        "tokens_per_second",
    ]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    body = json.loads(result.output)
    assert body["votes"] == 24
    assert body["excluded"] == {"answers_without_words_or_times": 2}
    assert [effect["name"] for effect in body["details"]["effects"]] == ["headers", "tokens_per_second"]


def test_erased_words_leave_the_vote_out_of_style_and_in_everything_else(folder: Path) -> None:
    with EventLog.open(folder / "log.db", keys=folder / "keys.db") as log:
        log.erase_subject("someone")
        votes, answers = RecordedVotes(log, Ruleset()).votes(), AnswerTraits(log)
        assert answers.of(votes, ["headers"]) == ([], {"headers_a": [], "headers_b": []})
        assert len(answers.of(votes, ["tokens_per_second"])[0]) == 24

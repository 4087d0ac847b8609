"""`tiltyard rules` as a user types it, over a real log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tiltyard.cli.main import main
from tiltyard.events.log import EventLog
from tiltyard.events.schema import BattleOpened, Choice, Contestant, Side, VoteCast
from tiltyard.rating.ruleset import Ruleset

PLUM, QUINCE = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output


def battle(log: EventLog, number: int, choice: Choice, leaks: tuple[Side, ...] = ()) -> None:
    name = f"bat_{number}"
    opened = BattleOpened(
        battle=name,
        voter=f"voter_{number}",
        contestants=(
            Contestant(side="a", identity="plum", behaviour=PLUM),
            Contestant(side="b", identity="quince", behaviour=QUINCE),
        ),
        pair_probability=1.0,
        side_probability=0.5,
        policy="uniform/1",
        vote_token_digest=PLUM,
    )
    cast = VoteCast(
        battle=name,
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
    log.append_blocking(opened, subject=name, source="tests")
    log.append_blocking(cast, subject=name, source="tests")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """8 votes for a, 4 of them on answers that named their maker; 4 for b; all of them at once: too fast."""
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        for number in range(12):
            battle(log, number, "a" if number < 8 else "b", leaks=("a",) if number < 4 else ())
    (tmp_path / "leaks.toml").write_text('name = "leaks-only"\nleast_seconds = 0.0\n')
    (tmp_path / "every.toml").write_text('name = "every"\nleast_seconds = 0\nexclude_leaks = false\n')
    settings = (Path(__file__).parents[2] / "tiltyard.toml").read_text(encoding="utf-8")
    (tmp_path / "tiltyard.toml").write_text(settings.replace("[arena]", '[arena]\nruleset = "leaks.toml"'))
    return tmp_path


def where(data: Path) -> list[str]:
    return ["--data", str(data), "--config", str(data / "tiltyard.toml")]


def test_the_ruleset_in_force_is_shown_as_a_file_that_can_be_changed(data: Path, tmp_path: Path) -> None:
    shown = run("rules", "show", *where(data))
    assert shown.startswith("# leaks-only/1@")
    assert "least_seconds = 0.0" in shown
    (tmp_path / "again.toml").write_text(shown.replace("exclude_leaks = true", "exclude_leaks = false"))
    assert "+" in run("rules", "try", str(tmp_path / "again.toml"), *where(data))
    default = Path(__file__).parents[2] / "tiltyard.toml"
    assert f"# {Ruleset().label}" in run("rules", "show", "--data", str(data), "--config", str(default))


def test_votes_that_do_not_count_are_listed_with_their_reason_and_stay_in_the_log(data: Path) -> None:
    rows = [json.loads(line) for line in run("rules", "excluded", "--json", *where(data)).splitlines()]
    assert [(row["battle"], row["reason"]) for row in rows] == [
        (f"bat_{n}", "identity_leak") for n in range(4)
    ]
    assert "4 of 12 votes, under leaks-only/1@" in run("rules", "excluded", *where(data))
    assert "0 of 12 votes" in run("rules", "excluded", "--reason", "too_fast", *where(data))


def test_the_leaderboard_names_the_ruleset_and_counts_what_it_left_out(data: Path) -> None:
    board = json.loads(run("leaderboard", "--json", *where(data)))
    assert board["ruleset"].startswith("leaks-only/1@")
    assert board["votes"] == 8
    assert board["excluded"] == {"identity_leak": 4}


def test_other_rules_say_by_how_much_each_rating_moves(data: Path) -> None:
    said = json.loads(run("rules", "try", str(data / "every.toml"), "--json", *where(data)))
    assert said["before"]["excluded"] == {"identity_leak": 4}
    assert said["after"]["excluded"] == {}
    # from 4 : 4 to 8 : 4, which is ln 2 between them: 400 log10(2) / 2 = 60.206 points each
    assert {moved["model"]: moved["points"] for moved in said["moved"]} == {PLUM: 60.206, QUINCE: -60.206}
    assert "+60.2" in run("rules", "try", str(data / "every.toml"), *where(data))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("least_secs = 1", r"least_secs: Extra inputs.*A ruleset has name, version, why, exclude_leaks"),
        ("voter_votes = 1", "voter_votes: .*greater than or equal to 5"),
        ("name = ", "is not TOML"),
    ],
)
def test_a_mistake_in_a_ruleset_names_the_file_and_the_key(data: Path, text: str, said: str) -> None:
    import re

    (data / "wrong.toml").write_text(text)
    output = run("rules", "try", str(data / "wrong.toml"), *where(data), status=1)
    assert "wrong.toml" in output
    assert re.search(said, output)
    assert "No such file" in run("rules", "try", str(data / "none.toml"), *where(data), status=1)


def test_a_suspect_is_listed_decided_and_heeded_by_the_next_board(data: Path) -> None:
    """Four leaks wait; keeping one brings the board from 8 votes to 9, withdrawing takes it back."""
    waiting = [json.loads(line) for line in run("rules", "queue", "--json", *where(data)).splitlines()]
    assert [case["reason"] for case in waiting] == ["identity_leak"] * 4
    said = run("rules", "decide", "bat_2", "keep", "--reason", "no name", "--by", "ann", *where(data))
    assert "votes left out: 4 before, 3 now" in said
    assert "bat_2" not in run("rules", "queue", *where(data))
    assert "keep by ann: no name" in run("rules", "queue", "--all", *where(data))
    assert json.loads(run("leaderboard", "--json", *where(data)))["votes"] == 9
    run("rules", "decide", "bat_2", "withdraw", "--reason", "looked again", *where(data))
    assert json.loads(run("leaderboard", "--json", *where(data)))["votes"] == 8
    assert "nobody_such" in run(
        "rules", "decide", "nobody_such", "keep", "--reason", "x", *where(data), status=1
    )

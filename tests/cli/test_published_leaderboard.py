"""A published leaderboard: an event with every number, computed again from raw events, whatever came later."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tiltyard.arena import publication
from tiltyard.cli.main import main
from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    Choice,
    EventData,
    LeaderboardPublished,
    VoteCast,
    VoteReviewed,
    VotesImported,
    VoteWithdrawn,
)
from tiltyard.identity.canonical import digest_of, digest_of_json

CHOICES: dict[str, Choice] = {"model_a": "a", "model_b": "b", "tie": "tie", "tie (bothbad)": "both_bad"}
VOTES = 400


def run(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def cast(number: int, left: str, right: str, choice: Choice) -> VoteCast:
    return VoteCast(
        battle=f"bat_{number}",
        voter=f"voter {number % 40}",
        choice=choice,
        identity_a=left,
        identity_b=right,
        behaviour_a=digest_of(left.encode()),
        behaviour_b=digest_of(right.encode()),
        pair_probability=0.1,
        side_probability=0.5,
        turns=1 + number % 3,
        generations_a=("gen_1",),
        generations_b=("gen_2",),
    )


def append(folder: Path, votes: list[VoteCast]) -> None:
    with EventLog.open(folder / "log.db", keys=folder / "keys.db") as log:
        drafts = [
            log._draft(vote, subject=vote.battle, source="tests", tenant="t", traceparent=None, words=())
            for vote in votes
        ]
        for draft in drafts:  # all at once: they share their commits
            log._writer.submit(draft)
        for draft in drafts:
            draft.done.result()


@pytest.fixture(scope="module")
def voted(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    """The first real votes of LMSYS's 25,938 in a log of our own."""
    with (shared_data / "eval/votes/chatbot_arena_25938_human.csv").open(encoding="utf-8") as stream:
        rows = list(islice(csv.DictReader(stream), VOTES))
    votes = [
        cast(number, row["model_a"], row["model_b"], CHOICES[row["winner"]])
        for number, row in enumerate(rows)
    ]
    made = tmp_path_factory.mktemp("voted")
    append(made, votes)
    return made


@pytest.fixture
def folder(tmp_path: Path, voted: Path) -> Path:
    return Path(shutil.copytree(voted, tmp_path / "data"))


def publish(folder: Path, *options: str) -> str:
    output = run("leaderboard", "publish", "--data", str(folder), "--json", *options).output
    return str(json.loads(output)["digest"])


def tamper(folder: Path, change: Callable[[str], str], type_name: str) -> None:
    """Edit the newest event of a type in the file, behind the log's back."""
    with sqlite3.connect(folder / "log.db") as database:
        (sequence, text), *_ = database.execute(
            "select sequence, data_json from events where type = ? order by sequence desc", (type_name,)
        ).fetchall()
        assert change(text) != text
        database.execute("drop trigger if exists events_no_update")
        database.execute("update events set data_json = ? where sequence = ?", (change(text), sequence))
    database.close()


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--by-voter", "--weight", "inverse-probability", "--where", "turns>=2", "--confidence", "0.9"),
        ("--ties", "davidson", "--both-bad", "drop"),
        ("--bootstrap", "20", "--seed", "7", "--window", "30d"),
        ("--weight", "half-life=1d", "--weight", "voter-cap=5", "--control", "left_side"),
    ],
)
def test_every_number_comes_again_after_later_votes(folder: Path, options: tuple[str, ...]) -> None:
    """arena-hard-auto #54: a board that nobody can compute again cannot be argued about."""
    name = publish(folder, *options)
    append(folder, [cast(10_000 + number, "gpt-4", "alpaca-13b", "b") for number in range(30)])
    replayed = run("replay", "leaderboard", name, "--data", str(folder), "--json").output
    outcome = json.loads(replayed)
    assert outcome["identical"] is True, outcome["difference"]
    assert outcome["numbers"] > 200
    assert publish(folder, *options) != name  # the later votes make another board


def test_votes_taken_back_and_decisions_of_reviewers_count_from_then_on_only(folder: Path) -> None:
    name = publish(folder)
    with EventLog.open(folder / "log.db", keys=folder / "keys.db") as log:
        vote = next(iter(log.read(types=[VoteCast])))
        later: list[EventData] = [
            VoteWithdrawn(battle=vote.subject, voter="voter 0", vote=vote.id, reason="slip"),
            VoteReviewed(of="voter", name="voter 1", decision="exclude", reason="a test", by="tests"),
        ]
        for event in later:
            log.append_blocking(event, subject=vote.subject, source="tests")
    now = json.loads(run("leaderboard", "--data", str(folder), "--json").output)
    assert now["votes"] == VOTES - 11  # one, and the ten of the voter
    assert run("replay", "leaderboard", name, "--data", str(folder)).output.rstrip().endswith("identical")


def test_a_board_of_an_imported_file_of_real_votes_is_published_and_outlives_the_import(
    tmp_path: Path, shared_data: Path
) -> None:
    file = tmp_path / "votes.csv"
    real = (shared_data / "eval/votes/chatbot_arena_25938_human.csv").read_text(encoding="utf-8")
    file.write_text("\n".join(real.splitlines()[:1001]) + "\n", encoding="utf-8")
    EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db").close()
    data = ("--data", str(tmp_path))
    terms = ("--format", "csv", "--source", "lmsys", "--licence", "CC-BY-4.0")
    run("votes", "import", str(file), *terms, *data)
    name = publish(tmp_path, "--source", "lmsys")
    assert publish(tmp_path, "--source", "lmsys") == name
    output = run("replay", "leaderboard", name, *data).output
    assert "1,000 votes" in output
    assert output.rstrip().endswith("identical")
    row = json.loads(run("votes", "list", "--json", *data).output.splitlines()[0])
    run("votes", "withdraw", row["import"], "--reason", "a mistake", *data)
    assert run("replay", "leaderboard", name, *data).output == output

    with sqlite3.connect(tmp_path / "log.db") as tables:
        tables.execute("update imported_votes set choice = 'a'")  # tables are not what is replayed
    assert run("replay", "leaderboard", name, *data).output == output
    tamper(tmp_path, lambda text: text.replace('"choice":"b"', '"choice":"a"', 1), VotesImported.TYPE)
    replayed = run("replay", "leaderboard", name, *data, status=3).output
    assert "the votes are not those that were counted" in replayed


def test_the_board_that_is_printed_has_the_name_under_which_it_is_published(folder: Path) -> None:
    assert publish(folder) in run("leaderboard", "--data", str(folder)).output.splitlines()


def test_later_rules_change_nothing_of_what_was_published(folder: Path) -> None:
    name = publish(folder)
    rules = folder / "strict.toml"
    rules.write_text('name = "strict"\nvotes_per_voter_day = 3\n', encoding="utf-8")
    settings = folder / "tiltyard.toml"
    shipped = (Path(__file__).parents[2] / "tiltyard.toml").read_text(encoding="utf-8")
    settings.write_text(shipped.replace("[arena]", '[arena]\nruleset = "strict.toml"'), encoding="utf-8")
    places = ("--data", str(folder), "--config", str(settings))
    strict = json.loads(run("leaderboard", *places, "--json").output)
    assert strict["ruleset"].startswith("strict/1@")
    assert strict["votes"] == 120  # 40 voters, 3 votes each
    output = run("replay", "leaderboard", name, *places).output
    assert output.rstrip().endswith("identical")
    assert f"{VOTES} votes" in output


def test_a_tampered_number_is_named_with_both_values(folder: Path) -> None:
    name = publish(folder)
    with EventLog.open(folder / "log.db", keys=folder / "keys.db") as log:
        published = publication.find(log, name)
        rows = published.event.board["rows"]
        models = published.event.board["models"]
        assert isinstance(rows, list)
        assert isinstance(models, list)
        assert isinstance(rows[0], dict)
        rating = rows[0]["rating"]
        model = published.event.names[str(models[0])].name
    assert isinstance(rating, float)
    kind = LeaderboardPublished.TYPE
    tamper(folder, lambda text: text.replace(f'"rating":{rating}', f'"rating":{rating + 0.001:.3f}', 1), kind)
    output = run("replay", "leaderboard", name, "--data", str(folder), status=3).output
    assert f"differs: rows[0] ({model}).rating: published {rating + 0.001:.3f}, computed {rating}" in output
    assert "the event was altered" in output


def test_a_tampered_vote_is_told_from_a_tampered_number(folder: Path) -> None:
    append(folder, [cast(9_999, "gpt-4", "alpaca-13b", "a")])
    name = publish(folder)
    tamper(folder, lambda text: text.replace('"choice":"a"', '"choice":"b"'), VoteCast.TYPE)
    output = run("replay", "leaderboard", name, "--data", str(folder), status=3).output
    assert "data_digest" in output
    assert "the votes are not those that were counted" in output
    assert "altered" not in output


def test_the_name_is_the_digest_of_the_document_and_the_same_board_is_published_once(folder: Path) -> None:
    """FastChat #1540, #2637: here the numbers and pair counts behind a board are one event with a name."""
    name = publish(folder)
    assert publish(folder) == name
    with EventLog.open(folder / "log.db", keys=folder / "keys.db") as log:
        published = publication.find(log, name.removeprefix("sha256:"))
        assert digest_of_json(published.event.board) == name
        assert len(list(log.read(types=[LeaderboardPublished]))) == 1
        assert publication.newest(log) == published
        shown = publication.board_of(published)
        assert shown.digest == name
        again = publication.event_of(shown)
        assert again == published.event


def test_votes_of_a_file_and_senseless_names_are_refused(folder: Path) -> None:
    votes = folder / "votes.csv"
    votes.write_text("model_a,model_b,winner\nx,y,tie\n", encoding="utf-8")
    output = run("leaderboard", "--votes", str(votes), "publish", status=2).output
    assert "options go after publish" in output
    with EventLog.open(folder / "log.db", keys=folder / "keys.db") as log:
        with pytest.raises(InvalidRequest, match="64 hexadecimal digits"):
            publication.find(log, "best")
        with pytest.raises(NotFound, match="tiltyard leaderboard publish"):
            publication.find(log, "0" * 64)
        old = LeaderboardPublished(
            digest=digest_of(b"old"), method="bt", ruleset="r", votes=3, first_sequence=1, last_sequence=2
        )
        log.append_blocking(old, subject=old.digest, source="tests")
        with pytest.raises(InvalidRequest, match="kept no numbers"):
            publication.replay(log, old.digest)
    assert "name the leaderboard" in run("replay", "leaderboard", "--data", str(folder), status=2).output
    assert "second name" in run("replay", "gen_1", "gen_2", "--data", str(folder), status=2).output


def test_an_empty_log_has_nothing_to_publish(tmp_path: Path) -> None:
    EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db").close()
    output = run("leaderboard", "publish", "--data", str(tmp_path), status=1).output
    assert "no vote counts under these options" in output

"""`tiltyard leaderboard` as a user types it."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from tiltyard.cli.leaderboard_tables import show
from tiltyard.cli.main import main
from tiltyard.cli.vote_files import read_votes
from tiltyard.events.log import EventLog
from tiltyard.events.schema import Choice, VoteCast
from tiltyard.rating.leaderboard import Evidence, make_leaderboard
from tiltyard.rating.rated_models import RatedModel


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(main, ["leaderboard", *arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output


def write(path: Path, *rows: str) -> str:
    path.write_text("\n".join(["model_a,model_b,winner", *rows]) + "\n", encoding="utf-8")
    return str(path)


def vote(number: int, choice: Choice) -> VoteCast:
    return VoteCast(
        battle=f"bat_{number}",
        voter="someone",
        choice=choice,
        identity_a="plum",
        identity_b="quince",
        behaviour_a="sha256:" + "a" * 64,
        behaviour_b="sha256:" + "b" * 64,
        pair_probability=1.0,
        side_probability=0.5,
        turns=1,
        generations_a=("gen_1",),
        generations_b=("gen_2",),
    )


def test_a_votes_file_is_rated(tmp_path: Path) -> None:
    # 12 : 4 is ln 3, which is 95.4 points above and below 1000
    votes = write(tmp_path / "votes.csv", *["plum,quince,model_a"] * 12, *["plum,quince,model_b"] * 4)
    output = run("--votes", votes)
    assert "plum" in output
    assert "1095" in output
    assert "905" in output
    assert "12 / 4 / 0" in output
    assert "16 votes, both bad as a tie, 10 for a rank" in output
    assert "bradley-terry/2" in output


def test_json_is_what_the_api_answers(tmp_path: Path) -> None:
    votes = write(tmp_path / "votes.csv", *["plum,quince,tie (bothbad)"] * 3, "quince,plum,model_a")
    body = json.loads(run("--votes", votes, "--json", "--minimum-votes", "1", "--both-bad", "drop"))
    assert [row["name"] for row in body["rows"]] == ["quince", "plum"]
    assert body["rows"][0]["votes"] == 1
    assert body["rows"][0]["both_bad"] == 3
    assert body["digest"].startswith("sha256:")
    assert body["unbounded"] == {"quince": "undefeated", "plum": "winless"}


def test_the_log_is_read_without_a_server(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        for number in range(16):
            log.append_blocking(vote(number, "b" if number % 4 == 0 else "a"), subject="bat", source="tests")
    body = json.loads(run("--data", str(tmp_path), "--json"))
    assert [row["rank"] for row in body["rows"]] == [1, 1]
    assert body["rows"][0]["rating"] == pytest.approx(1095.424, abs=0.001)
    assert (body["first_sequence"], body["last_sequence"]) == (1, 16)
    table = run("--data", str(tmp_path), "--minimum-votes", "20")
    assert "needs 4 more votes" in table


def test_an_earlier_version_says_so_in_its_row(tmp_path: Path) -> None:
    votes = write(tmp_path / "votes.csv", *["old,new,model_a"] * 12, *["old,new,model_b"] * 12)
    old, new = (
        RatedModel(key=key, name="plum", behaviour=f"sha256:{key}", superseded=key == "old")
        for key in ("old", "new")
    )
    board = make_leaderboard(
        read_votes(Path(votes)).counts, models=[old, new], evidence=Evidence(ruleset="tests"), minimum_votes=1
    )
    console = Console(width=80, file=StringIO())
    show(board, console, address="http://127.0.0.1/")
    assert isinstance(console.file, StringIO)
    rows = [line for line in console.file.getvalue().splitlines() if "plum" in line]
    assert sorted("(earlier version " in row for row in rows) == [False, True]


def test_a_log_without_votes_says_how_to_get_some(tmp_path: Path) -> None:
    EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db").close()
    assert "No votes yet. Run `tiltyard up`" in run("--data", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model_a,model_b\nx,y\n", "has no column winner"),
        ("", "has no column model_a, model_b, winner; its first line names nothing"),
        ("model_a,model_b,winner\nx,y\n", "line 2: 2 values; the header has 3"),
        (
            "model_a,model_b,winner\nx,y,\n",
            "1 of 1 votes have an outcome that means nothing here: '' (1 times)",
        ),
        ("model_a,model_b,winner\nx,x,tie\n", "set 'x' against itself"),
    ],
)
def test_a_file_that_is_no_votes_file_is_one_clear_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "votes.csv"
    path.write_text(text, encoding="utf-8")
    output = run("--votes", str(path), status=1)
    assert said in output
    assert output.count("\n") == 1


def test_bytes_that_are_no_text_and_files_that_are_none_are_said(tmp_path: Path) -> None:
    path = tmp_path / "votes.csv"
    path.write_bytes(b"model_a,model_b,winner\n\xff,y,tie\n")
    assert "cannot be read as a CSV file in UTF-8" in run("--votes", str(path), status=1)
    assert "No such file" in run("--votes", str(tmp_path / "none.csv"), status=1)


def test_a_missing_log_and_a_senseless_window_are_said(tmp_path: Path) -> None:
    assert "there is no" in run("--data", str(tmp_path), status=1)
    votes = write(tmp_path / "votes.csv", "x,y,tie")
    assert "has no times" in run("--votes", votes, "--window", "30d", status=1)
    assert "window is 'soon'" in run("--votes", votes, "--window", "soon", status=1)


def many(path: Path) -> str:
    """Votes with every optional column, 3:1 for plum in English and 1:3 in Chinese."""
    rows = ["model_a,model_b,winner,voter,tstamp,pair_prob,language,length_a,length_b"]
    for number in range(80):
        language = "en" if number % 2 else "zh"
        better = "model_a" if (number % 8 < 6) == (language == "en") else "model_b"
        sides = "plum,quince"
        if number % 3 == 0:
            sides, better = "quince,plum", "model_b" if better == "model_a" else "model_a"
        winner = "tie" if number % 10 == 0 else better
        rows.append(
            f"{sides},{winner},v{number % 9},{1000 + number * 43_200},0.5,{language},{number % 7 + 1},3"
        )
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def test_options_reach_the_fit_and_are_named_in_the_method(tmp_path: Path) -> None:
    votes = many(tmp_path / "votes.csv")
    plain = json.loads(run("--votes", votes, "--json"))
    assert "details" not in plain
    body = json.loads(
        run(
            "--votes",
            votes,
            "--json",
            "--by-voter",
            "--control",
            "length",
            "--control",
            "left_side",
            "--simultaneous",
            "--weight",
            "half-life=10d",
            "--where",
            "language=en",
            "--anchor",
            "quince=1000",
            "--pairs",
            "1",
        )
    )
    assert body["method"] == (
        "bradley-terry/2 + half-life=10d + by-voter + control(length, left_side) + where language=en"
    )
    assert (body["votes"], body["details"]["voters"]) == (40, 9)
    assert [effect["name"] for effect in body["details"]["effects"]] == ["length", "left_side"]
    assert {row["name"]: row["rating"] for row in body["rows"]}["quince"] == 1000
    assert body["rows"][0]["ranks_simultaneous"]
    assert body["worst_connected"][0]["votes"] == 40
    assert body["digest"] != plain["digest"]


def test_ties_have_a_strength_when_asked(tmp_path: Path) -> None:
    votes = write(
        tmp_path / "votes.csv", *["plum,quince,a"] * 8, *["plum,quince,b"] * 2, *["plum,quince,tie"] * 6
    )
    # nu = 6 / sqrt(8 * 2)
    assert "tie strength 1.500" in run("--votes", votes, "--ties", "davidson")


def test_a_window_of_a_file_ends_with_its_newest_vote(tmp_path: Path) -> None:
    # Two votes a day: three days hold six, and the one exactly three days older is out.
    body = json.loads(
        run("--votes", many(tmp_path / "votes.csv"), "--json", "--window", "3d", "--minimum-votes", "1")
    )
    assert (body["votes"], body["window"]) == (6, "3d")


def test_unknown_outcomes_are_counted_when_asked(tmp_path: Path) -> None:
    votes = write(
        tmp_path / "votes.csv", *["plum,quince,a", "plum,quince,b"] * 6, "plum,quince,", "plum,quince,dunno"
    )
    assert "2 of 14 votes have an outcome that means nothing" in run("--votes", votes, status=1)
    body = json.loads(run("--votes", votes, "--json", "--unknown", "count"))
    assert body["votes"] == 12
    assert body["excluded"] == {"unknown outcome ''": 1, "unknown outcome 'dunno'": 1}


def test_elo_shows_what_the_order_decides(tmp_path: Path) -> None:
    votes = many(tmp_path / "votes.csv")
    body = json.loads(run("--votes", votes, "--elo", "--json", "--elo-constants", "k=32,initial=1500"))
    assert sum(row["rating"] for row in body["rows"]) == pytest.approx(3000, abs=0.01)
    assert all(row["shuffled_deviation"] > 0 for row in body["rows"])
    assert body == json.loads(
        run("--votes", votes, "--elo", "--json", "--elo-constants", "k=32,initial=1500")
    )
    assert "sd of orders" in run("--votes", votes, "--elo")


def test_pairs_are_printed_with_their_prediction(tmp_path: Path) -> None:
    output = run("--votes", many(tmp_path / "votes.csv"), "--pairs", "3")
    assert "least connected" in output
    assert "most surprising" in output


def test_the_log_carries_voters_probabilities_and_turns(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        for number in range(16):
            log.append_blocking(vote(number, "b" if number % 4 == 0 else "a"), subject="bat", source="tests")
    body = json.loads(
        run(
            "--data",
            str(tmp_path),
            "--json",
            "--by-voter",
            "--weight",
            "inverse-probability",
            "--where",
            "turns=1",
        )
    )
    assert (body["votes"], body["details"]["voters"]) == (16, 1)
    assert body["rows"][0]["rating"] == pytest.approx(1095.424, abs=0.001)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--anchor", "plum"), "write MODEL=POINTS"),
        (("--where", "colour=red"), "no trait 'colour'"),
        (("--weight", "age"), "is no weight"),
        (("--control", "style"), "headers_a and headers_b"),
        (("--ties", "davidson", "--by-voter"), "pair counts"),
        (("--elo", "--elo-constants", "k=much"), "no constants of Elo"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in " ".join(run("--votes", many(tmp_path / "votes.csv"), *arguments, status=1).split())


def test_windows_roll_over_the_votes_of_a_file(tmp_path: Path) -> None:
    # 80 votes, two a day for 40 days: windows of 30 days that end 4 days apart, the last at day 40
    votes = many(tmp_path / "votes.csv")
    body = json.loads(run("--votes", votes, "--rolling", "30", "--step", "4", "--json"))
    assert [window["end_us"] // 86_400_000_000 for window in body] == [32, 36, 40]
    assert [window["votes"] for window in body] == [60, 60, 60]
    lower, rating, upper = body[-1]["ratings"]["plum"]
    assert lower < rating < upper
    assert "1970-02-10 00:00" in run("--votes", votes, "--rolling", "30")


def test_bootstrap_bounds_are_in_the_json(tmp_path: Path) -> None:
    votes = many(tmp_path / "votes.csv")
    body = json.loads(run("--votes", votes, "--json", "--bootstrap", "10", "--seed", "5"))
    assert (body["details"]["bootstrap"]["resamples"], body["details"]["bootstrap"]["seed"]) == (10, 5)
    assert set(body["details"]["bootstrap"]["bounds"]) == {"plum", "quince"}
    assert "10 resamples of seed 5" in run("--votes", votes, "--bootstrap", "10", "--seed", "5")


def test_groups_are_refused_when_asked(tmp_path: Path) -> None:
    votes = write(tmp_path / "votes.csv", *["plum,quince,a", "plum,quince,b", "fig,date,a", "fig,date,b"] * 5)
    assert "2 groups" in run("--votes", votes)
    assert "(1) date, fig; (2) plum, quince" in " ".join(
        run("--votes", votes, "--connected", status=1).split()
    )

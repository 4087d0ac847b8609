"""`tiltyard votes` as a user types it, and boards of imported sources."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from tiltyard.cli.main import main
from tiltyard.cli.votes import Waiting


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """12 : 4 is ln 3, which is 95.4 points above and below 1000."""
    path = tmp_path / "votes.csv"
    rows = ["plum,quince,left,x"] * 12 + ["plum,quince,right,y"] * 4
    path.write_text("model_a,model_b,preference,worker\n" + "\n".join(rows) + "\n")
    return path


def imported(file: Path, *more: str, status: int = 0) -> str:
    return run(
        *("votes", "import", str(file), "--format", "csv", "--source", "crowd", "--licence", "CC-BY-4.0"),
        *("--map", "winner=preference", "--label", "left=a", "--label", "right=b"),
        *("--data", str(file.parent), *more),
        status=status,
    )


def test_a_file_is_imported_once_and_rated_only_where_its_source_is_asked_for(file: Path) -> None:
    data = ("--data", str(file.parent))
    said = imported(file)
    assert "imported: 16 votes of 16 rows, source crowd, CC-BY-4.0" in said
    assert "was imported before: 16 votes" in imported(file)
    own = json.loads(run("leaderboard", *data, "--json"))
    assert own["votes"] == 0
    board = json.loads(run("leaderboard", *data, "--source", "crowd", "--by-voter", "--json"))
    assert [(row["model"], row["name"], row["rating"], row["behaviour"]) for row in board["rows"]] == [
        ("declared:crowd/plum", "plum", 1095.424, None),
        ("declared:crowd/quince", "quince", 904.576, None),
    ]
    assert board["ruleset"] == "imported-votes/1"
    (source,) = board["details"]["sources"]
    assert (source["source"], source["licence"], source["votes"]) == ("crowd", "CC-BY-4.0", 16)
    anchored = run("leaderboard", *data, "--source", "crowd", "--anchor", "quince=500", "--json")
    assert [row["rating"] for row in json.loads(anchored)["rows"]] == [690.849, 500.0]


def test_imports_are_listed_and_withdrawn(file: Path) -> None:
    data = ("--data", str(file.parent))
    imported(file)
    (row,) = (json.loads(line) for line in run("votes", "list", "--json", *data).splitlines())
    assert (row["state"], row["source"], row["votes"], row["file_name"]) == (
        "finished",
        "crowd",
        16,
        "votes.csv",
    )
    run("votes", "withdraw", row["import"], "--reason", "a mistake", *data)
    assert "withdrawn  crowd" in run("votes", "list", *data)
    assert "no finished import is of the source 'crowd'" in run(
        "leaderboard", "--source", "crowd", *data, status=1
    )


def test_wrong_rows_are_named_with_line_and_field(file: Path) -> None:
    file.write_text(file.read_text() + "plum,quince,middle,z\n")
    said = imported(file, status=1)
    assert "line 18: preference is 'middle', which means nothing here" in said
    said = imported(file, "--bad-rows", "count")
    assert "left out: 1 unknown_outcome, first in line 18; preference is 'middle'" in said


def test_an_export_is_a_file_for_its_owner_and_replaces_nothing_unasked(file: Path, tmp_path: Path) -> None:
    imported(file)
    out = tmp_path / "out.jsonl"
    command = ("votes", "export", "--source", "crowd", "--data", str(tmp_path))
    assert "16 rows in" in run(*command, "--format", "lmarena", "-o", str(out))
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert len(out.read_text().splitlines()) == 16
    assert "--force replaces it" in run(*command, "--format", "csv", "-o", str(out), status=2)
    assert "has no single votes" not in run(*command, "--format", "csv", "-o", str(out), "--force")
    assert out.read_text().startswith("question_id,model_a,model_b,winner,judge")
    # To a pipe goes nothing that only its owner should read.
    assert "need --output" in run(*command, "--format", "lmarena", "--text", status=2)
    assert len(run(*command, "--format", "csv").splitlines()) == 17
    # What fails leaves no half of a file.
    run(*command, "--format", "mtbench", "-o", str(tmp_path / "none.jsonl"), status=1)
    assert not [*tmp_path.glob("none*")]


def test_an_export_is_parquet_where_its_name_says_so(file: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    imported(file)
    out = tmp_path / "out.parquet"
    run(
        *(
            "votes",
            "export",
            "--source",
            "crowd",
            "--data",
            str(tmp_path),
            "--format",
            "lmarena",
            "-o",
            str(out),
        )
    )
    rows = parquet.read_table(out).to_pylist()
    assert len(rows) == 16
    assert (rows[0]["model_a"], rows[0]["winner"]) == ("plum", "model_a")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_progress_is_told_only_of_work_that_takes_more_than_two_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stream = io.StringIO()
    with Waiting(stream) as waiting:
        for after, part in ((0.5, 0.1), (1.9, 0.2), (2.1, 0.3), (2.2, 0.4), (3.2, 0.5)):
            now[0] = 100.0 + after
            waiting.show("importing", part)
    assert stream.getvalue() == "importing: 30%\nimporting: 50%\n"


def test_source_and_votes_are_two_places(file: Path) -> None:
    said = run("leaderboard", "--votes", str(file), "--source", "crowd", status=1)
    assert "--source and --votes are two places" in said
    assert "give that too" in run("leaderboard", "--judge", "gpt-4", status=1)

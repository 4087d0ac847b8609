"""`tiltyard data redact` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from tiltyard.cli.main import main

TEXT = "Ann <ann@example.com>, card 4111 1111 1111 1111; again ann@example.com\n"


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["data", "redact", *arguments], input=given, catch_exceptions=False)


def test_standard_input_comes_out_redacted_and_the_counts_beside_it() -> None:
    done = run(given=TEXT)
    assert done.stdout == "Ann <[EMAIL_1]>, card [CARD_1]; again [EMAIL_1]\n"
    assert done.stderr == "found: 1 card, 2 email\n"


def test_a_file_as_json_with_places(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    answer = json.loads(run(str(tmp_path / "a.txt"), "--policy", "tag", "--json").stdout)
    assert answer["text"] == TEXT
    assert [TEXT[f["start"] : f["end"]] for f in answer["findings"]] == [
        "ann@example.com",
        "4111 1111 1111 1111",
        "ann@example.com",
    ]


def test_refusing_ends_with_status_1_and_repeats_no_word_of_it() -> None:
    done = run("--policy", "refuse", given=TEXT)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "1 card, 2 email" in done.stderr
    assert "ann" not in done.stderr
    assert run("--policy", "refuse", given="hello\n").stdout == "hello\n"

"""The corpus of hostile words through every export: nothing is lost where data is data, nothing acts where it is shown."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml
from dataset_yard import allow, imported, means_of, opened_log, plan_of, released, rows_in
from markdown_it import MarkdownIt

from hostile import CORPUS, foreign_elements, steers
from tiltyard.arena.importing.export import ExportFormat, ExportTerms, export_votes
from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import Layout
from tiltyard.rating.ruleset import Ruleset
from tiltyard.web.markdown import render_markdown

NAMES = [words for words in CORPUS if words.strip() and words.isprintable() and len(words) <= 200]


def talk(asked: str, said: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EventLog]:
    """Every text of the corpus as a conversation, every printable one as a model's name and a question's id."""
    folder = tmp_path_factory.mktemp("hostile")
    with opened_log(folder) as opened:
        rows = [
            {
                "question_id": NAMES[n % len(NAMES)],
                "model_a": f"{NAMES[n % len(NAMES)]}"[:190] + "!",
                "model_b": "quince",
                "winner": "model_a",
                "judge": NAMES[n % len(NAMES)],
                "conversation_a": talk(words, words),
                "conversation_b": talk(words, f"{words} again"),
                "turn": 1,
                "anony": True,
                "language": NAMES[n % len(NAMES)],
                "tstamp": 1_682_351_591.0 + n,
            }
            for n, words in enumerate(CORPUS)
        ]
        imported(opened, folder / "in.jsonl", rows, source="others")
        allow(opened, "others", "publish", "evaluate")
        yield opened


@pytest.mark.parametrize("layout", get_args(Layout))
def test_json_lines_hold_every_text_and_the_card_shows_names_as_text(
    log: EventLog, tmp_path: Path, layout: Layout
) -> None:
    done = released(
        log, tmp_path / "out", layout=layout, sources=["import/others"], card={"title": "<b>a|b</b> [x](y)"}
    )
    said = {
        message["content"]
        for row in rows_in(done.directory)
        for value in row.values()
        if isinstance(value, list)
        for message in value
        if isinstance(message, dict)
    }
    # a@evil.example is an address, so redaction takes it; everything else is as it was
    changed = {words for words in CORPUS if words not in said}
    assert all("evil.example" in words and "@" in words for words in changed), changed
    for path in done.directory.rglob("*"):
        if path.is_file():
            lines = path.read_text(encoding="utf-8").split("\n")
            assert not [steers(line) for line in lines if steers(line) and path.suffix != ".jsonl"], path
    card = (done.directory / "README.md").read_text(encoding="utf-8")
    _, front, body = card.split("---\n", 2)
    assert yaml.safe_load(front)["license"] == "cc-by-4.0"
    github = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(body)
    assert not foreign_elements(github)
    assert not foreign_elements(str(render_markdown(body)))
    assert "<b>" not in github
    rows = re.findall(r"<tr>(.*?)</tr>", github, re.DOTALL)
    assert {row.count("<td>") for row in rows} <= {0, 2, 3, 4}  # no name made a cell of its own


def test_parquet_holds_every_text(log: EventLog, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    done = released(
        log, tmp_path / "out", layout="conversations", sources=["import/others"], files=["parquet", "jsonl"]
    )
    table = parquet.read_table(done.directory / "data" / "train-00000-of-00001.parquet")
    assert table.to_pylist() == rows_in(done.directory)


@pytest.mark.parametrize("form", get_args(ExportFormat))
def test_no_export_of_votes_writes_what_acts(log: EventLog, form: ExportFormat) -> None:
    out = io.StringIO()
    try:
        export_votes(
            log,
            Ruleset(),
            ExportTerms(form, source="others", text=form not in {"csv", "counts", "pairs"}),
            out,
        )
    except InvalidRequest:
        assert form == "mtbench"  # there are no verdicts here
        return
    text = out.getvalue()
    if form == "csv":
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert not [cell for cell in cells if cell.lstrip(" \u00a0")[:1] in set("=+@\t\r＝＋－＠") and cell]
        assert not [cell for cell in cells if cell.startswith("-")]
        return
    for line in text.split("\n"):
        if line:
            json.loads(line)
            assert "\x1b" not in line  # JSON writes control characters as escapes
            assert "\x00" not in line


def test_a_plan_cannot_name_a_file_outside_of_its_release(log: EventLog, tmp_path: Path) -> None:
    for name in ("../evil", "a/b", "A B", "x" * 64, ".hidden", "=1"):
        with pytest.raises(Exception, match="name: String should match pattern"):
            plan_of(name=name)
    assert means_of(log).log is log

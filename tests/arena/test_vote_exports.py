"""Exports: the formats that can be imported, with the same fields; nothing that was not asked for; nothing a spreadsheet runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from import_files import battle, logged, pairwise, write_lines

from tiltyard.arena.importing.export import ExportFormat, ExportTerms, export_votes
from tiltyard.arena.importing.run import import_votes
from tiltyard.arena.importing.terms import Format, Terms
from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.imported import ImportedVoteRow
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    PURPOSES,
    BattleOpened,
    Contestant,
    DataTermsSet,
    GenerationFinished,
    VoteCast,
)
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.rating.ruleset import Ruleset

PLUM, QUINCE = "sha256:" + "a" * 64, "sha256:" + "b" * 64
EVERY = Ruleset(name="every", least_seconds=0.0, exclude_leaks=True)


def terms(form: Format, **more: object) -> Terms:
    return Terms.of(**{"format": form, "source": "others", "licence": "CC-BY-4.0", **more})  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as opened:
        yield opened


def exported(log: EventLog, form: ExportFormat, source: str | None = "others", **more: bool) -> str:
    out = io.StringIO()
    if more.get("text"):
        may = DataTermsSet(scope="*", purposes=dict.fromkeys(PURPOSES), basis="a test", by="test")
        log.append_blocking(may, subject="*", source="test")
    export_votes(log, EVERY, ExportTerms(form, source=source, **more), out)
    return out.getvalue()


def facts(row: ImportedVoteRow) -> tuple[object, ...]:
    """All of a vote but where it stood and under which pseudonym."""
    return (
        row.a,
        row.b,
        row.choice,
        row.time_us,
        row.turns,
        row.id,
        row.anonymous,
        row.pair_probability,
        row.traits,
    )


def words(log: EventLog, row: ImportedVoteRow) -> object:
    return None if row.text is None else json.loads(log.own_words("test").read(row.text))


ROWS = [
    battle(
        1, "model_a", is_code=False, conv_metadata={"sum_assistant_a_tokens": 9, "sum_assistant_b_tokens": 4}
    ),
    battle(
        2,
        "tie (bothbad)",
        anony=False,
        dedup_tag={"sampled": True},
        category_tag={"math_v0.1": {"math": True}},
    ),
    battle(3, "tie"),
]


@pytest.mark.parametrize(
    ("form", "rows"),
    [("lmarena", ROWS), ("fastchat", [logged(1), logged(2, "tievote", models=["plum", "quince"])])],
)
def test_what_was_imported_comes_back_as_the_same_votes_words_and_all(
    form: Format, rows: list[object], log: EventLog, tmp_path: Path
) -> None:
    first = import_votes(log, write_lines(tmp_path / "in.json", *rows), terms(form))
    out = tmp_path / "out.json"
    out.write_text(exported(log, form, text=True))  # type: ignore[arg-type]
    again = import_votes(log, out, terms(form, source="again"))
    before, after = (list(log.imported_votes(done.import_id)) for done in (first, again))
    assert [facts(row) for row in after] == [facts(row) for row in before]
    assert [words(log, row) for row in after] == [words(log, row) for row in before]
    same_voter = [[one.voter == other.voter for other in before] for one in before]
    assert [[one.voter == other.voter for other in after] for one in after] == same_voter


def test_an_lmarena_export_has_the_fields_that_came_in(log: EventLog, tmp_path: Path) -> None:
    """FastChat #1540, #2637: votes go out as they came in."""
    import_votes(log, write_lines(tmp_path / "in.jsonl", *ROWS), terms("lmarena", voters="as-given"))
    lines = [json.loads(line) for line in exported(log, "lmarena", text=True).splitlines()]
    for line, row in zip(lines, ROWS, strict=True):
        metadata = line.pop("conv_metadata", None)
        assert metadata == row.get("conv_metadata")
        for side in "ab":  # role and content, in whatever order
            assert line.pop(f"conversation_{side}") == row[f"conversation_{side}"]
        assert line == {name: value for name, value in row.items() if not name.startswith("conv")}


@pytest.mark.parametrize("form", ["csv", "lmarena"])
def test_votes_go_through_a_file_without_words_and_come_back(
    form: Format, log: EventLog, tmp_path: Path
) -> None:
    import_votes(log, write_lines(tmp_path / "in.jsonl", *ROWS), terms("lmarena", text=False))
    text = exported(log, form)  # type: ignore[arg-type]
    assert "ask" not in text
    out = tmp_path / f"out.{'csv' if form == 'csv' else 'jsonl'}"
    out.write_text(text)
    again = import_votes(log, out, terms(form, source="again"))
    rows = list(log.imported_votes(again.import_id))
    assert [(row.id, row.choice, row.anonymous, row.traits.get("language")) for row in rows] == [
        ("q1", "a", True, "English"),
        ("q2", "both_bad", False, "English"),
        ("q3", "tie", True, "English"),
    ]


def test_verdicts_come_back_with_both_orders_and_the_judges_words(log: EventLog, tmp_path: Path) -> None:
    rows = [
        pairwise(81, "model_1", "tie"),
        pairwise(82, "error", "model_2"),
        {
            "question_id": 83,
            "judge": ["gpt-4", "single-v1"],
            "turn": 2,
            "tstamp": 1_687_000_001.5,
            "model": "plum",
            "score": -1,
            "user_prompt": "rate it",
            "judgment": "no number",
        },
    ]
    import_votes(log, write_lines(tmp_path / "in.jsonl", *rows), terms("mtbench"))
    assert [json.loads(line) for line in exported(log, "mtbench", text=True).splitlines()] == rows


def test_counts_come_back_to_the_number(log: EventLog, tmp_path: Path) -> None:
    document = {
        "models": ["medlar", "plum", "quince"],
        "X": [[0, 1], [1, 2]],
        "Y": [[3, 5, 2, 0], [1, 0, 0, 4]],
    }
    import_votes(log, write_lines(tmp_path / "in.json", document), terms("counts"))
    assert json.loads(exported(log, "counts")) == document
    pairs = json.loads(exported(log, "pairs"))["pairs"]
    assert pairs[1] == {
        "model_a": "plum",
        "model_b": "quince",
        "wins_a": 1,
        "wins_b": 0,
        "ties": 0,
        "both_bad": 4,
    }


def test_a_cell_that_a_spreadsheet_would_run_is_made_inert(log: EventLog, tmp_path: Path) -> None:
    rows = [
        battle(1, model_a='=HYPERLINK("http://x")', judge="@someone"),
        battle(2, model_a="-plum", language="+1"),
    ]
    import_votes(log, write_lines(tmp_path / "in.jsonl", *rows), terms("lmarena", voters="as-given"))
    first, second = csv.DictReader(io.StringIO(exported(log, "csv")))
    assert (first["model_a"], first["judge"]) == ('\'=HYPERLINK("http://x")', "'@someone")
    assert second["model_a"] == "'-plum"
    assert float(second["tstamp"]) == 1_682_351_593.1322
    again = tmp_path / "again.csv"
    again.write_text(exported(log, "csv"), encoding="utf-8")
    back = import_votes(log, again, terms("csv", source="again", voters="as-given"))
    assert {(row.a, row.voter) for row in log.imported_votes(back.import_id)} == {
        ('=HYPERLINK("http://x")', "@someone"),
        ("-plum", "arena_user_2"),
    }


def own_votes(log: EventLog) -> None:
    for number in range(3):
        name = f"bat_{number}"
        opened = BattleOpened(
            battle=name,
            voter="voter_1",
            contestants=(
                Contestant(side="a", identity="plum", behaviour=PLUM),
                Contestant(side="b", identity="quince", behaviour=QUINCE),
            ),
            pair_probability=0.25,
            side_probability=0.5,
            policy="information/1",
            slice="en",
            network="net_secret",
            prompt_digest="d",
            vote_token_digest=PLUM,
        )
        cast = VoteCast(
            battle=name,
            voter="voter_1",
            choice="a",
            identity_a="plum",
            identity_b="quince",
            behaviour_a=PLUM,
            behaviour_b=QUINCE,
            pair_probability=0.25,
            side_probability=0.5,
            turns=1,
            generations_a=("gen_1",),
            generations_b=("gen_2",),
            leaks=("b",) if number == 2 else (),
        )
        log.append_blocking(opened, subject=name, source="tests")
        log.append_blocking(cast, subject=name, source="tests")


def test_researchers_get_every_vote_with_its_probabilities_and_the_rulesets_verdict(log: EventLog) -> None:
    own_votes(log)
    text = exported(log, "research", source=None)
    assert "net_secret" not in text
    rows = [json.loads(line) for line in text.splitlines()]
    assert [(row["counts"], row["reason"]) for row in rows] == [
        (True, None),
        (True, None),
        (False, "identity_leak"),
    ]
    first = rows[0]
    assert (first["pair_probability"], first["side_probability"], first["policy"]) == (
        0.25,
        0.5,
        "information/1",
    )
    assert (first["behaviour_a"], first["behaviour_b"], first["ruleset"]) == (PLUM, QUINCE, EVERY.label)
    assert first["seconds"] >= 0
    assert "net_secret" in exported(log, "research", source=None, network=True)
    # The other formats hold what counts.
    assert len(exported(log, "lmarena", source=None).splitlines()) == 2
    assert json.loads(exported(log, "counts", source=None)) == {
        "models": [PLUM, QUINCE],
        "X": [[0, 1]],  # unregistered in this log, so named by digest
        "Y": [[2, 0, 0, 0]],
    }


def test_words_of_own_votes_go_out_on_demand_and_are_counted_when_erased(log: EventLog) -> None:
    own_votes(log)
    for generation, said in (("gen_1", "plums"), ("gen_2", "quinces")):
        asked = log.content("voter_1", b'{"messages":[{"content":"ask","role":"user"}]}')
        answer = {"choices": [{"index": 0, "text": said, "token_ids": [], "finish_reason": "stop"}]}
        told = log.content("voter_1", json.dumps(answer).encode())
        done = GenerationFinished(
            generation=generation,
            endpoint="chat.completions",
            behaviour=PLUM,
            deployment=QUINCE,
            alias="chat",
            identity="plum",
            worker="w",
            prompt=asked.ref,
            response=told.ref,
            prompt_token_digest=None,
            sampling=DefaultSampling(),
            seed=1,
            stream=True,
            choices=(),
            prompt_tokens=1,
            cached_tokens=0,
            completion_tokens=1,
            total_ms=1.0,
        )
        log.append_blocking(done, subject=generation, source="tests", contents=[asked, told])
    first = json.loads(exported(log, "lmarena", source=None, text=True).splitlines()[0])
    ask = {"role": "user", "content": "ask"}
    assert first["conversation_a"] == [ask, {"role": "assistant", "content": "plums"}]
    assert first["conversation_b"] == [ask, {"role": "assistant", "content": "quinces"}]
    log.erase_subject("voter_1")
    written = export_votes(log, EVERY, ExportTerms("lmarena", text=True), io.StringIO())
    assert (written.rows, written.lacking) == (2, 2)


@pytest.mark.parametrize(
    ("form", "source", "more", "said"),
    [
        ("csv", None, {"text": True}, "csv has no place for conversations"),
        ("csv", None, {"network": True}, "only in the format research"),
        ("mtbench", None, {}, "name an imported source"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(
    form: ExportFormat, source: str | None, more: dict[str, bool], said: str, log: EventLog
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        exported(log, form, source, **more)


def test_a_source_that_is_not_there_or_has_no_single_votes_is_refused(log: EventLog, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="of the source 'others'"):
        exported(log, "csv")
    document = {"models": ["plum", "quince"], "X": [[0, 1]], "Y": [[3, 5, 2, 0]]}
    import_votes(log, write_lines(tmp_path / "in.json", document), terms("counts"))
    with pytest.raises(InvalidRequest, match="exported as counts or pairs"):
        exported(log, "lmarena")
    with pytest.raises(InvalidRequest, match="no verdicts of judges"):
        exported(log, "mtbench")


def test_words_that_nobody_allowed_to_publish_do_not_leave_with_the_votes(log: EventLog) -> None:
    own_votes(log)
    out = io.StringIO()
    written = export_votes(log, EVERY, ExportTerms("lmarena", text=True), out)
    assert (written.rows, written.lacking) == (2, 2)

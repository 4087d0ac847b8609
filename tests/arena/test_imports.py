"""Importing votes: every format, what is refused, what is never kept, and that nothing is doubled or half there."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from import_files import battle, logged, pairwise, write_lines

import tiltyard
from tiltyard.arena.importing.board import declared_key, imported_board
from tiltyard.arena.importing.run import import_votes, withdraw
from tiltyard.arena.importing.terms import Format, Terms
from tiltyard.errors import ConfigurationError, Conflict, InvalidRequest, NotFound
from tiltyard.events.imported import ImportedVoteRow
from tiltyard.events.log import EventLog
from tiltyard.events.schema import VotesImported
from tiltyard.rating.outcomes import OUTCOMES


def terms(form: Format, **more: object) -> Terms:
    return Terms.of(**{"format": form, "source": "others", "licence": "CC-BY-4.0", **more})  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as opened:
        yield opened


def votes_of(log: EventLog, import_id: str) -> list[ImportedVoteRow]:
    return list(log.imported_votes(import_id))


def test_an_lmarena_file_comes_in_with_all_that_its_columns_say(log: EventLog, tmp_path: Path) -> None:
    """FastChat #1540, #2637: the votes that others published can be had, kept and counted here."""
    marks = {"is_code": True, "dedup_tag": {"high_freq": False, "sampled": True}}
    file = write_lines(
        tmp_path / "battles.jsonl",
        *(
            battle(number, label, **marks)
            for number, label in enumerate(("model_a", "model_b", "tie", "tie (bothbad)"))
        ),
    )
    done = import_votes(log, file, terms("lmarena"))
    assert (done.finished.rows, done.finished.votes, done.finished.refused) == (4, 4, ())
    rows = votes_of(log, done.import_id)
    assert [row.choice for row in rows] == list(OUTCOMES)
    first = rows[0]
    assert (first.line, first.a, first.b, first.id, first.turns, first.anonymous) == (
        1,
        "plum",
        "quince",
        "q0",
        1,
        True,
    )
    assert first.time_us == 1_682_351_591_132_200
    assert first.traits == {
        "language": "English",
        "is_code": True,
        "dedup_tag/high_freq": False,
        "dedup_tag/sampled": True,
        "length_a": 4.0,
        "headers_a": 1.0,
        "bold_a": 1.0,
        "lists_a": 0.0,
        "length_b": 4.0,
        "headers_b": 0.0,
        "bold_b": 0.0,
        "lists_b": 1.0,
    }
    assert len({row.voter for row in rows}) == 3
    assert rows[0].voter == rows[3].voter


@pytest.mark.parametrize("shape", ["array", "csv", "one_hot"])
def test_other_shapes_of_battle_files_give_the_same_votes(shape: str, log: EventLog, tmp_path: Path) -> None:
    labels = ["model_a", "model_b", "tie"]
    rows = [battle(number, label) for number, label in enumerate(labels)]
    if shape == "array":
        file = tmp_path / "battles.json"
        file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    elif shape == "csv":
        file = tmp_path / "battles.csv"
        with file.open("w", newline="", encoding="utf-8") as stream:
            table = csv.DictWriter(stream, rows[0])
            table.writeheader()
            table.writerows(
                {name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items()}
                for row in rows
            )
    else:  # lmarena-ai/arena-human-preference-55k
        for row in rows:
            winner = row.pop("winner")
            row |= {f"winner_{label}": int(winner == label) for label in labels}
        file = write_lines(tmp_path / "battles.jsonl", *rows)
    done = import_votes(log, file, terms("lmarena"))
    found = votes_of(log, done.import_id)
    assert [row.choice for row in found] == ["a", "b", "tie"]
    assert [row.id for row in found] == ["q0", "q1", "q2"]
    assert {row.traits["headers_a"] for row in found} == {1.0}
    assert all(row.text is not None for row in found)


def test_a_parquet_file_gives_the_same_votes(log: EventLog, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from tiltyard.arena.importing.records import write_parquet

    write_parquet(tmp_path / "battles.parquet", [battle(number) for number in range(3)])
    done = import_votes(log, tmp_path / "battles.parquet", terms("lmarena"))
    assert [row.id for row in votes_of(log, done.import_id)] == ["q0", "q1", "q2"]
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(InvalidRequest, match="cannot be read as Parquet"):
        import_votes(log, tmp_path / "broken.parquet", terms("lmarena"))


def test_without_pyarrow_a_parquet_file_says_what_to_install(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "battles.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigurationError, match=r"pip install 'tiltyard\[parquet\]'"):
        import_votes(log, tmp_path / "battles.parquet", terms("lmarena"))


def test_a_fastchat_log_gives_its_votes_and_nothing_of_an_address(log: EventLog, tmp_path: Path) -> None:
    """FastChat #1540, #2637. One address is one voter, where FastChat's cleaning draws ids anew in each of 100 chunks."""
    file = write_lines(
        tmp_path / "2023-07-22-conv.json",
        {"tstamp": 1.0, "type": "chat", "model": "plum", "state": {}, "ip": "203.0.113.7"},
        logged(1),
        logged(2, "rightvote", ip="203.0.113.8"),
        logged(3, "tievote"),
        logged(4, "bothbad_vote", models=["plum", "quince"]),
        {"tstamp": 1.0, "type": "upvote", "model": "plum", "state": {}, "ip": "203.0.113.7"},
    )
    done = import_votes(log, file, terms("fastchat"))
    assert [(one.reason, one.rows, one.first_line) for one in done.finished.refused] == [("no_vote", 2, 1)]
    rows = votes_of(log, done.import_id)
    assert [row.choice for row in rows] == ["a", "b", "tie", "both_bad"]
    assert [row.anonymous for row in rows] == [True, True, True, False]
    assert rows[0].voter == rows[2].voter != rows[1].voter
    assert {row.turns for row in rows} == {1}  # the template's example is not the user's
    assert rows[0].text is not None
    assert json.loads(log.own_words("test").read(rows[0].text))["conversation_b"] == [
        {"role": "user", "content": "ask 1"},
        {"role": "assistant", "content": "answer of quince"},
    ]
    # A voter who saw the names is on no board.
    board = imported_board(log, ["others"])
    assert (len(board.votes), board.excluded) == (3, {"names_were_shown": 1})
    for name in ("log.db", "log.db-wal", "keys.db"):
        stored = (tmp_path / name).read_bytes() if (tmp_path / name).exists() else b""
        assert b"203.0.113" not in stored
        assert b"ask 1" not in stored  # words are in the vault, encrypted


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"models": ["plum", ""]}, "half_hidden"),
        ({"models": ["plum", "medlar"]}, "names_differ"),
        ({"states": []}, "no_conversation"),
        ({"tstamp": 5}, "bad_time"),
    ],
)
def test_a_vote_in_a_log_that_contradicts_itself_is_counted_by_its_reason(
    change: dict[str, object], reason: str, log: EventLog, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "conv.json", logged(1), logged(2, **change))
    done = import_votes(log, file, terms("fastchat"), bad_rows="count")
    assert [(one.reason, one.first_line) for one in done.finished.refused] == [(reason, 2)]
    assert done.finished.votes == 1


def test_verdicts_of_a_judge_are_kept_with_its_name_and_counted_as_nobodys_vote(
    log: EventLog, tmp_path: Path
) -> None:
    """FastChat #2121, #2284: judges are told apart from people, and from each other."""
    single = {
        "question_id": 81,
        "model": "plum",
        "judge": ["gpt-4", "single-v1"],
        "judgment": "[[9]]",
        "turn": 1,
    }
    file = write_lines(
        tmp_path / "judgments.jsonl",
        pairwise(81, "model_1", "model_1"),
        pairwise(82, "model_1", "model_2"),  # the judge changed its mind with the order
        pairwise(83, "error", "model_2"),
        {**single, "score": 9},
        {**single, "score": -1, "turn": 2},
    )
    done = import_votes(log, file, terms("mtbench"))
    assert (done.finished.votes, done.finished.judgments) == (0, 5)
    rows = list(log.imported_judgments(done.import_id))
    assert [row.outcome for row in rows] == ["a", "tie", None, None, None]
    assert [row.score for row in rows] == [None, None, None, 9.0, None]
    assert rows[0].text is not None
    assert json.loads(log.own_words("test").read(rows[0].text))["g2_judgment"] == "[[B]]"
    with pytest.raises(InvalidRequest, match=r"5 verdicts of gpt-4 and no vote of a person.*--judge"):
        imported_board(log, ["others"])
    with pytest.raises(InvalidRequest, match="no verdict of 'claude' on a pair"):
        imported_board(log, ["others"], judge="claude")
    board = imported_board(log, ["others"], judge="gpt-4")
    assert board.votes.counts.counts.tolist() == [[1, 0, 1, 0]]
    assert board.excluded == {"unread_verdict": 1}
    assert board.ruleset == "imported-judgments/1:gpt-4"
    assert log.votes() == []


def test_both_shapes_of_pair_counts_are_read(log: EventLog, tmp_path: Path) -> None:
    leaderbot = {"models": ["quince", "plum"], "X": [[0, 1]], "Y": [[3, 5, 2]]}
    ours = {
        "pairs": [
            {"model_a": "plum", "model_b": "quince", "wins_a": 5, "wins_b": 3, "ties": 2, "both_bad": 0}
        ]
    }
    for source, document in (("leaderbot", leaderbot), ("ours", ours)):
        file = write_lines(tmp_path / f"{source}.json", document)
        assert import_votes(log, file, terms("counts", source=source)).finished.votes == 10
        counts = imported_board(log, [source]).votes.counts
        assert counts.models == (declared_key(source, "plum"), declared_key(source, "quince"))
        assert counts.counts.tolist() == [[5, 3, 2, 0]]


def test_a_name_that_looks_like_a_digest_is_not_the_behaviour(log: EventLog, tmp_path: Path) -> None:
    digest = "sha256:" + "a" * 64
    file = write_lines(tmp_path / "battles.jsonl", *(battle(n, model_a=digest) for n in range(2)))
    import_votes(log, file, terms("lmarena"))
    board = imported_board(log, ["others"])
    assert [(model.key, model.name, model.behaviour) for model in board.models] == [
        (f"declared:others/{digest}", digest, None),
        ("declared:others/quince", "quince", None),
    ]


def test_equal_names_of_two_sources_are_one_model_only_when_that_is_said(
    log: EventLog, tmp_path: Path
) -> None:
    for number, source in enumerate(("one", "two")):
        import_votes(
            log, write_lines(tmp_path / f"{source}.jsonl", battle(number)), terms("lmarena", source=source)
        )
    assert len(imported_board(log, ["one", "two"]).models) == 4
    assert len(imported_board(log, ["one"]).votes) == 1
    together = imported_board(log, ["one", "two"], same_names=True)
    assert [model.key for model in together.models] == ["declared:/plum", "declared:/quince"]
    assert together.votes.counts.counts.tolist() == [[2, 0, 0, 0]]
    with pytest.raises(NotFound, match="there are one, two"):
        imported_board(log, ["three"])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            '{"model_a": "plum", "model_b": "quince", "winner": ""}',
            "line 2: winner is ''.*not taken for a tie",
        ),
        ('{"model_a": "plum", "model_b": "plum", "winner": "tie"}', "line 2: both models are 'plum'"),
        ('{"model_a": "plum", "winner": "tie"}', "line 2: model_b is None"),
        (
            '{"model_a": "pl\\u0007um", "model_b": "quince", "winner": "tie"}',
            "line 2: model_a has 5 characters",
        ),
        (
            '{"model_a": "plum", "model_b": "quince", "winner": "tie", "tstamp": "soon"}',
            "line 2: tstamp is 'soon'",
        ),
        ('{"model_a": "plum", "model_b": "quince", "winner": "tie", "turn": 1.5}', "line 2: turn is 1.5"),
        ('{"model_a": "plum", "model_b"', "line 2: it is no JSON"),
        ("[1, 2]", "line 2: it is no JSON object"),
    ],
)
def test_a_wrong_row_refuses_the_file_with_line_and_field_before_anything_is_stored(
    row: str, said: str, log: EventLog, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "battles.jsonl", battle(1))
    file.write_text(file.read_text() + row + "\n")
    with pytest.raises(InvalidRequest, match=f"battles.jsonl, {said}") as raised:
        import_votes(log, file, terms("lmarena"))
    assert "--bad-rows count" in raised.value.message
    assert log.last_sequence() == 0
    done = import_votes(log, file, terms("lmarena"), bad_rows="count")
    assert (done.finished.rows, done.finished.votes) == (2, 1)
    assert [(one.rows, one.first_line) for one in done.finished.refused] == [(1, 2)]


def test_files_that_are_cut_deep_or_of_another_kind_are_refused_in_words(
    log: EventLog, tmp_path: Path
) -> None:
    cases = {
        "cut.json": ("[" + json.dumps(battle(1)) + ", {", "lmarena", "nothing behind it was read"),
        "open.json": ("[" + json.dumps(battle(1)), "lmarena", "the array does not end"),
        "deep.json": ("[" * 100_000, "lmarena", "nested too deep"),
        "empty.jsonl": ("", "lmarena", "0 rows and no vote"),
        "latin.csv": ("model_a,model_b,winner\nplum,quínce,tie\n", "csv", "not in UTF-8"),
        "short.csv": (
            "model_a,model_b,winner\nplum,quince\n",
            "csv",
            "line 2: it has 2 values; the header has 3",
        ),
        "twice.csv": ("model_a,model_a,winner\n", "csv", "two columns named 'model_a'"),
        "other.json": ('{"votes": 3}', "counts", "holds no counts"),
        "ragged.json": (
            '{"models": ["a", "b"], "X": [[0, 7]], "Y": [[1, 2, 3]]}',
            "counts",
            "outside 0 to 1",
        ),
        "minus.json": ('{"models": ["a", "b"], "X": [[0, 1]], "Y": [[-1, 2, 3]]}', "counts", "wins_a is -1"),
    }
    for name, (text, form, said) in cases.items():
        file = tmp_path / name
        file.write_bytes(text.encode("latin-1" if name == "latin.csv" else "utf-8"))
        with pytest.raises(InvalidRequest, match=said):
            import_votes(log, file, terms(form))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="No such file"):
        import_votes(log, tmp_path / "nowhere.jsonl", terms("lmarena"))
    assert log.last_sequence() == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"source": "Two Words"}, "the source is 'Two Words'"),
        ({"licence": "free for all!"}, "SPDX"),
        ({"columns": ["colour=red"]}, "--map names 'colour'; columns are model_a"),
        ({"columns": ["winner"]}, "write it as winner=preference"),
        ({"labels": ["left=l"]}, "it may be a, b, tie, both_bad"),
    ],
)
def test_terms_that_mean_nothing_are_refused_by_name(more: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        terms("csv", **more)


def test_the_same_file_twice_doubles_nothing(log: EventLog, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "battles.jsonl", *(battle(n) for n in range(5)))
    first = import_votes(log, file, terms("lmarena"))
    before = log.last_sequence()
    copy = tmp_path / "renamed.jsonl"
    copy.write_bytes(file.read_bytes())
    again = import_votes(log, copy, terms("lmarena"))
    assert again.was_there
    assert again.finished == first.finished
    assert log.last_sequence() == before
    with pytest.raises(Conflict, match=r"source was 'others' and is now 'mine'.*not taken twice"):
        import_votes(log, file, terms("lmarena", source="mine"))


def test_a_log_that_grew_gives_only_its_new_votes(log: EventLog, tmp_path: Path) -> None:
    """A server's log is imported today and, longer, tomorrow; some rows in it are there twice."""
    file = write_lines(tmp_path / "conv.json", *(logged(n) for n in range(3)))
    import_votes(log, file, terms("fastchat"))
    longer = write_lines(tmp_path / "conv2.json", *(logged(n) for n in (0, 1, 2, 3, 3, 4)))
    done = import_votes(log, longer, terms("fastchat"))
    assert done.finished.votes == 2
    assert [(one.reason, one.rows, one.first_line) for one in done.finished.refused] == [("repeated", 4, 1)]
    assert len(imported_board(log, ["others"]).votes) == 5


def test_a_withdrawn_import_counts_nowhere_and_its_file_may_come_again(log: EventLog, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "battles.jsonl", *(battle(n) for n in range(5)))
    first = import_votes(log, file, terms("lmarena"))
    withdraw(log, first.import_id, "the labels were the wrong way round")
    with pytest.raises(NotFound, match="there are none"):
        imported_board(log, ["others"])
    with pytest.raises(InvalidRequest, match="no import is named"):
        withdraw(log, "imp_none", "why")
    with pytest.raises(Conflict):
        withdraw(log, first.import_id, "again")
    second = import_votes(log, file, terms("lmarena", labels=["model_a=b", "model_b=a"]))
    assert second.import_id != first.import_id
    assert imported_board(log, ["others"]).votes.counts.counts.tolist() == [[0, 5, 0, 0]]
    assert len(votes_of(log, first.import_id)) == 5  # what happened, happened


def test_erasing_an_imported_voter_leaves_the_vote_and_destroys_the_words(
    log: EventLog, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "battles.jsonl", *(battle(n) for n in range(4)))
    done = import_votes(log, file, terms("lmarena", voters="as-given"))
    rows = votes_of(log, done.import_id)
    assert log.erase_subject("others/arena_user_0").keys == 1
    assert log.verify(check_contents=True).contents_erased == 2
    assert [row.voter for row in rows] == ["arena_user_0", "arena_user_1", "arena_user_2", "arena_user_0"]
    assert len(imported_board(log, ["others"]).votes) == 4


def test_words_are_not_kept_where_nobody_wants_them(log: EventLog, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "battles.jsonl", battle(1))
    done = import_votes(log, file, terms("lmarena", text=False, voters="none"))
    (row,) = votes_of(log, done.import_id)
    assert (row.text, row.voter) == (None, None)
    assert row.traits["bold_a"] == 1.0  # counts of style stay, for --control style


KILLED = """
import os, signal, sys
from pathlib import Path
from tiltyard.arena.importing.run import import_votes
from tiltyard.arena.importing.terms import Terms
from tiltyard.events.log import EventLog

def die(what, part):
    if what == "importing" and part > 0.5:
        os.kill(os.getpid(), signal.SIGKILL)

data, file = map(Path, sys.argv[1:])
with EventLog.open(data / "log.db", keys=data / "keys.db") as log:
    import_votes(log, file, Terms.of(format="csv", source="others", licence="CC-BY-4.0"), progress=die)
"""


def test_an_import_that_was_killed_counts_nowhere_and_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "votes.csv"
    rows = [f"plum,quince,{('model_a', 'tie')[number % 2]}\n" for number in range(6_500)]
    file.write_text("model_a,model_b,winner\n" + "".join(rows))
    source = str(Path(tiltyard.__file__).parents[1])
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(file)],
        check=False,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert killed.returncode == -signal.SIGKILL
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        (cut,) = log.imports()
        there = log.imported_rows(cut.import_id)
        assert 0 < there < 6_500
        with pytest.raises(NotFound, match="no finished import"):
            imported_board(log, ["others"])
        done = import_votes(log, file, terms("csv"))
        assert done.continued
        assert done.finished.votes == 6_500
        batches = [event.data for event in log.read(types=[VotesImported])]
        assert [batch.batch for batch in batches if isinstance(batch, VotesImported)] == [1, 2, 3, 4, 5, 6, 7]
        assert [row.line for row in log.imported_votes(done.import_id)] == list(range(2, 6_502))
        assert imported_board(log, ["others"]).votes.counts.counts.tolist() == [[3_250, 0, 3_250, 0]]


def csv_file(folder: Path, *rows: str) -> Path:
    file = folder / "votes.csv"
    file.write_text("\n".join(("id,model_a,model_b,winner", *rows)) + "\n", encoding="utf-8")
    return file


def test_one_battle_with_two_outcomes_is_a_mistake_of_the_file_and_not_its_first_row(
    log: EventLog, tmp_path: Path
) -> None:
    file = csv_file(tmp_path, "1,plum,quince,model_a", "1,plum,quince,model_b", "2,plum,quince,tie")
    with pytest.raises(InvalidRequest, match="the vote of line 2 again, with another outcome"):
        import_votes(log, file, terms("csv"))
    done = import_votes(log, file, terms("csv"), bad_rows="count")
    assert [(one.reason, one.rows, one.first_line) for one in done.finished.refused] == [
        ("contradicted", 1, 3)
    ]
    assert done.finished.votes == 2


def test_a_vote_that_comes_again_with_its_sides_exchanged_is_one_vote(log: EventLog, tmp_path: Path) -> None:
    file = csv_file(tmp_path, "1,plum,quince,model_a", "1,quince,plum,model_b", "1,plum,quince,model_a")
    done = import_votes(log, file, terms("csv"))
    assert [(one.reason, one.rows) for one in done.finished.refused] == [("repeated", 2)]
    assert done.finished.votes == 1

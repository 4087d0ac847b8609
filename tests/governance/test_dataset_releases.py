"""Dataset releases: what is in them, what is not and why, and that the log gives the same bytes again."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rfc8785
import yaml
from dataset_yard import (
    ALL,
    PLUM,
    QUINCE,
    RULESET,
    allow,
    battle,
    bytes_in,
    consent,
    imported,
    means_of,
    opened_log,
    plan_of,
    released,
    row,
    rows_in,
    voter,
)

import tiltyard
from tiltyard.arena.importing.run import import_votes
from tiltyard.arena.importing.terms import Terms
from tiltyard.errors import ConfigurationError, Conflict, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ConsentWithdrawn, DatasetReleased, DatasetRowsReleased, VoteWithdrawn
from tiltyard.governance.datasets.plan import parse_plan, plan_schema, read_plan
from tiltyard.governance.datasets.release import release
from tiltyard.governance.datasets.verification import rows_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EventLog]:
    """Ten voters, two votes each: seven allow publication; beside them an imported source of 24 rows by eight people."""
    folder = tmp_path_factory.mktemp("yard")
    with opened_log(folder) as log:
        choices = ("a", "b", "tie", "both_bad")
        for number in range(20):
            who = voter(number % 10)
            if number < 10:
                consent(log, who, ALL if number < 7 else ("serve", "evaluate"))
            battle(
                log,
                number,
                who,
                choices[number % 4],  # type: ignore[arg-type]
                asked=("What is a quince?", "And a plum?") if number == 9 else (f"Is {number} odd?",),
                says=(f"Ask ann{number}@example.com.", "No, ask bob@example.com."),
            )
        languages = ["Why?", "为什么天空是蓝色的?", "為什麼天空是藍色的?"]
        rows = [row(n, f"p{n % 8}", ask=f"{languages[n % 3]} {n}") for n in range(24)]
        imported(log, folder / "others.jsonl", rows)
        allow(log, "others", "evaluate", "train", "publish")
        yield log


def test_a_release_holds_only_what_people_let_be_published(yard: EventLog, tmp_path: Path) -> None:
    done = released(yard, tmp_path / "out")
    # voters 7, 8 and 9 allow to serve and evaluate: six of twenty votes
    assert done.manifest.left_out == {"purpose_not_allowed": 6}
    assert done.manifest.rows == len(rows_in(done.directory)) == 14
    assert done.manifest.people == 7


def test_words_are_redacted_again_with_the_same_placeholders_on_both_sides(
    yard: EventLog, tmp_path: Path
) -> None:
    done = released(yard, tmp_path / "out")
    text = (done.directory / "data" / "train-00000-of-00001.jsonl").read_text(encoding="utf-8")
    assert "@example.com" not in text
    one = rows_in(done.directory)[0]
    assert one["conversation_a"][-1]["content"] == "Ask [EMAIL_1]."  # type: ignore[index]
    assert one["conversation_b"][-1]["content"] == "No, ask [EMAIL_2]."  # type: ignore[index]
    assert one["redacted"] is True
    assert done.manifest.redacted.found == {"EMAIL": 28}


def test_two_runs_give_the_same_bytes_also_after_events_that_came_later(
    tmp_path: Path,
) -> None:
    with opened_log(tmp_path / "log") as log:
        for number in range(6):
            consent(log, voter(number))
            battle(log, number, voter(number))
        first = released(log, tmp_path / "one")
        plan = read_plan(tmp_path / "one" / "plan.yaml")
        assert plan.position == first.manifest.position
        for number in range(6, 9):
            consent(log, voter(number))
            battle(log, number, voter(number))
        again = release(means_of(log), plan, tmp_path / "two", ruleset=RULESET)
        assert again.was_there
        assert bytes_in(tmp_path / "one") == bytes_in(tmp_path / "two")
        assert [type(event.data) for event in log.read(types=(DatasetReleased,))] == [DatasetReleased]
        newer = released(log, tmp_path / "three")
        assert newer.manifest.rows == first.manifest.rows + 3


def test_a_name_and_version_are_one_set_of_rows(tmp_path: Path) -> None:
    with opened_log(tmp_path / "log") as log:
        consent(log, voter(1))
        battle(log, 1, voter(1))
        released(log, tmp_path / "one", version="1.0.0")
        consent(log, voter(2))
        battle(log, 2, voter(2))
        with pytest.raises(
            InvalidRequest, match=r"votes-1\.0\.0 was released already, with other rows"
        ) as refused:
            released(log, tmp_path / "two", version="1.0.0")
        assert refused.value.param == "version"
        assert not (tmp_path / "two").exists()
        assert len(list(log.read(types=(DatasetReleased,)))) == 1


def test_ids_and_order_tell_no_time_and_no_other_release(yard: EventLog, tmp_path: Path) -> None:
    one = released(yard, tmp_path / "one")
    other = released(yard, tmp_path / "two", version="8.0.0")
    ids = [str(row["question_id"]) for row in rows_in(one.directory)]
    assert ids == sorted(ids)
    assert not set(ids) & {str(row["question_id"]) for row in rows_in(other.directory)}
    published = b"".join(bytes_in(one.directory).values())
    for telling in (b"bat_", b"gen_", b"voter_"):
        assert telling not in published


def test_the_conversations_have_the_fields_of_lmsys_chat_1m(yard: EventLog, tmp_path: Path) -> None:
    done = released(yard, tmp_path / "out", layout="conversations", sources=["import/others"])
    rows = rows_in(done.directory)
    # https://huggingface.co/datasets/lmsys/lmsys-chat-1m, "features"
    lmsys = ["conversation_id", "model", "conversation", "turn", "language", "openai_moderation", "redacted"]
    assert [name for name in rows[0] if name in lmsys] == lmsys
    assert len(rows) == 48  # two sides of 24 battles
    assert Counter(str(row["language"]) for row in rows) == {
        "English": 16,
        "Chinese (Simplified)": 16,
        "Chinese (Traditional)": 16,
    }
    assert rows[0]["conversation"][0]["role"] == "user"  # type: ignore[index]


def test_pairs_are_what_trl_reads_and_ties_are_counted_not_guessed(yard: EventLog, tmp_path: Path) -> None:
    done = released(yard, tmp_path / "out", layout="pairs", purpose="train")
    rows = rows_in(done.directory)
    # of ten votes for a side those of voters 8, 9 and 7 are not allowed
    assert done.manifest.left_out == {"both_bad": 5, "tie": 5, "purpose_not_allowed": 3}
    assert len(rows) == 7
    by_question = {row["prompt"][0]["content"]: row for row in rows}  # type: ignore[index]
    left_won = by_question["Is 0 odd?"]
    assert left_won["chosen"] == [{"content": "Ask [EMAIL_1].", "role": "assistant"}]
    assert (left_won["chosen_model"], left_won["rejected_model"]) == ("plum", "quince")
    right_won = by_question["Is 1 odd?"]
    assert (right_won["chosen_model"], right_won["rejected_model"]) == ("quince", "plum")


def test_a_pair_with_two_histories_has_no_shared_prompt_and_is_left_out(tmp_path: Path) -> None:
    with opened_log(tmp_path / "log") as log:
        consent(log, voter(1))
        battle(log, 1, voter(1), asked=("What is a quince?", "And a plum?"))
        battle(log, 2, voter(1))
        done = released(log, tmp_path / "out", layout="pairs")
        assert done.manifest.left_out == {"histories_differ": 1}


def test_what_does_not_count_or_was_taken_back_is_left_out_with_its_reason(tmp_path: Path) -> None:
    with opened_log(tmp_path / "log") as log:
        consent(log, voter(1))
        for number in range(3):
            battle(log, number, voter(1))
        back = VoteWithdrawn(battle=f"bat_{1:032x}", voter=voter(1), vote="1", reason="slip")
        log.append_blocking(back, subject=back.battle, source="tests")
        excluded = {f"bat_{2:032x}": "too_fast"}
        counting = release(
            means_of(log, lambda _: excluded), plan_of(), tmp_path / "counting", ruleset=RULESET
        )
        assert counting.manifest.left_out == {"vote_too_fast": 1, "vote_withdrawn": 1}
        everything = plan_of(where={"votes": "all"}, version="2.0.0")
        every = release(means_of(log, lambda _: excluded), everything, tmp_path / "all", ruleset=RULESET)
        assert every.manifest.left_out == {"vote_withdrawn": 1}


def test_filters_take_what_the_plan_says(yard: EventLog, tmp_path: Path) -> None:
    done = released(
        yard,
        tmp_path / "out",
        sources=["import/others"],
        where={
            "languages": ["zh"],
            "since": "2023-04-24",
            "until": "2023-04-24",
            "models": ["plum", "quince"],
        },
    )
    # 2023-04-24T15:53:11Z and seven hours more: numbers 0 to 8, of which 1, 2, 4, 5, 7 and 8 are Chinese
    assert {row["language_tag"] for row in rows_in(done.directory)} == {"zh-Hans", "zh-Hant"}
    assert done.manifest.rows == 6
    assert done.manifest.left_out == {"other_language": 3, "too_late": 15}


def test_duplicates_are_thinned_by_row_or_by_prompt(tmp_path: Path) -> None:
    with opened_log(tmp_path / "log") as log:
        rows = [row(n, f"p{n}", ask="Why is the sky blue?") for n in range(4)]
        twin = {**rows[0], "question_id": "q9", "judge": "p9"}
        imported(log, tmp_path / "in.jsonl", [*rows, twin])
        allow(log, "others", "publish")
        fields: dict[str, Any] = {"sources": ["import/others"]}
        by_row = released(log, tmp_path / "row", duplicates={"by": "row"}, **fields)
        by_prompt = released(log, tmp_path / "prompt", duplicates={"by": "prompt", "keep": 2}, **fields)
    assert (by_row.manifest.rows, by_row.manifest.duplicates) == (4, 1)
    assert (by_prompt.manifest.rows, by_prompt.manifest.duplicates) == (2, 3)


def test_a_sample_is_stratified_and_drawn_again_the_same(yard: EventLog, tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "sources": ["import/others"],
        "sample": {"rows": 12, "by": ["language"], "seed": 7},
    }
    one = released(yard, tmp_path / "one", **fields)
    assert one.manifest.languages == {"en": 4, "zh-Hans": 4, "zh-Hant": 4}  # a third of the rows each
    assert one.manifest.not_drawn == 12
    other = released(yard, tmp_path / "two", **{**fields, "sample": {**fields["sample"], "seed": 8}})
    assert rows_in(one.directory) != rows_in(other.directory)


def test_no_combination_of_quasi_identifiers_is_shared_by_fewer_than_k_people(
    yard: EventLog, tmp_path: Path
) -> None:
    done = released(
        yard,
        tmp_path / "out",
        sources=["import/others"],
        voters=True,
        anonymity={"k": 4, "columns": ["time", "language", "turns"], "most_suppressed": 0.0},
    )
    rows = rows_in(done.directory)
    people: dict[tuple[object, ...], set[object]] = {}
    for one in rows:  # counted anew from what was published
        people.setdefault((one["tstamp"], one["language_tag"], one["turn"]), set()).add(one["judge"])
    assert min(map(len, people.values())) >= 4
    note = done.manifest.anonymity
    assert note is not None
    assert note.smallest == min(map(len, people.values()))
    assert note.levels["time"] not in {"second", "hour"}
    assert note.generalised["time"] == len(rows)


def test_one_persons_many_rows_hide_nobody(tmp_path: Path) -> None:
    with opened_log(tmp_path / "log") as log:
        imported(log, tmp_path / "in.jsonl", [row(n, "p1") for n in range(10)])
        allow(log, "others", "publish")
        with pytest.raises(InvalidRequest, match=r"1 people are behind these 10 rows, and anonymity\.k is 5"):
            released(log, tmp_path / "out", sources=["import/others"], anonymity={"k": 5})


def test_battles_of_nobody_known_are_one_persons_unless_the_plan_knows_better(tmp_path: Path) -> None:
    """And the two rows that a battle is among conversations are one battle: six rows of three battles hide nobody from k = 4."""
    with opened_log(tmp_path / "log") as log:
        rows = [row(n, "p") for n in range(3)]
        for one in rows:
            del one["judge"]
        imported(log, tmp_path / "in.jsonl", rows)
        allow(log, "others", "publish")
        terms: dict[str, Any] = {"k": 2, "columns": ["turns"], "most_suppressed": 0.0}
        plan: dict[str, Any] = {"sources": ["import/others"], "layout": "conversations"}
        with pytest.raises(InvalidRequest, match=r"1 people are behind these 6 rows.*unknown: each"):
            released(log, tmp_path / "one", anonymity=terms, **plan)
        with pytest.raises(InvalidRequest, match=r"3 people are behind these 6 rows"):
            released(log, tmp_path / "two", anonymity={**terms, "k": 4, "unknown": "each"}, **plan)
        done = released(log, tmp_path / "three", anonymity={**terms, "k": 3, "unknown": "each"}, **plan)
    assert done.manifest.anonymity is not None
    assert (done.manifest.rows, done.manifest.anonymity.smallest) == (6, 3)


def test_the_event_names_every_row_by_its_digest_and_its_people(yard: EventLog, tmp_path: Path) -> None:
    done = released(yard, tmp_path / "out", version="3.0.0")
    published = rows_in(done.directory)
    told = list(rows_of(yard, done.release))
    assert [one.id for one in told] == [row["question_id"] for row in published]
    for one, row_ in zip(told, published, strict=True):
        assert one.digest == "sha256:" + hashlib.sha256(rfc8785.dumps(row_)).hexdigest()  # type: ignore[arg-type]
        assert any(subject.endswith(voter(int(one.origin[-2:], 16) % 10)) for subject in one.subjects)
    assert {name.name: name.generations for name in done.manifest.identities} == {"unregistered": 14}
    assert {one.behaviour for one in done.manifest.identities} == {PLUM, QUINCE}


def test_the_card_says_how_it_was_collected_and_what_its_limits_are(yard: EventLog, tmp_path: Path) -> None:
    done = released(
        yard,
        tmp_path / "out",
        sources=["import/others"],
        card={
            "title": "Odd <b>votes</b>",
            "interface": "a web form",
            "limits": ["Eight people"],
            "contact": "ann",
        },
    )
    card = (done.directory / "README.md").read_text(encoding="utf-8")
    _, front, body = card.split("---\n", 2)
    head = yaml.safe_load(front)
    assert head["license"] == "cc-by-4.0"
    assert head["language"] == ["en", "zh"]
    assert head["language_details"] == "en, zh-Hans, zh-Hant"
    assert head["size_categories"] == ["n<1K"]
    assert head["configs"][0]["data_files"][0]["path"] == "data/train-00000-of-00001.jsonl"
    for said in (
        "# Odd \\<b\\>votes\\</b\\>",
        "**Window:** 2023-04-24 to 2023-04-25",
        "**Interface:** a web form",
        "| Chinese (Traditional) | `zh-Hant` | 8 | 33.3% |",
        "Eight people",
        "Ask ann.",
    ):
        assert said in body


def alike(number: int) -> dict[str, object]:
    """A row whose words others have too, so that they are redacted once."""
    words = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    return row(number, f"p{number % 5}", conversation_a=words, conversation_b=words)


def test_a_killed_run_goes_on_where_it_was_and_gives_the_same_bytes(tmp_path: Path) -> None:
    """`kill -9` while rows are read; the second run reads none of them again."""
    data = tmp_path / "data"
    with opened_log(data) as log:
        imported(log, tmp_path / "in.jsonl", [alike(n) for n in range(100)])
        allow(log, "others", "publish")
        plan = tmp_path / "plan.yaml"
        plan.write_text(
            json.dumps(plan_of(sources=["import/others"]).model_dump(mode="json", exclude_defaults=True))
        )
    script = f"""
import sys
from pathlib import Path
from dataset_yard import means_of, RULESET
from tiltyard.events.log import EventLog
from tiltyard.governance.datasets.plan import read_plan
from tiltyard.governance.datasets.release import release
with EventLog.open(Path({str(data)!r}) / "log.db", keys=Path({str(data)!r}) / "keys.db") as log:
    def show(what, part):
        if what == "reading" and part > 0.5:
            print(what, flush=True)
            sys.stdin.readline()
    release(means_of(log, progress=show), read_plan(Path({str(plan)!r})), Path({str(tmp_path / "out")!r}), ruleset=RULESET)
"""
    source = str(Path(tiltyard.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, str(Path(__file__).parent)])}
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "reading\n"
        running.send_signal(signal.SIGKILL)
    assert not (tmp_path / "out").exists()
    kept = (tmp_path / "out.part" / "work" / "prepared.jsonl").read_bytes().count(b"\n")
    assert kept >= 64
    with EventLog.open(data / "log.db", keys=data / "keys.db") as log:
        heard: list[float] = []
        done = release(
            means_of(log, progress=lambda what, part: heard.append(part) if what == "reading" else None),
            read_plan(plan),
            tmp_path / "out",
            ruleset=RULESET,
        )
        assert done.manifest.rows == 100
        assert all(part > 0.6 for part in heard)
        release(means_of(log), read_plan(tmp_path / "out" / "plan.yaml"), tmp_path / "whole", ruleset=RULESET)
    assert bytes_in(tmp_path / "out") == bytes_in(tmp_path / "whole")
    assert not (tmp_path / "out.part").exists()


def test_what_was_read_before_a_consent_ended_is_not_released(tmp_path: Path) -> None:
    with opened_log(tmp_path / "log") as log:
        for number in range(3):
            consent(log, voter(number))
            battle(log, number, voter(number))

        class CutError(Exception):
            pass

        def cut(what: str, _part: float) -> None:
            if what == "writing":
                raise CutError

        with pytest.raises(CutError):
            release(means_of(log, progress=cut), plan_of(), tmp_path / "out", ruleset=RULESET)
        withdrawn = ConsentWithdrawn(
            voter=voter(1), purposes=("publish",), left=("serve",), version="2", by="the person"
        )
        log.append_blocking(withdrawn, subject=voter(1), source="tests")
        done = released(log, tmp_path / "out")
        assert done.manifest.rows == 2
        assert done.manifest.left_out == {"purpose_not_allowed": 1}


def test_a_release_is_never_written_over_and_made_by_one_process(yard: EventLog, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidRequest, match="never written over"):
        released(yard, tmp_path / "out")
    inner: list[BaseException] = []

    def meanwhile(what: str, _part: float) -> None:
        if what == "writing" and not inner:
            with pytest.raises(Conflict, match="another process is making") as refused:
                released(yard, tmp_path / "other", version="9.0.0")
            inner.append(refused.value)

    release(means_of(yard, progress=meanwhile), plan_of(version="9.0.0"), tmp_path / "other", ruleset=RULESET)
    assert inner


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "sample: {rows: 0}",
            r"plan.yaml line 6: sample.rows: Input should be greater than or equal to 1, not 0",
        ),
        ("sample: {seed: 1}", r"plan.yaml line 6: sample: a sample needs rows or each, and not both"),
        ("smaple: {rows: 1}", r"plan.yaml line 6: smaple: there is no such field"),
        ("where: {since: 2026-02-01, until: 2026-01-01}", r"line 6: where: since 2026-02-01 is after until"),
        ("anonymity: {k: 1}", r"line 6: anonymity.k: Input should be greater than or equal to 2, not 1"),
        ("words: false", r"plan: words: false leaves nothing of the layout pairs"),
        ("name: again", r"line 6: name is written twice"),
    ],
)
def test_what_is_wrong_in_a_plan_is_said_with_line_and_field(line: str, said: str) -> None:
    text = f"name: votes\nversion: 1.0.0\nlicence: CC0-1.0\nlayout: pairs\nsources: [arena]\n{line}\n"
    with pytest.raises(ConfigurationError, match=said):
        parse_plan(text, "plan.yaml")


def test_a_source_must_be_one_and_a_position_must_be_in_the_log(yard: EventLog, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"sources.0: 'lmsys' is no source; write arena, or import/"):
        plan_of(sources=["lmsys"])
    with pytest.raises(InvalidRequest, match="no finished import is of the source 'lmsys'"):
        released(yard, tmp_path / "a", sources=["import/lmsys"])
    with pytest.raises(InvalidRequest, match="position is 999,999, and the log ends at"):
        released(yard, tmp_path / "b", position=999_999)
    with pytest.raises(InvalidRequest, match=r"no row is left of 20 records \(20 other_model"):
        released(yard, tmp_path / "c", where={"models": ["nobody"]})
    assert not list(tmp_path.iterdir())  # no words are left lying about


def test_the_published_schema_is_the_plans_own_and_the_example_is_a_plan() -> None:
    """`tiltyard data schema > docs/dataset-plan.schema.json` when this fails."""
    assert json.loads((ROOT / "docs" / "dataset-plan.schema.json").read_bytes()) == plan_schema()
    assert read_plan(ROOT / "examples" / "dataset.yaml").layout == "pairs"


def test_batches_in_the_log_are_whole_and_once(yard: EventLog, tmp_path: Path) -> None:
    done = released(yard, tmp_path / "out", version="4.0.0")
    batches = [
        event.data
        for event in yard.read(types=(DatasetRowsReleased,), subject=done.release)
        if isinstance(event.data, DatasetRowsReleased)
    ]
    assert [(one.place, len(one.rows)) for one in batches] == [(0, 14)]


def test_preferences_are_read_back_as_the_same_votes(yard: EventLog, tmp_path: Path) -> None:
    done = released(yard, tmp_path / "out", sources=["import/others"], version="5.0.0")
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        terms = Terms.of(format="lmarena", source="back", licence="CC-BY-4.0")
        read = import_votes(log, done.directory / "data" / "train-00000-of-00001.jsonl", terms)
        votes = list(log.imported_votes(read.import_id))
        (original,) = (one.import_id for one in yard.imports())
    assert len(votes) == 24
    before = Counter(
        (one.a, one.b, one.choice, one.time_us // 10**6) for one in yard.imported_votes(original)
    )  # type: ignore[operator]
    assert Counter((one.a, one.b, one.choice, one.time_us // 10**6) for one in votes) == before  # type: ignore[operator]

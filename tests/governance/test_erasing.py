"""Erasing a person over a log: what goes, what stays, what the paper says, and what earlier releases are told."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from real_postgres import RealPostgres
from tiltyard.cli.main import main
from tiltyard.errors import Conflict, ContentMissing, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.permissions import PurposeRefused
from tiltyard.events.places import KeysPlace
from tiltyard.events.schema import (
    BattleTurnStarted,
    ContentExpired,
    ContentRef,
    DatasetRowsReleased,
    DataTermsSet,
    ReleasedRow,
    SubjectErased,
)
from tiltyard.governance.erasure import erase, is_receipt
from tiltyard.governance.retention import retain
from tiltyard.governance.revocation import releases_that_hold, revocation_of
from tiltyard.governance.terms import DataTerms, record_terms

DAY_NS = 86_400 * 10**9
VOTER = "voter_" + "7" * 32
MARK = b"zanzibar-quillon-7731"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as opened:
        yield opened


def say(log: EventLog, subject: str, battle: str, words: bytes = MARK) -> ContentRef:
    kept = log.content(subject, words)
    data = BattleTurnStarted(battle=battle, turn=0, attempt=0, message=kept.ref)
    log.append_blocking(data, subject=battle, source="test", contents=[kept])
    return kept.ref


def gone(log: EventLog, ref: ContentRef) -> str:
    with pytest.raises(ContentMissing) as missing:
        log.own_words("test").read(ref)
    return missing.value.code


def released(log: EventLog, release: str, *subjects: str) -> None:
    rows = tuple(
        ReleasedRow(id=f"r{place}", digest=f"sha256:{release}{place}", subjects=(subject,), origin="bat_1")
        for place, subject in enumerate(subjects)
    )
    log.append_blocking(
        DatasetRowsReleased(release=release, place=0, rows=rows), subject=release, source="test"
    )


def test_a_voter_goes_under_both_names_and_a_tenant_with_its_people(log: EventLog, tmp_path: Path) -> None:
    voter = [say(log, VOTER, "bat_1"), say(log, f"arena:{VOTER}", "bat_2")]
    people = [say(log, name, f"bat_{name}") for name in ("acme", "acme:bob")]
    others = [say(log, name, f"bat_{name}") for name in ("acmes", "acm:e")]
    done = erase(
        log, f"arena:{VOTER}", reason="asked", by="test", revocations=tmp_path / "r", server_runs=False
    )
    assert (done.receipt["subject"], done.receipt["keys_destroyed"]) == (VOTER, 2)
    erase(log, "acme", reason="asked", by="test", revocations=tmp_path / "r", server_runs=False)
    assert {gone(log, ref) for ref in voter} == {
        "purpose_not_allowed"
    }  # nobody consented, and nothing is there
    assert {gone(log, ref) for ref in people} == {"content_erased"}
    assert [log.own_words("test").read(ref) for ref in others] == [MARK, MARK]
    report = log.verify(check_contents=True)
    assert (report.ok, report.contents, report.contents_erased) == (True, 2, 4)


def test_the_house_cannot_be_erased_by_mistake(log: EventLog, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is no person"):
        erase(log, "tiltyard-eval", reason="", by="", revocations=tmp_path, server_runs=False)


def test_words_under_a_key_from_before_the_erasure_are_not_stored_behind_it(log: EventLog) -> None:
    log.erase_subject("acme")
    say(log, "acme", "bat_1")  # who comes back gets a new key
    late = log.content("acme:bob", MARK)  # its key is in memory only
    log.erase_subject("acme")
    data = BattleTurnStarted(battle="bat_2", turn=0, attempt=0, message=late.ref)
    with pytest.raises(Conflict) as refused:
        log.append_blocking(data, subject="bat_2", source="test", contents=[late])
    assert refused.value.code == "subject_erased"


def test_a_receipt_that_was_changed_is_not_genuine(log: EventLog, tmp_path: Path) -> None:
    say(log, "acme", "bat_1")
    receipt = erase(log, "acme", reason="asked", by="ann", revocations=tmp_path, server_runs=False).receipt
    assert is_receipt(receipt)
    assert not is_receipt({**receipt, "subject": "other"})
    assert not is_receipt({**receipt, "signature": "00" * 64})
    assert not is_receipt({})


def test_releases_that_hold_the_person_get_a_revocation_that_grows(log: EventLog, tmp_path: Path) -> None:
    for subject in ("ann", "bob"):
        say(log, subject, f"bat_{subject}")
    released(log, "dat_1", "ann", "bob", "ann")
    released(log, "dat_2", "eve")
    assert [(held.release, len(held.rows)) for held in releases_that_hold(log, "ann")] == [("dat_1", 2)]
    done = erase(log, "ann", reason="asked", by="ann", revocations=tmp_path / "revoked", server_runs=False)
    assert done.receipt["releases"] == [{"release": "dat_1", "rows": 2}]
    (path,) = done.files
    assert [row["row"] for row in orjson.loads(path.read_bytes())["rows"]] == [
        "sha256:dat_10",
        "sha256:dat_12",
    ]
    erase(log, "bob", reason="asked", by="ann", revocations=tmp_path / "revoked", server_runs=False)
    assert len(orjson.loads(path.read_bytes())["rows"]) == 3
    released(log, "dat_3", "ann")  # came back, consented again
    assert revocation_of(log, "dat_3")["rows"] == []


def test_on_postgresql_no_file_of_the_server_has_the_words_before_or_after(
    postgres: RealPostgres, tmp_path: Path
) -> None:
    urls = postgres.database(), postgres.database()
    with EventLog.open(urls[0], keys=KeysPlace(urls[1], tmp_path / "master.key")) as log:
        ref = say(log, "acme:bob", "bat_1")
        assert log.own_words("test").read(ref) == MARK
        done = erase(log, "acme:bob", reason="asked", by="t", revocations=tmp_path, server_runs=False)
        assert (done.receipt["keys_destroyed"], done.receipt["contents_emptied"]) == (1, 1)
        assert gone(log, ref) == "content_erased"
        report = log.verify(check_contents=True)
        assert (report.ok, report.contents_erased) == (True, 1)
    files = [path for path in postgres.home.rglob("*") if path.is_file()]
    assert len(files) > 100
    assert not [path for path in files if MARK in path.read_bytes()]


def test_the_command_erases_says_so_and_checks_its_paper(log: EventLog, tmp_path: Path) -> None:
    ref = say(log, "acme", "bat_1")
    run = CliRunner()
    paper = tmp_path / "receipt.json"
    erased = run.invoke(
        main, ["data", "erase", "acme", "--yes", "--out", str(paper), "--data", str(tmp_path)]
    )
    assert erased.exit_code == 0, erased.output
    assert gone(log, ref) == "content_erased"
    assert run.invoke(main, ["data", "receipt", str(paper)]).exit_code == 0
    paper.write_text(paper.read_text().replace('"acme"', '"other"'))
    assert run.invoke(main, ["data", "receipt", str(paper)]).exit_code == 1
    asked = run.invoke(main, ["data", "erase", "acme", "--data", str(tmp_path)], input="n\n")
    assert asked.exit_code == 1
    assert len(list(log.read(types=[SubjectErased]))) == 1


def test_the_command_signs_for_nobody_who_was_never_there(log: EventLog, tmp_path: Path) -> None:
    """A mistyped name would leave the person's words where they are, and a receipt that they are gone."""
    say(log, "acme", "bat_1")
    done = CliRunner().invoke(main, ["data", "erase", "acne", "--yes", "--data", str(tmp_path)])
    assert (done.exit_code, "nothing was ever kept of 'acne'" in done.output) == (1, True), done.output
    assert not list(log.read(types=[SubjectErased]))


def test_what_no_purpose_keeps_goes_by_age_and_its_keys_when_nothing_is_left(tmp_path: Path) -> None:
    later = 0
    with EventLog.open(
        tmp_path / "log.db", keys=tmp_path / "keys.db", clock_ns=lambda: time.time_ns() + later
    ) as log:
        kept = say(log, "other", "bat_0")
        ends = say(log, "acme:bob", "bat_1")
        assert record_terms(log, {"acme": DataTerms(serve=10, evaluate=40)}) == ["acme"]
        assert record_terms(log, {"acme": DataTerms(serve=10, evaluate=40)}) == []  # nothing new
        assert retain(log, (time.time_ns() + 39 * DAY_NS) // 1000) == []
        later = 41 * DAY_NS
        with pytest.raises(PurposeRefused, match="40 days"):
            log.words("evaluate", reader="test").read(ends)
        ((due, keys),) = retain(log, (time.time_ns() + later) // 1000)
        assert (due.scope, due.subjects, due.contents, keys) == ("acme", ("acme:bob",), 1, 0)
        assert gone(log, ends) == "purpose_not_allowed"
        assert log.own_words("test").read(kept) == MARK
        report = log.verify(check_contents=True)
        assert (report.ok, report.contents, report.contents_erased) == (True, 1, 1)
        assert len(list(log.read(types=[ContentExpired]))) == 1
        newer = say(log, "acme:bob", "bat_2")  # 41 days on: under a new key
        assert newer.digest != ends.digest
        later = 300 * DAY_NS
        # The clock of ids is the machine's own, so both rows are over by now, and both keys.
        ((due, keys),) = retain(log, (time.time_ns() + later) // 1000)
        assert (due.contents, keys) == (1, 2)


def test_terms_that_keep_one_purpose_for_ever_end_nothing(log: EventLog) -> None:
    say(log, "acme", "bat_1")
    event = DataTermsSet(scope="acme", purposes={"serve": 1, "evaluate": None}, basis="x", by="x")
    log.append_blocking(event, subject="acme", source="test")
    assert log.expiring.due((time.time_ns() + 900 * DAY_NS) // 1000) == []


def test_retention_by_command_says_what_would_go_first(log: EventLog, tmp_path: Path) -> None:
    say(log, "acme", "bat_1")
    run = CliRunner()
    allow = ["data", "terms", "set", "acme", "--allow", "serve=1", "--basis", "contract 17"]
    assert run.invoke(main, [*allow, "--data", str(tmp_path)]).exit_code == 0
    nothing = run.invoke(main, ["data", "retain", "--dry-run", "--data", str(tmp_path)])
    assert nothing.output == "nothing is over\n"
    refused = run.invoke(
        main, ["data", "terms", "set", "acme", "--allow", "sell", "--basis", "x", "--data", str(tmp_path)]
    )
    assert refused.exit_code == 1
    assert "it must be one of serve, evaluate, train, publish" in refused.output
    listed = run.invoke(main, ["data", "terms", "list", "--data", str(tmp_path)]).output
    assert "contract 17" in listed
    shown = run.invoke(main, ["data", "consent", "show", "acme:bob", "--data", str(tmp_path)]).output
    assert "serve     1 days" in shown


KILLED = """
import os, signal, sys
from pathlib import Path
from tiltyard.events.log import EventLog
from tiltyard.governance.erasure import erase

where, folder = sys.argv[1], Path(sys.argv[2])

def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

with EventLog.open(folder / "log.db", keys=folder / "keys.db") as log:
    if where == "before the tombstone":
        EventLog.append_blocking = die
    report = lambda line: die() if line == where else None
    erase(log, "acme:bob", reason="asked", by="t", revocations=folder / "r", server_runs=False, report=report)
"""


@pytest.mark.parametrize(
    "where",
    [
        "destroying keys",
        "before the tombstone",
        "waiting for the server to forget",
        "looking through dataset releases",
    ],
)
def test_an_erasure_that_was_killed_is_finished_by_asking_again(tmp_path: Path, where: str) -> None:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        ref = say(log, "acme:bob", "bat_1")
    died = subprocess.run([sys.executable, "-c", KILLED, where, str(tmp_path)], check=False)
    assert died.returncode == -signal.SIGKILL
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        if where != "destroying keys":
            assert gone(log, ref) == "content_erased"  # nobody reads it again, finished or not
        again = erase(log, "acme:bob", reason="asked", by="t", revocations=tmp_path / "r", server_runs=False)
        assert is_receipt(again.receipt)
        assert gone(log, ref) == "content_erased"
        assert {event.subject for event in log.read(types=[SubjectErased])} == {"acme:bob"}
        report = log.verify(check_contents=True)
        assert (report.ok, report.contents_erased) == (True, 1)
    for path in tmp_path.glob("log.db*"):
        assert MARK not in path.read_bytes()

"""An evaluation worker's credential: it appends what it found out, reads no person's words and steers nothing."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from event_samples import eval_events, judge_events, turn, vote

from real_postgres import RealPostgres
from tiltyard.cli.main import main
from tiltyard.errors import ConfigurationError, ContentMissing, StorageFailed
from tiltyard.events.log import EventLog
from tiltyard.events.places import KeysPlace
from tiltyard.events.roles import RoleRefused, evaluation_role_sql, role_refusal
from tiltyard.events.schema import ContentRef, EvalRunStarted, TrafficSplit


def say(log: EventLog, subject: str) -> ContentRef:
    words = log.content(subject, b"hello")
    data = turn(f"bat_{subject}", 0, words.ref)
    log.append_blocking(data, subject=f"bat_{subject}", source="test", contents=[words])
    return words.ref


def split() -> TrafficSplit:
    return TrafficSplit(alias="chat", arms=(), by="an intruder", why="to my model")


def run_started() -> EvalRunStarted:
    return next(one for one in eval_events() if isinstance(one, EvalRunStarted))


def test_an_evaluation_key_seals_and_reads_nobody_and_steers_nothing(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as owner:
        person = say(owner, "acme")
        made = CliRunner().invoke(
            main, ["data", "credential", "evaluation", str(tmp_path / "eval"), "--data", str(tmp_path)]
        )
        assert made.exit_code == 0, made.output
        key = tmp_path / "eval" / "master.key"
        assert key.stat().st_mode & 0o077 == 0
        assert (tmp_path / "master.key").read_text().strip() not in key.read_text()
        with EventLog.open(tmp_path / "log.db", keys=tmp_path / "eval" / "keys.db") as worker:
            worker.append_blocking(run_started(), subject="evr_1", source="test")
            with pytest.raises(ContentMissing, match="does not hold"):
                worker.words("evaluate", reader="test").read(person)
            for data in (split(), vote("bat_1")):
                with pytest.raises(RoleRefused):
                    worker.append_blocking(data, subject="x", source="test")
            assert worker.sign(b"x") != owner.sign(b"x")
        # Not even beside the keys of people: they are wrapped under another key.
        with pytest.raises(ConfigurationError, match="is not the master key"):
            EventLog.open(tmp_path / "log.db", keys=KeysPlace(tmp_path / "keys.db", key))
        assert owner.verify(check_contents=False).ok  # what it appended is sealed as the rest is


def test_every_event_of_evaluation_is_allowed_to_it() -> None:
    refused = {
        type(data).__name__ for data in (*eval_events(), *judge_events()) if role_refusal("evaluation", data)
    }
    assert refused == {"ReviewerNamed"}  # who may review is the owner's to say


def test_the_servers_role_refuses_it_whatever_the_program_says(
    postgres: RealPostgres, tmp_path: Path
) -> None:
    url, keys = postgres.database(), postgres.database()
    schema = url.rpartition("search_path%3D")[2]
    role = f"evaluator_{schema[:12]}"
    owner_keys = KeysPlace(keys, tmp_path / "master.key")
    with EventLog.open(url, keys=owner_keys) as owner:
        person = say(owner, "acme")
        with psycopg.connect(
            host=str(postgres.home), user="tiltyard", dbname="postgres", autocommit=True
        ) as admin:
            for statement in evaluation_role_sql(role, schema=schema):
                admin.execute(statement.encode())
        own = url.replace("tiltyard@", f"{role}@")
        # The program lies about its role: it has the owner's master key, and the server knows better.
        lying = KeysPlace(tmp_path / "keys.db", tmp_path / "master.key")
        with EventLog.open(own, keys=lying) as worker:
            words = worker.content("tiltyard-eval", b"what a model said")
            worker.append_blocking(run_started(), subject="evr_1", source="test")
            house = turn("bat_x", 0, words.ref)
            with pytest.raises(StorageFailed, match="row-level security"):
                worker.append_blocking(house, subject="bat_x", source="test", contents=[words])
            with pytest.raises(StorageFailed, match="row-level security"):
                worker.append_blocking(split(), subject="chat", source="test")
            with pytest.raises(ContentMissing, match="is not in the vault"):
                worker.words("evaluate", reader="test").read(person)
        with psycopg.connect(
            host=str(postgres.home), user=role, dbname="postgres", options=f"-csearch_path={schema}"
        ) as intruder:
            assert intruder.execute(b"SELECT count(*) FROM contents").fetchone() == (0,)
            for statement in (
                b"UPDATE events SET type = 'x'",
                b"DELETE FROM contents",
                b"INSERT INTO tenant_terms VALUES ('acme', 1, '{}')",
                b"DROP POLICY reads ON contents",
            ):
                with pytest.raises(psycopg.Error):
                    intruder.execute(statement)
                intruder.rollback()
        assert owner.own_words("test").read(person) == b"hello"  # the owner is bound by nothing
        assert owner.verify(check_contents=True).ok


@pytest.mark.parametrize("name", ["Robert; DROP", "1st", ""])
def test_a_name_that_would_need_quoting_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name"):
        evaluation_role_sql(name)

"""`tiltyard doctor` finds each fault that was really made, says what to do, and changes nothing."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from real_postgres import RealPostgres
from tiltyard.cli.main import main
from tiltyard.events.log import EventLog
from tiltyard.events.places import KeysPlace
from tiltyard.events.schema import WorkerStopped
from tiltyard.models.progress import SilentProgress
from tiltyard.models.sources import parse_source
from tiny_llama import random_weights, write_directory


@dataclass
class Yard:
    """A data directory with settings of its own; nothing runs."""

    home: Path
    port: int

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def settings(self) -> Path:
        return self.home / "tiltyard.toml"

    def words(self, *more: str) -> list[str]:
        return ["doctor", "--json", "--data", str(self.data), "--config", str(self.settings), *more]

    def look(self, *more: str) -> tuple[int, dict[str, list[dict[str, str]]], str]:
        """Exit status, findings by check, and everything that was printed."""
        done = CliRunner().invoke(main, self.words(*more), catch_exceptions=False)
        found: dict[str, list[dict[str, str]]] = {}
        for one in json.loads(done.stdout)["findings"]:
            found.setdefault(one["check"], []).append(one)
        return done.exit_code, found, done.output

    def fill(self, count: int = 3, clock_ns: Callable[[], int] = time.time_ns) -> None:
        with EventLog.open(self.data / "log.db", keys=self.data / "keys.db", clock_ns=clock_ns) as log:
            for number in range(count):
                stopped = WorkerStopped(worker=f"w{number}", reason="drained")
                log.append_blocking(stopped, subject=f"w{number}", source="tests")


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    monkeypatch.setenv("TILTYARD_CACHE", str(tmp_path / "cache"))
    for name in (
        "TILTYARD_LOG",
        "TILTYARD_KEYS",
        "TILTYARD_MASTER_KEY",
        "TILTYARD_LIMITS_URL",
        "TILTYARD_BACKUPS",
    ):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = write_directory(tmp_path / "tiny", random_weights(), "F32")
    (tmp_path / "tiltyard.toml").write_text(
        f'[server]\nport = {port}\n[models.tiny]\nsource = "file:{model}"\n[identities.plum]\nmodel = "tiny"\n'
    )
    return Yard(tmp_path, port)


def the(found: dict[str, list[dict[str, str]]], check: str) -> dict[str, str]:
    (one,) = found[check]
    return one


def test_an_empty_directory_is_fine_and_stays_empty(yard: Yard) -> None:
    status, found, _ = yard.look()
    assert status == 0
    assert {one["status"] for many in found.values() for one in many} <= {"ok", "skipped", "warn"}
    assert the(found, "log")["status"] == "skipped"
    assert not yard.data.exists()
    assert the(found, "port")["told"].endswith("is free")


def test_a_whole_deployment_is_fine_and_nothing_of_it_is_changed(yard: Yard) -> None:
    yard.fill()
    parse_source(f"file:{yard.home / 'tiny'}").fetch(yard.home / "cache", None, SilentProgress())
    before = {path.name: path.read_bytes() for path in yard.data.iterdir()}
    status, found, _ = yard.look("--deep")
    assert status == 0
    assert the(found, "seals")["told"].startswith("all 3 events under 3 seals")
    for check in (
        "python",
        "kernels",
        "settings",
        "database",
        "schema",
        "keys",
        "clock",
        "model tiny",
        "port",
    ):
        assert the(found, check)["status"] == "ok", found[check]
    assert the(found, "backups") == {
        "check": "backups",
        "status": "warn",
        "told": f"there is none in {yard.data / 'backups'}",
        "do": "tiltyard backup create --to /another/disk",
    }
    assert {path.name: path.read_bytes() for path in yard.data.iterdir()} == before


def test_every_failure_says_what_to_do(yard: Yard) -> None:
    yard.fill()
    (yard.data / "master.key").chmod(0o644)
    yard.settings.write_text("[server]\nportt = 1\n")
    status, found, _ = yard.look()
    failed = [one for many in found.values() for one in many if one["status"] == "fail"]
    assert status == 1
    assert {one["check"] for one in failed} == {"settings", "master key"}
    assert all(one["do"] for one in failed)
    assert "portt" in the(found, "settings")["told"]
    assert the(found, "master key")["do"] == f"chmod 600 {yard.data / 'master.key'}"
    assert the(found, "database")["status"] == "ok"  # the rest is looked at all the same


def damage(path: Path) -> None:
    """Overwrite a page in the middle, as a bad disk does."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(bytes(data))


def edit(path: Path) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute("DROP TRIGGER events_no_update")
        raw.execute(
            "UPDATE events SET data_json = replace(data_json, 'drained', 'crashed') WHERE sequence = 2"
        )


def cut(path: Path) -> None:
    with sqlite3.connect(path) as raw:
        for table in ("events", "seals"):
            raw.execute(f"DROP TRIGGER {table}_no_delete")
        raw.execute("DELETE FROM events WHERE sequence = 3")
        raw.execute("DELETE FROM seals WHERE number = 3")


def come_from_the_future(path: Path) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE log_info SET value = '99' WHERE name = 'schema_version'")


@pytest.mark.parametrize(
    ("fault", "check", "told"),
    [
        (damage, "database", "damaged"),
        (lambda path: path.write_bytes(b"no database at all " * 300), "database", "not a database"),
        (edit, "seals", "event 2"),
        (cut, "seals", "cut short"),
        (come_from_the_future, "schema", "version 99, made by a newer tiltyard"),
        (lambda path: path.with_name("master.key").unlink(), "master key", "no word can be read"),
        (lambda path: path.with_name("master.key").write_text("ab" * 32), "keys", "not the master key"),
        (lambda path: path.with_name("keys.db").write_bytes(b"rubbish " * 600), "keys", "not a database"),
    ],
    ids=["page", "no-database", "edited", "cut", "future", "no-master-key", "other-master-key", "no-keys"],
)
def test_a_broken_log_is_found(yard: Yard, fault: Callable[[Path], object], check: str, told: str) -> None:
    yard.fill()
    fault(yard.data / "log.db")
    status, found, _ = yard.look()
    assert status == 1
    failed = [one for one in found[check] if one["status"] == "fail"]
    assert [told in one["told"] for one in failed] == [True], failed
    assert failed[0]["do"]


def test_a_log_of_the_version_before_is_named_with_the_command_that_brings_it_forward(yard: Yard) -> None:
    yard.fill()
    with sqlite3.connect(yard.data / "log.db") as raw:
        raw.execute("UPDATE log_info SET value = '1' WHERE name = 'schema_version'")
    status, found, _ = yard.look()
    assert status == 0
    assert the(found, "schema")["do"] == "tiltyard upgrade"


def test_a_disk_that_takes_nothing_is_found(yard: Yard) -> None:
    """No file of this process may grow: what a full disk and a quota look like to it."""
    yard.fill()
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); sys.argv[0] = 'tiltyard'; "
        "from tiltyard.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *yard.words()], capture_output=True, text=True, check=False
    )
    found = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1
    assert found["disk (data)"]["status"] == "fail"
    assert "nothing can be written" in found["disk (data)"]["told"]
    assert not list(yard.data.glob(".doctor-*"))


def test_a_port_that_somebody_has_is_named_with_the_process(yard: Yard) -> None:
    with socket.create_server(("127.0.0.1", yard.port)):
        status, found, _ = yard.look()
    assert status == 1
    assert the(found, "port") == {
        "check": "port",
        "status": "fail",
        "told": f"127.0.0.1:{yard.port} is taken by process {os.getpid()}",
        "do": f"end it, or tiltyard up --port {yard.port + 1}",
    }


def test_a_model_that_is_gone_or_was_changed_is_found(yard: Yard) -> None:
    model = yard.home / "tiny"
    assert the(yard.look()[1], "model tiny")["do"] == "tiltyard models pull tiny"
    parse_source(f"file:{model}").fetch(yard.home / "cache", None, SilentProgress())
    assert the(yard.look("--deep")[1], "model tiny")["status"] == "ok"
    weights = model / "model.safetensors"
    kept = weights.stat()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    status, found, _ = yard.look()
    assert status == 1
    assert "was changed since it was hashed" in the(found, "model tiny")["told"]
    os.utime(weights, ns=(kept.st_atime_ns, kept.st_mtime_ns))  # a change that hides from a quick look
    assert the(yard.look()[1], "model tiny")["status"] == "ok"
    assert "another one" in the(yard.look("--deep")[1], "model tiny")["told"]
    weights.rename(yard.home / "elsewhere")
    (model / "config.json").unlink()
    model.rename(yard.home / "moved")
    assert "is gone" in the(yard.look()[1], "model tiny")["told"]


def test_a_clock_that_was_set_back_is_found(yard: Yard) -> None:
    yard.fill(clock_ns=lambda: time.time_ns() + 3600 * 10**9)
    yard.fill()  # now, an hour before the events in front of it
    status, found, _ = yard.look()
    assert status == 1
    assert "in the future" in the(found, "clock")["told"]
    assert the(found, "clock jumps")["status"] == "warn"


def test_what_cannot_be_reached_is_named_without_its_password(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    monkeypatch.setenv("TILTYARD_LIMITS_URL", f"redis://:hunter2@127.0.0.1:{closed}/0")
    monkeypatch.setenv("TILTYARD_LOG", f"postgresql://tiltyard:hunter3@127.0.0.1:{closed}/log")
    yard.settings.write_text(yard.settings.read_text() + f'[workers]\nat = ["http://127.0.0.1:{closed}"]\n')
    status, found, output = yard.look()
    assert status == 1
    assert the(found, "limits")["status"] == "fail"
    assert the(found, "database")["status"] == "fail"
    assert the(found, f"worker http://127.0.0.1:{closed}")["status"] == "fail"
    assert "hunter" not in output


def test_a_postgresql_log_is_looked_at(
    yard: Yard, postgres: RealPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = postgres.database(), postgres.database()
    monkeypatch.setenv("TILTYARD_LOG", urls[0])
    monkeypatch.setenv("TILTYARD_KEYS", urls[1])
    with EventLog.open(urls[0], keys=KeysPlace(urls[1], yard.data / "master.key")) as log:
        log.append_blocking(WorkerStopped(worker="w", reason="drained"), subject="w", source="tests")
    status, found, _ = yard.look()
    assert status == 0
    assert the(found, "seals")["told"].startswith("the newest 1 events")
    # tests/real_postgres.py turns fsync off for speed: exactly what must not be
    assert "fsync" in the(found, "database")["told"] or the(found, "database")["status"] == "ok"


def test_what_is_shown_to_people_has_the_same_lines(yard: Yard) -> None:
    done = CliRunner().invoke(main, [word for word in yard.words() if word != "--json"])
    assert "ok      python" in done.output
    assert done.output.rstrip().splitlines()[-1].endswith("warn") or "skipped" in done.output

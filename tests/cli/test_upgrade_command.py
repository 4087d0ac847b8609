"""`tiltyard upgrade`, what `up` and `serve` do with an earlier log, and `backup` and `restore` as they are typed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from real_postgres import RealPostgres
from tiltyard.cli.main import main
from tiltyard.cli.settings import load_settings
from tiltyard.cli.upgrade import upgrade_at_start
from tiltyard.cli.workers import sole_server_of
from tiltyard.errors import ConfigurationError
from tiltyard.events.copying import KEYS_TABLES, LOG_TABLES, load
from tiltyard.events.dialect import open_database
from tiltyard.ops.upgrade import log_version

GOLDEN = Path(__file__).parent.parent / "golden" / "log-1-last.tar.gz"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with a log of version 1, as commit d63ecba made it."""
    for name in ("TILTYARD_LOG", "TILTYARD_KEYS", "TILTYARD_MASTER_KEY", "TILTYARD_BACKUPS"):
        monkeypatch.delenv(name, raising=False)
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path / "data", filter="data")
    return tmp_path / "data"


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_upgrade_says_what_it_would_do_does_it_once_and_then_has_nothing_to_do(old: Path) -> None:
    check = run("upgrade", "--check", "--data", str(old))
    assert (check.exit_code, log_version(old / "log.db")) == (1, 1)
    assert "of version 1; `tiltyard upgrade` brings it to version 2" in check.output
    done = run("upgrade", "--data", str(old))
    assert done.exit_code == 0, done.output
    assert "to version 2: say which projections the log has" in done.output
    assert "the log is of version 2 now: 15 events, every seal checked" in done.output
    assert "before the upgrade from version 1 to 2" in run("backup", "list", "--data", str(old)).output
    assert "nothing to do: the log is of version 2" in run("upgrade", "--data", str(old)).output
    assert run("events", "verify", "--content", "--data", str(old)).exit_code == 0


def test_a_server_brings_its_own_log_forward_unless_it_is_told_not_to(old: Path) -> None:
    settings = load_settings(data_dir=old)
    with pytest.raises(ConfigurationError, match=r"of version 1; .* reads version 2.*`tiltyard upgrade`"):
        upgrade_at_start(settings, told=False)
    assert log_version(old / "log.db") == 1
    refused = run("serve", "--no-upgrade", "--port", "0", "--data", str(old))
    assert refused.exit_code == 1
    assert "run `tiltyard upgrade`" in refused.output
    upgrade_at_start(settings, told=None)
    assert log_version(old / "log.db") == 2
    assert len(list((old / "backups").glob("*/manifest.json"))) == 1
    upgrade_at_start(settings, told=None)  # nothing more


def test_nobody_upgrades_or_restores_under_a_running_server(old: Path) -> None:
    with sole_server_of(old):
        for words in (("upgrade",), ("restore", "latest", "--replace")):
            if words[0] == "restore":
                assert run("backup", "create", "--data", str(old)).exit_code == 0  # of any version
            done = run(*words, "--data", str(old))
            assert done.exit_code == 1
            assert "serves from" in done.output
    assert log_version(old / "log.db") == 1


def test_a_backup_is_made_listed_checked_and_brought_back(old: Path, tmp_path: Path) -> None:
    assert run("upgrade", "--no-backup", "--data", str(old)).exit_code == 0
    shelf = str(tmp_path / "shelf")
    made = run("backup", "create", "--to", shelf, "--reason", "before the move", "--data", str(old))
    assert made.exit_code == 0, made.output
    assert "15 events" in made.output
    assert "before the move" in run("backup", "list", "--to", shelf, "--data", str(old)).output
    assert "ok: " in run("backup", "verify", "--to", shelf, "--data", str(old)).output
    new = tmp_path / "new"
    without = run("restore", "latest", "--to", shelf, "--data", str(new))
    assert without.exit_code == 1
    assert "master key" in without.output
    new.mkdir(exist_ok=True)
    shutil.copy2(old / "master.key", new / "master.key")
    kept = run("backup", "keys", str(tmp_path / "safe"), "--to", shelf, "--data", str(old))
    assert kept.exit_code == 0, kept.output
    back = run("restore", "latest", "--to", shelf, "--keys", str(tmp_path / "safe"), "--data", str(new))
    assert back.exit_code == 0, back.output
    assert "restored 15 events" in back.output
    assert "words: 3 read, 3 erased" in run("events", "verify", "--content", "--data", str(new)).output
    again = run("restore", "latest", "--to", shelf, "--data", str(new))
    assert again.exit_code == 1
    assert "--replace" in again.output


def test_weights_are_named_by_digest_and_copied_only_if_asked(old: Path, tmp_path: Path) -> None:
    from tiny_llama import random_weights, write_directory

    model = write_directory(tmp_path / "tiny", random_weights(), "F32")
    config = tmp_path / "tiltyard.toml"
    config.write_text(f'[models.tiny]\nsource = "file:{model}"\n[identities.plum]\nmodel = "tiny"\n')
    place = ("--data", str(old), "--config", str(config))
    assert run("upgrade", "--no-backup", *place).exit_code == 0
    assert "changed since" in run("backup", "create", "--weights", *place).output
    assert run("models", "pull", "--config", str(config)).exit_code == 0
    assert run("backup", "create", *place).exit_code == 0
    (first,) = (old / "backups").glob("2*")
    assert not (first / "weights").exists()
    assert '"sha256": "sha256:' in (first / "manifest.json").read_text().partition('"models"')[2]
    assert run("backup", "create", "--weights", *place).exit_code == 0
    second = max((old / "backups").glob("2*"), key=lambda path: path.stat().st_mtime_ns)
    kept = second / "weights" / "tiny" / "tiny" / "model.safetensors"
    assert kept.read_bytes() == (model / "model.safetensors").read_bytes()
    assert (second / "tiltyard.toml").read_bytes() == config.read_bytes()
    assert run("backup", "verify", second.name, *place).exit_code == 0


def test_a_disk_that_fills_up_leaves_no_half_backup_and_no_half_restore(old: Path, tmp_path: Path) -> None:
    """No file may grow beyond 32 kB, a real limit of the system: the log has 258."""
    shelf, rest = tmp_path / "shelf", ["--data", str(old)]
    assert run("backup", "create", "--to", str(shelf), *rest).exit_code == 0
    (whole,) = (path.name for path in shelf.iterdir() if path.name != ".lock")
    before = (old / "log.db").read_bytes()
    code = (
        "import json, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, 1 << 15)); "
        "from click.testing import CliRunner; from tiltyard.cli.main import main; "
        "done = [CliRunner().invoke(main, words) for words in json.loads(sys.argv[1])]; "
        "print(json.dumps([[one.exit_code, one.stderr] for one in done]))"
    )
    verbs = [["backup", "create"], ["restore", "latest", "--replace"]]
    words = [[*verb, "--to", str(shelf), *rest] for verb in verbs]
    cramped = subprocess.run(
        [sys.executable, "-c", code, json.dumps(words)], capture_output=True, text=True, check=True
    )
    (made, said), (back, told) = json.loads(cramped.stdout)
    assert (made, said.count("tiltyard: cannot")) == (1, 1), said
    assert sorted(path.name for path in shelf.iterdir()) == [".lock", whole]
    assert (back, told.count("what was there is as it was")) == (1, 1), told
    assert (old / "log.db").read_bytes() == before
    assert not list(old.glob(".restoring-*"))


def test_a_log_elsewhere_is_a_file_all_the_same(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`TILTYARD_LOG` may be a path: what is said of files holds for it."""
    elsewhere = tmp_path / "elsewhere.db"
    (old / "log.db").rename(elsewhere)
    monkeypatch.setenv("TILTYARD_LOG", str(elsewhere))
    upgrade_at_start(load_settings(data_dir=old), told=None)
    assert log_version(elsewhere) == 2
    assert run("restore", "latest", "--data", str(old)).exit_code == 1
    done = run("restore", "latest", "--replace", "--data", str(old))
    assert done.exit_code == 0, done.output
    assert len(list(tmp_path.glob("elsewhere.db.replaced-*"))) == 1
    monkeypatch.setenv("TILTYARD_LOG", f"sqlite:///{elsewhere}")
    assert run("events", "verify", "--data", str(old)).exit_code == 0


def test_a_log_in_postgresql_is_brought_forward_only_when_somebody_says_so(
    old: Path, tmp_path: Path, postgres: RealPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other gateways may be writing it."""
    urls = postgres.database(), postgres.database()
    for url, file, tables in ((urls[0], "log.db", LOG_TABLES), (urls[1], "keys.db", KEYS_TABLES)):
        database = open_database(url)
        load(old / file, database, tables)
        database.close()
    monkeypatch.setenv("TILTYARD_LOG", urls[0])
    monkeypatch.setenv("TILTYARD_KEYS", urls[1])
    settings = load_settings(data_dir=old)
    assert log_version(urls[0]) == 1
    with pytest.raises(ConfigurationError, match="End servers of the earlier version"):
        upgrade_at_start(settings, told=None)
    undecided = run("upgrade", "--data", str(old))
    assert undecided.exit_code == 1
    assert "say --backup" in undecided.output
    done = run("upgrade", "--backup", "--to", str(tmp_path / "shelf"), "--data", str(old))
    assert done.exit_code == 0, done.output
    assert log_version(urls[0]) == 2
    assert "ok: " in run("backup", "verify", "--to", str(tmp_path / "shelf"), "--data", str(old)).output
    assert "words: 3 read, 3 erased" in run("events", "verify", "--content", "--data", str(old)).output
    assert run("events", "rebuild", "--data", str(old)).exit_code == 0

"""Backups: a copy of a log that is being written, without keys; and back, with every erasure that was ever ordered still holding."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "events"))

from event_samples import SOURCE, turn, vote
from test_log_upgrade import unpacked

from real_postgres import RealPostgres
from tiltyard.errors import ConfigurationError, Conflict, ContentMissing, LogTampered, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.master_key import MasterKey
from tiltyard.events.places import KeysPlace
from tiltyard.events.schema import ContentRef, SubjectErased
from tiltyard.events.verification import Head
from tiltyard.ops.backup.create import Made, Source, create_backup
from tiltyard.ops.backup.keys import copy_keys_to
from tiltyard.ops.backup.restore import Place, Restored, restore_backup
from tiltyard.ops.backup.shelf import backup_named, backups_in, check_backup, thin_out
from tiltyard.ops.backup.telling import untold
from tiltyard.ops.upgrade import upgrade_log


@dataclass
class Home:
    """A data directory and where its backups go."""

    data: Path

    @property
    def backups(self) -> Path:
        return self.data.with_name(self.data.name + "-backups")

    @property
    def keys(self) -> KeysPlace:
        return KeysPlace(self.data / "keys.db", self.data / "master.key")

    @property
    def place(self) -> Place:
        return Place(self.data, self.data / "log.db", self.keys)

    @property
    def source(self) -> Source:
        return Source(self.data, self.data / "log.db", self.data / "master.key")

    def open(self) -> EventLog:
        return EventLog.open(self.data / "log.db", keys=self.keys)

    def backup(self, told: Callable[[str, int, int], None] = untold) -> Made:
        return create_backup(self.source, self.backups, reason="test", told=told)

    def restore(
        self, backup: Path, *, replace: bool = False, keys: Path | None = None,
        told: Callable[[str, int, int], None] = untold,
    ) -> Restored:  # fmt: skip
        return restore_backup(backup, self.place, replace=replace, keys=keys, told=told)

    def check(self, backup: Path) -> None:
        check_backup(backup, MasterKey.load_or_create(self.data / "master.key", create=False), untold)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "yard")


def say(log: EventLog, voter: str, words: str, battle: str) -> ContentRef:
    said = log.content(voter, words.encode())
    log.append_blocking(turn(battle, 0, said.ref), subject=battle, source=SOURCE, contents=[said])
    return said.ref


def test_a_backup_of_a_log_that_is_being_written_is_a_prefix_of_it(home: Home) -> None:
    with home.open() as log:
        enough, stop = threading.Event(), threading.Event()
        acknowledged: list[int] = []

        def write() -> None:
            while not stop.is_set():
                name = f"bat_{len(acknowledged)}"
                acknowledged.append(log.append_blocking(vote(name), subject=name, source=SOURCE).sequence)
                if len(acknowledged) == 50:
                    enough.set()

        writer = threading.Thread(target=write)
        writer.start()
        enough.wait()
        before = acknowledged[-1]
        made = home.backup()
        stop.set()
        writer.join()
        assert before <= made.manifest.events <= acknowledged[-1]
        assert log.verify(head=Head.parse(made.manifest.head or "")).ok
        home.check(made.path)
    with EventLog.open(made.path / "log.db", keys=home.keys, create=False) as copy:
        assert [event.sequence for event in copy.read()] == list(range(1, made.manifest.events + 1))


def test_no_key_is_in_a_backup(home: Home) -> None:
    with home.open() as log:
        say(log, "voter_1", "hello", "bat_1")
    (home.data / "identities" / "sha256").mkdir(parents=True)
    (home.data / "identities" / "keys.db").write_bytes(b"put there by mistake")
    made = home.backup()
    import sqlite3

    wrapped = sqlite3.connect(home.data / "keys.db").execute("SELECT wrapped FROM subject_keys").fetchone()[0]
    master = (home.data / "master.key").read_text().strip()
    files = [path for path in made.path.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["log.db", "manifest.json"]
    for path in files:
        held = path.read_bytes()
        assert wrapped not in held
        assert master.encode() not in held
        assert bytes.fromhex(master) not in held


def test_words_erased_after_a_backup_do_not_come_back_with_it(home: Home) -> None:
    with home.open() as log:
        gone, kept = say(log, "voter_1", "hello", "bat_1"), say(log, "voter_2", "你好", "bat_2")
        made = home.backup()
        log.erase_subject("voter_1")
        log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
    done = home.restore(made.path, replace=True)
    assert done.erasures == (0, 1, ("voter_1",))
    assert "2 seals more" in done.standing  # the erasure's and the vote's
    with home.open() as log:
        words = log.own_words("tests")
        assert words.read(kept) == "你好".encode()
        with pytest.raises(ContentMissing, match="erased"):
            words.read(gone)
        erased = log.find(SubjectErased, subject="voter_1")
        assert erased is not None
        assert erased.sequence == 3
        assert log.verify(check_contents=True).ok


def test_words_erased_before_keys_were_brought_back_stay_erased(home: Home, tmp_path: Path) -> None:
    with home.open() as log:
        gone, kept = say(log, "voter_1", "hello", "bat_1"), say(log, "voter_2", "hi", "bat_2")
    copy_keys_to(
        home.keys, tmp_path / "safe", apart_from=(home.backups, home.data), with_master_key=False, told=untold
    )
    with home.open() as log:
        log.erase_subject("voter_1")
    made = home.backup()
    (home.data / "keys.db").unlink()
    done = home.restore(made.path, replace=True, keys=tmp_path / "safe")
    assert done.erasures.keys == 1
    with home.open() as log:
        words = log.own_words("tests")
        assert words.read(kept) == b"hi"
        with pytest.raises(ContentMissing, match="erased"):
            words.read(gone)
        assert log.verify(check_contents=True).ok


def test_without_keys_a_restored_log_is_whole_and_says_nothing(home: Home) -> None:
    with home.open() as log:
        ref = say(log, "voter_1", "hello", "bat_1")
    made = home.backup()
    other = Home(home.data.with_name("elsewhere"))
    other.data.mkdir()
    shutil.copyfile(home.data / "master.key", other.data / "master.key")
    (other.data / "master.key").chmod(0o600)
    assert other.restore(made.path).standing == "nothing was known of this log here"
    with other.open() as log:
        assert log.verify().ok
        with pytest.raises(ContentMissing, match="restored without its keys"):
            log.own_words("tests").read(ref)


def test_an_interrupted_backup_leaves_nothing_and_can_be_made_again(home: Home) -> None:
    with home.open() as log:
        log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)

    def interrupt(what: str, _done: int, _total: int) -> None:
        if what == "digests":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        home.backup(told=interrupt)
    assert [path.name for path in home.backups.iterdir()] == [".lock"]
    (home.backups / ".partial-killed").mkdir()
    (home.backups / ".partial-killed" / "manifest.json").write_text("{}")
    assert backups_in(home.backups) == []
    made = home.backup()
    assert sorted(path.name for path in home.backups.iterdir()) == [".lock", made.path.name]
    assert backup_named("latest", home.backups) == made.path
    with pytest.raises(NotFound, match="there is no backup 'other'"):
        backup_named("other", home.backups)


def test_an_interrupted_restore_leaves_the_log_that_was_there(home: Home) -> None:
    with home.open() as log:
        log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
        made = home.backup()
        log.append_blocking(vote("bat_2"), subject="bat_2", source=SOURCE)

    def interrupt(what: str, _done: int, _total: int) -> None:
        if what.startswith("checking the restored log"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        home.restore(made.path, replace=True, told=interrupt)
    assert not list(home.data.glob(".restoring-*"))
    with home.open() as log:
        assert log.last_sequence() == 2
        assert log.verify().ok
    assert home.restore(made.path, replace=True).report.events == 1


def test_a_log_is_not_written_over_unless_told_and_then_it_is_put_aside(home: Home) -> None:
    with home.open() as log:
        log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
        made = home.backup()
        log.append_blocking(vote("bat_2"), subject="bat_2", source=SOURCE)
    with pytest.raises(
        Conflict, match=r"already \(the backup is a prefix of the log that is here.*--replace"
    ):
        home.restore(made.path)
    (aside,) = home.restore(made.path, replace=True).replaced
    with EventLog.open(aside, keys=home.keys) as old:
        assert old.last_sequence() == 2
    with home.open() as log:
        assert log.last_sequence() == 1
        assert log.append_blocking(vote("bat_3"), subject="bat_3", source=SOURCE).sequence == 2
        assert log.verify().ok


def test_a_backup_of_another_history_is_refused(home: Home) -> None:
    with home.open() as log:
        log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
        early = home.backup()
        log.append_blocking(vote("bat_2"), subject="bat_2", source=SOURCE)
        late = home.backup()
    home.restore(early.path, replace=True)
    with home.open() as log:
        log.append_blocking(vote("bat_other"), subject="bat_other", source=SOURCE)
    with pytest.raises(LogTampered, match=r"does not hold seal 2.*another history"):
        home.restore(late.path, replace=True)


@pytest.mark.parametrize("what", ["log", "manifest", "more", "less", "key"])
def test_a_backup_that_was_changed_is_refused(home: Home, what: str) -> None:
    with home.open() as log:
        log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
    made = home.backup()
    home.check(made.path)
    manifest = made.path / "manifest.json"
    match what:
        case "log":
            data = bytearray((made.path / "log.db").read_bytes())
            data[len(data) // 2] ^= 1
            (made.path / "log.db").write_bytes(bytes(data))
        case "manifest":
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"events": 2}))
        case "more":
            (made.path / "tiltyard.toml").write_text("[server]\nhost = '0.0.0.0'\n")
        case "less":
            (made.path / "log.db").unlink()
        case "key":
            (home.data / "master.key").write_text("ab" * 32)
    expected = {
        "log": "not what was backed up", "manifest": "changed since it was signed", "more": "not of this backup",
        "less": "missing", "key": "not signed with this log's master key",
    }  # fmt: skip
    with pytest.raises(LogTampered, match=expected[what]):
        home.check(made.path)
    with pytest.raises(LogTampered, match=expected[what]):
        home.restore(made.path, replace=True)


def test_old_backups_of_this_log_go_and_nothing_else(home: Home) -> None:
    with home.open() as log:
        log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
    made = [home.backup() for _ in range(3)]
    other = Home(home.data.with_name("other"))
    other.open().close()
    theirs = create_backup(other.source, home.backups, reason="another log", told=untold)
    broken = home.backups / "2020-broken"
    broken.mkdir()
    (broken / "manifest.json").write_text("{}")
    gone = thin_out(home.backups, log_id=made[0].manifest.log_id, keep=2)
    ordered = sorted(one.path for one in made)
    assert gone == ordered[:1]
    left = {path.name for path in home.backups.iterdir()} - {".lock"}
    assert left == {*(path.name for path in ordered[1:]), theirs.path.name, broken.name}


def test_keys_are_not_copied_to_where_backups_are(home: Home) -> None:
    with home.open() as log:
        say(log, "voter_1", "hello", "bat_1")
    home.backup()
    for place in (home.backups / "keys", home.data / "keys", home.data.parent):
        with pytest.raises(ConfigurationError, match="would come back"):
            copy_keys_to(
                home.keys, place, apart_from=(home.backups, home.data), with_master_key=True, told=untold
            )
        assert not (place / "master.key").exists()


def test_a_damaged_log_is_no_backup(home: Home) -> None:
    with home.open() as log:
        log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
    import sqlite3

    with sqlite3.connect(home.data / "log.db") as raw:
        raw.execute("DROP TRIGGER events_no_update")
        raw.execute("UPDATE events SET subject = 'bat_2'")
    with pytest.raises(LogTampered, match="event 1"):
        home.backup()
    assert backups_in(home.backups) == []


def test_an_upgrade_makes_a_backup_first_and_that_backup_can_be_brought_back(tmp_path: Path) -> None:
    home = Home(unpacked("log-1-first", tmp_path / "yard"))
    said: list[str] = []
    done = upgrade_log(home.source, home.keys, backups=home.backups, told=untold, say=said.append)
    assert done is not None
    assert done.backup is not None
    assert (done.before, done.report.events, done.backup.manifest.schema_version) == (1, 15, 1)
    assert said[0] == "the log is of version 1; a backup first"
    assert upgrade_log(home.source, home.keys, backups=home.backups, told=untold, say=said.append) is None
    assert home.restore(done.backup.path, replace=True).report.events == 15
    with home.open() as log:  # brought forward on the way
        assert log.verify(check_contents=True).contents == 3


def test_a_log_in_postgresql_is_backed_up_and_comes_back(postgres: RealPostgres, home: Home) -> None:
    urls = [postgres.database() for _ in range(3)]
    keys = KeysPlace(urls[1], home.data / "master.key")
    with EventLog.open(urls[0], keys=keys) as log:
        for number in range(1500):  # more than one page of rows
            log._writer.submit(_draft(log, f"bat_{number}"))
        ref, gone = say(log, "voter_1", "hello", "bat_w"), say(log, "voter_2", "bye", "bat_g")
        made = create_backup(
            Source(home.data, urls[0], keys.master_key), home.backups, reason="t", told=untold
        )
        log.erase_subject("voter_2")
    assert made.manifest.events == 1502
    place = Place(home.data, urls[2], keys)
    done = restore_backup(made.path, place, replace=False, keys=None, told=untold)
    assert done.erasures.subjects == ("voter_2",)
    with EventLog.open(urls[2], keys=keys) as log:
        assert log.last_sequence() == 1503
        assert log.own_words("tests").read(ref) == b"hello"
        with pytest.raises(ContentMissing, match="erased"):
            log.own_words("tests").read(gone)
        assert log.append_blocking(vote("bat_x"), subject="bat_x", source=SOURCE).sequence == 1504
        assert log.verify(check_contents=True).ok
    with pytest.raises(ConfigurationError, match="not empty"):
        restore_backup(made.path, place, replace=True, keys=None, told=untold)


def _draft(log: EventLog, battle: str):  # type: ignore[no-untyped-def]
    return log._draft(
        vote(battle), subject=battle, source=SOURCE, tenant="default", traceparent=None, words=()
    )


@pytest.mark.parametrize("stop", ["kill", "damage"])
def test_a_log_that_was_left_behind_by_a_crash_is_put_aside_whole(home: Home, stop: str) -> None:
    """A killed server leaves commits in the write-ahead log alone; a damaged file cannot even be opened."""
    with home.open() as log:
        log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
        made = home.backup()
    code = (
        "import os, sys; from pathlib import Path; sys.path.append(sys.argv[2]); from event_samples import vote; "
        "from tiltyard.events.log import EventLog; home = Path(sys.argv[1]); "
        "log = EventLog.open(home / 'log.db', keys=home / 'keys.db'); "
        "log.append_blocking(vote('bat_2'), subject='bat_2', source='tests'); os.kill(os.getpid(), 9)"
    )
    events = str(Path(__file__).parent.parent / "events")
    subprocess.run([sys.executable, "-c", code, str(home.data), events], check=False)
    assert (home.data / "log.db-wal").stat().st_size > 0
    if stop == "damage":
        (home.data / "log.db").write_bytes(b"rubbish " * 1000)
    (aside,) = home.restore(made.path, replace=True).replaced
    assert not (home.data / "log.db-wal").exists()
    with home.open() as log:
        assert [event.subject for event in log.read()] == ["bat_1"]
    if stop == "kill":
        with EventLog.open(aside, keys=home.keys) as old:
            assert [event.subject for event in old.read()] == ["bat_1", "bat_2"]
    else:
        assert aside.read_bytes() == b"rubbish " * 1000

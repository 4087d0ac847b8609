"""What was acknowledged is there: after kill -9, with several writers, on a full disk."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from event_samples import SOURCE, projections_of, turn, vote

import tiltyard
from tiltyard.errors import StorageFailed
from tiltyard.events.log import EventLog
from tiltyard.events.schema import BattleTurnStarted, ContentRef, VoteCast

HERE = Path(__file__).parent
APPENDER = HERE / "event_appender.py"


def start_appender(data: Path, name: str, appenders: int, limit: int = 0) -> subprocess.Popen[str]:
    source = str(Path(tiltyard.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, str(HERE), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, str(APPENDER), str(data), name, str(appenders), str(limit)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def check_acknowledged(log: EventLog, lines: list[str]) -> tuple[int, int]:
    """Find every acknowledged vote and word in the log; return how many there were of each."""
    votes = {event.data.battle: event.id for event in log.read(types=[VoteCast])}  # type: ignore[attr-defined]
    words = {event.data.message.id for event in log.read(types=[BattleTurnStarted])}  # type: ignore[attr-defined]
    rows = {row.battle for row in log.votes()}
    counted = [0, 0]
    for line in lines:
        kind, _, rest = line.strip().partition(" ")
        battle, _, detail = rest.partition(" ")
        if kind == "vote":
            assert votes[battle] == detail
            assert battle in rows
            counted[0] += 1
        elif kind == "words":
            ref = ContentRef.model_validate_json(detail)
            assert ref.id in words
            assert log.own_words("test").read(ref) == battle.encode()
            counted[1] += 1
    return counted[0], counted[1]


def test_kill_9_at_any_moment_loses_no_acknowledged_vote(tmp_path: Path, open_log: object) -> None:
    moments = random.Random(20261130)
    acknowledged: list[str] = []
    for round_number in range(6):
        appender = start_appender(tmp_path, f"r{round_number}", appenders=8)
        assert appender.stdout is not None
        lines = [appender.stdout.readline() for _ in range(1 + moments.randrange(1, 400))]
        os.kill(appender.pid, signal.SIGKILL)
        # What it had said before it died still stands in the pipe; a last line may be torn.
        lines += [line for line in appender.stdout if line.endswith("\n")]
        appender.stdout.close()
        assert appender.wait() == -signal.SIGKILL
        assert lines[0] == "ready\n"
        acknowledged += lines[1:]

        log = open_log()  # type: ignore[operator]
        votes, words = check_acknowledged(log, acknowledged)
        assert votes > 0
        report = log.verify(check_contents=True)
        assert report.fault is None
        assert report.events == log.last_sequence() >= votes + words
        live = projections_of(log)
        log.rebuild()
        assert projections_of(log) == live
        log.close()
    assert words > 0


def test_two_writing_processes_and_a_reader_keep_one_chain(tmp_path: Path, open_log: object) -> None:
    """Both processes cast votes in the same battles: exactly one of them wins each."""
    log = open_log()  # type: ignore[operator]
    appenders = [start_appender(tmp_path, "same", appenders=4, limit=60) for _ in range(2)]
    while any(appender.poll() is None for appender in appenders):
        assert log.verify().ok
    outputs = []
    for appender in appenders:
        output, _ = appender.communicate()
        assert appender.returncode == 0
        outputs.append(output.splitlines())
    winners = [line.split()[1] for lines in outputs for line in lines if line.startswith("vote")]
    losers = [line.split()[1] for lines in outputs for line in lines if line.startswith("refused")]
    assert sorted(winners) == sorted(losers) == sorted(f"bat_same_{n}" for n in range(60))
    assert check_acknowledged(log, [line for lines in outputs for line in lines]) == (60, 60)
    assert [event.sequence for event in log.read()] == list(range(1, 121))
    assert log.verify(check_contents=True).ok
    live = projections_of(log)
    log.rebuild()
    assert projections_of(log) == live


@contextmanager
def files_no_longer_than(size_bytes: int) -> Iterator[None]:
    """Let the kernel refuse to lengthen any file of this process beyond a size (as a full disk would)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)


def test_when_no_file_may_grow_nothing_is_acknowledged_and_later_it_works(
    log: EventLog, tmp_path: Path
) -> None:
    log.append_blocking(vote("bat_before"), subject="b", source=SOURCE)
    with files_no_longer_than((tmp_path / "log.db-wal").stat().st_size):
        for n in range(3):
            with pytest.raises(StorageFailed, match="Nothing was acknowledged"):
                log.append_blocking(vote(f"bat_{n}"), subject="b", source=SOURCE)
    log.append_blocking(vote("bat_0"), subject="b", source=SOURCE)
    words = log.content("voter-1", b"hello")
    log.append_blocking(turn("bat_0", 0, words.ref), subject="b", source=SOURCE, contents=[words])
    assert [row.battle for row in log.votes()] == ["bat_before", "bat_0"]
    assert log.verify(check_contents=True).ok


@pytest.mark.parametrize("storage", ["sqlite"])
def test_a_full_database_says_so_and_works_when_there_is_room_again(log: EventLog) -> None:
    """SQLite's own limit gives the error that it gives on ENOSPC."""
    log.append_blocking(vote("bat_before"), subject="b", source=SOURCE)

    def limit(pages: int) -> None:
        with log._database.reading() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    limit(1)  # SQLite takes the present size instead: not a page more
    stored = ["bat_before"]
    failure = None
    for n in range(1000):
        try:
            log.append_blocking(vote(f"bat_{n}"), subject="b", source=SOURCE)
        except StorageFailed as error:
            failure = error
            break
        stored.append(f"bat_{n}")
    assert failure is not None
    assert "full" in failure.message
    assert "free space on that file system" in failure.message
    assert [row.battle for row in log.votes()] == stored
    limit(1_000_000)
    log.append_blocking(vote("bat_after"), subject="b", source=SOURCE)
    assert [row.battle for row in log.votes()] == [*stored, "bat_after"]
    assert log.verify().ok


def can_mount_a_disk_of_its_own() -> bool:
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    trial = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


def test_a_really_full_disk_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """A 4 MiB tmpfs in a mount namespace of its own; the appender runs until the disk is full."""
    if not can_mount_a_disk_of_its_own():
        pytest.skip("mounting a tmpfs needs root and unshare")
    script = (
        'mount -t tmpfs -o size=4m tmpfs "$1" && "$2" "$3" "$1" full 4 0; status=$?; '
        'rm -f "$1"/*-shm; cp "$1"/*.db "$1"/*.db-wal "$1"/master.key "$4"; '
        "exit $status"
    )
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    source = str(Path(tiltyard.__file__).parents[1])
    run = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", disk, sys.executable, APPENDER, kept],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([source, str(HERE)])},
    )
    lines = run.stdout.splitlines()
    assert [line for line in lines if line.startswith("failed")], run.stdout[-500:]
    assert all("full" in line for line in lines if line.startswith("failed"))
    with EventLog.open(kept / "log.db", keys=kept / "keys.db") as log:
        votes, words = check_acknowledged(log, lines)
        assert votes > 50
        assert words > 50
        assert log.verify(check_contents=True).ok


def test_a_log_that_cannot_be_written_says_so(open_log: object, tmp_path: Path) -> None:
    log = open_log()  # type: ignore[operator]
    log.append_blocking(vote("bat_1"), subject="b", source=SOURCE)
    with log._database.reading() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(StorageFailed, match="readonly"):
        log.append_blocking(vote("bat_2"), subject="b", source=SOURCE)
    with log._database.reading() as connection:
        connection.exec_driver_sql("PRAGMA query_only = OFF")
    log.append_blocking(vote("bat_2"), subject="b", source=SOURCE)


def test_a_damaged_page_is_reported_and_not_believed(open_log: object, tmp_path: Path) -> None:
    log = open_log()  # type: ignore[operator]
    for n in range(50):
        log.append_blocking(vote(f"bat_{n}"), subject="b", source=SOURCE)
    log.close()
    connection = sqlite3.connect(tmp_path / "log.db")
    root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events'").fetchone()[0]
    page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    with (tmp_path / "log.db").open("r+b") as file:
        file.seek((root - 1) * page_bytes)
        file.write(b"\xff" * page_bytes)
    with pytest.raises(StorageFailed, match="malformed"):
        open_log().verify()  # type: ignore[operator]

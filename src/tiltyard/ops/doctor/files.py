"""Directories and files: room, speed, who may read what, what an interrupted command left, and how old the newest backup is."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tiltyard.events.places import KeysPlace
from tiltyard.ops.backup.shelf import backups_in
from tiltyard.ops.doctor.finding import Finding

LEAST_FREE_MB: Final = 200
"""A server refuses to start with less."""
LITTLE_FREE_MB: Final = 1000
SYNCS: Final = 7
WRITTEN_BYTES: Final = 4 << 20
SLOW_SYNC_MS: Final = 20.0
OLD_BACKUP_DAYS: Final = 7


def disk(directory: Path, name: str, *, timed: bool) -> Iterator[Finding]:
    """Room where a directory is or will be, and (`timed`) how fast it takes a durable write."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    check = f"disk ({name})"
    free_mb = shutil.disk_usage(there).free // 1_000_000
    told = f"{free_mb / 1000:,.1f} GB free at {there}"
    if free_mb < LEAST_FREE_MB:
        yield Finding(
            check, "fail", f"{told}; {LEAST_FREE_MB} MB are needed", "free some, or choose another directory"
        )
        return
    if timed:
        try:
            sync_ms, mb_s = _written(there)
        except OSError as error:
            yield Finding(
                check, "fail", f"nothing can be written at {there}: {error.strerror}", f"make it writable: ls -ld {there}; df -h {there}"
            )  # fmt: skip
            return
        told += f"; a durable write takes {sync_ms:.1f} ms, {mb_s:,.0f} MB/s"
        if sync_ms > SLOW_SYNC_MS:
            yield Finding(
                check, "warn", f"{told}: every event waits for that", "put the data directory on a local SSD (--data)"
            )  # fmt: skip
            return
    if free_mb < LITTLE_FREE_MB:
        yield Finding(check, "warn", told, "free some before the log needs it")
        return
    yield Finding(check, "ok", told)


def permissions(data: Path, keys: KeysPlace) -> Iterator[Finding]:
    """Who else may read or change what is kept here."""
    check = "permissions"
    if not data.exists():
        yield Finding(check, "skipped", f"{data} is not there yet; `tiltyard up` makes it")
    else:
        mode = data.stat().st_mode
        if not os.access(data, os.W_OK | os.X_OK):
            yield Finding(check, "fail", f"{data} is not writable for {_me()}", f"chown {_me()} {data}")
        elif mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield Finding(
                check, "warn", f"others may write into {data} (mode {mode & 0o777:04o})", f"chmod go-w {data}"
            )
        else:
            yield Finding(check, "ok", f"{data}: mode {mode & 0o777:04o}")
    yield from _master_key(keys.master_key, data)
    if isinstance(keys.database, Path) and keys.database.exists():
        mode = keys.database.stat().st_mode
        if mode & 0o077 and _reachable(keys.database):
            yield Finding(
                "keys file", "warn", f"others may read {keys.database} (mode {mode & 0o777:04o}); without the master key it says nothing",
                f"chmod 600 {keys.database}",
            )  # fmt: skip
        else:
            yield Finding("keys file", "ok", f"{keys.database}: mode {mode & 0o777:04o}")


def _master_key(path: Path, data: Path) -> Iterator[Finding]:
    check = "master key"
    if not path.exists():
        if (data / "log.db").exists():
            yield Finding(
                check, "fail", f"there is a log and no {path}: no word can be read and nothing appended",
                f"bring its copy back to {path}, mode 0600; nothing replaces it",
            )  # fmt: skip
        else:
            yield Finding(check, "skipped", "none yet; the first start makes one")
        return
    mode = path.stat().st_mode
    if mode & 0o077:
        yield Finding(
            check, "fail", f"{path} can be read by others (mode {mode & 0o777:04o})", f"chmod 600 {path}"
        )  # fmt: skip
    elif not os.access(path, os.R_OK):
        yield Finding(check, "fail", f"{path} cannot be read by {_me()}", f"chown {_me()} {path}")
    else:
        yield Finding(check, "ok", f"{path}: mode {mode & 0o777:04o}; keep a copy of it elsewhere")


def leftovers(data: Path) -> Iterator[Finding]:
    """What an interrupted or a replaced restore left."""
    left = sorted((*data.glob(".restoring-*"), *data.glob("*.replaced-*"))) if data.is_dir() else []
    names = [path.name for path in left if not path.name.endswith(("-wal", "-shm"))]
    if names:
        yield Finding(
            "leftovers", "warn", f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''} in {data}",
            "look whether the restored log is what you want (`tiltyard events tail`), then delete them",
        )  # fmt: skip


def backups(directory: Path, *, has_log: bool) -> Iterator[Finding]:
    """How old the newest backup is, and whether all can be read."""
    check = "backups"
    found = backups_in(directory)
    broken = [one for one in found if one.manifest is None]
    if broken:
        yield Finding(check, "fail", broken[0].problem, f"look at it, then delete it: {broken[0].path}")
    dates = [datetime.fromisoformat(one.manifest.made_at) for one in found if one.manifest is not None]
    if not dates:
        if has_log:
            yield Finding(
                check, "warn", f"there is none in {directory}", "tiltyard backup create --to /another/disk"
            )
        else:
            yield Finding(check, "skipped", "there is nothing to back up yet")
        return
    days = (datetime.now(UTC) - max(dates)).total_seconds() / 86400
    told = f"{len(dates)} in {directory}, the newest {days:.1f} days old"
    if days > OLD_BACKUP_DAYS:
        yield Finding(check, "warn", told, "tiltyard backup create, and a timer that does it")
    else:
        yield Finding(check, "ok", told)


def _written(directory: Path) -> tuple[float, float]:
    """Median milliseconds of a small durable write, and MB/s of a larger one; leaves nothing."""
    path = directory / f".doctor-{secrets.token_hex(4)}"
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        took = []
        for _ in range(SYNCS):
            begin = time.perf_counter()
            _write_all(handle, b"x" * 4096)
            os.fsync(handle)
            took.append((time.perf_counter() - begin) * 1000)
        begin = time.perf_counter()
        _write_all(handle, bytes(WRITTEN_BYTES))
        os.fsync(handle)
        return statistics.median(took), WRITTEN_BYTES / 1e6 / (time.perf_counter() - begin)
    finally:
        os.close(handle)
        path.unlink()


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _reachable(path: Path) -> bool:
    """Whether others can come to a file at all: a directory of mode 0700 keeps them out."""
    return bool(path.parent.stat().st_mode & 0o011)


def _me() -> str:
    return str(os.geteuid())

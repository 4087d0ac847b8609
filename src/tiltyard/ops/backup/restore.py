"""Brings a backup back: checked first, made ready beside the place it goes to, and put there by one rename.

What is known of erasures holds: rows whose keys are destroyed are emptied, and what was erased after the backup gets its tombstone
again, before anybody can read the log. Nothing is overwritten: a log that is replaced is kept beside the new one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import select

from tiltyard.errors import Conflict, LogTampered, StorageFailed, TiltyardError
from tiltyard.events.copying import KEYS_TABLES, LOG_TABLES, load, sync
from tiltyard.events.dialect import Database, SqliteDatabase, open_database
from tiltyard.events.log import EventLog
from tiltyard.events.master_key import MasterKey
from tiltyard.events.migrations import facts_of, migrate
from tiltyard.events.places import KeysPlace
from tiltyard.events.restored import Reapplied, reapply_erasures
from tiltyard.events.tables import heads, seals
from tiltyard.events.verification import Head, VerifyReport
from tiltyard.ops.backup.create import KEPT_DIRECTORIES
from tiltyard.ops.backup.manifest import LOG, BackupManifest, digest_of_file
from tiltyard.ops.backup.shelf import check_backup
from tiltyard.ops.backup.telling import Told

REASON = "erased before this log was restored"


@dataclass(frozen=True)
class Place:
    """Where a backup goes to."""

    data: Path
    log: Path | str
    keys: KeysPlace


@dataclass(frozen=True)
class Restored:
    """What was done."""

    manifest: BackupManifest
    standing: str
    """How the backup stands to what was known of its log here."""
    replaced: tuple[Path, ...]
    """Where the files that were here before are now."""
    settings: Path | None
    """Where the backup's settings were put; `None`: there were some here, which stay."""
    erasures: Reapplied
    report: VerifyReport


def restore_backup(
    backup: Path,
    place: Place,
    *,
    replace: bool,
    keys: Path | None,
    told: Told,
) -> Restored:
    """Restore a backup, and keys out of another place if `keys` names them. No server may run. Blocks.

    Raises `Conflict` where there is a log (or keys) already and `replace` is false, `LogTampered` for a backup that is not
    whole or not of this log, `ConfigurationError` without the master key, `StorageFailed` where a disk refuses. Interrupted, it
    leaves what was here, or what was restored; run it again.
    """
    master = MasterKey.load_or_create(place.keys.master_key, create=False)
    manifest, _ = check_backup(backup, master, told)
    standing = _standing(backup / LOG, manifest, place)
    _refuse_what_is_there(place, keys, replace=replace, standing=standing)
    replaced: list[Path] = []
    with _staged(place.data) as staging:
        if keys is not None:
            replaced += _put_keys(keys, place, staging, told)
        log_file = staging / LOG
        _copy_checked(backup / LOG, log_file, manifest, told)
        erasures, report = _make_ready(log_file, place.keys, told)
        if isinstance(place.log, Path):
            replaced += _put(log_file, place.log)
        else:
            database = open_database(place.log)
            try:
                load(
                    log_file,
                    database,
                    LOG_TABLES,
                    lambda done, total: told(f"rows into {database.name}", done, total),
                )
            finally:
                database.close()
    for name in KEPT_DIRECTORIES:
        _add_missing(backup / name, place.data / name)
    kept, own = backup / "tiltyard.toml", place.data / "tiltyard.toml"
    if settings := kept.is_file() and not own.exists():
        shutil.copyfile(kept, own)
    return Restored(manifest, standing, tuple(replaced), own if settings else None, erasures, report)


def _make_ready(log_file: Path, keys: KeysPlace, told: Told) -> tuple[Reapplied, VerifyReport]:
    """Bring the copy forward, apply what is known of erasures, and check it once more."""
    database = SqliteDatabase(log_file)
    try:
        migrate(database)
    finally:
        database.close()
    with EventLog.open(log_file, keys=keys) as log:
        log.forget_head()
        log_database, key_database = SqliteDatabase(log_file), open_database(keys.database)
        try:
            erasures = reapply_erasures(log_database, key_database)
        finally:
            log_database.close()
            key_database.close()
        for subject in erasures.subjects:
            log.erase_subject(subject, reason=REASON)
        report = log.verify(report=lambda done, total: told("checking the restored log, events", done, total))
    report.raise_if_faulty()
    with closing(sqlite3.connect(log_file)) as plain:
        plain.execute(
            "PRAGMA journal_mode=DELETE"
        ).fetchone()  # one file to rename; the log makes it WAL again
    sync(log_file)
    return erasures, report


def _standing(log_file: Path, manifest: BackupManifest, place: Place) -> str:
    """Compare the backup's end with the log that is here, and with the newest seal that the keys remember.

    Raises `LogTampered` where both cannot be of one history.
    """
    end = None if manifest.head is None else Head.parse(manifest.head)
    number = 0 if end is None else end.number
    told = []
    if isinstance(place.log, str) or place.log.is_file():
        here = open_database(place.log)
        try:
            facts = facts_of(here)
            if facts is not None and facts.get("log_id") != manifest.log_id:
                told.append("the log that is here is another one")
            elif facts is not None:
                if end is not None and _seal(here, number) != end.hash:
                    told.append("the log that is here does not hold the backup's last seal")
                else:
                    later = _last(here) - number
                    told.append(
                        f"the backup is a prefix of the log that is here, which has {later:,} seals more"
                    )
        except TiltyardError as error:
            told.append(f"the log that is here cannot be read ({error.message})")
        finally:
            here.close()
    known = _known_head(place.keys, manifest.log_id)
    if known is not None and known.number > number:
        told.append(f"{known.number - number:,} seals were made after the backup, which does not have them")
    elif known is not None:
        backup = SqliteDatabase(log_file)
        try:
            if _seal(backup, known.number) != known.hash:
                raise LogTampered(
                    f"the backup does not hold seal {known.number}, which had been made ({known}): it is of another history"
                )
        finally:
            backup.close()
        told.append(f"the backup holds seal {known.number}, the newest that the keys remember")
    return "; ".join(told) or "nothing was known of this log here"


def _seal(database: Database, number: int) -> bytes | None:
    with database.reading() as connection:
        return connection.execute(select(seals.c.hash).where(seals.c.number == number)).scalar()


def _last(database: Database) -> int:
    with database.reading() as connection:
        return (
            connection.execute(select(seals.c.number).order_by(seals.c.number.desc()).limit(1)).scalar() or 0
        )


def _known_head(place: KeysPlace, log_id: str) -> Head | None:
    if isinstance(place.database, Path) and not place.database.is_file():
        return None
    keys = open_database(place.database)
    try:
        if not keys.has(heads):
            return None
        with keys.reading() as connection:
            row = connection.execute(select(heads).where(heads.c.log_id == log_id)).first()
        return None if row is None else Head(row.number, row.hash)
    finally:
        keys.close()


def _refuse_what_is_there(place: Place, keys: Path | None, *, replace: bool, standing: str) -> None:
    if isinstance(place.log, str):
        return  # `load` refuses a database that is not empty; there is no putting it aside
    there = [place.log] if place.log.exists() else []
    if keys is not None and isinstance(place.keys.database, Path) and place.keys.database.exists():
        there.append(place.keys.database)
    if there and not replace:
        raise Conflict(
            f"there is {' and '.join(map(str, there))} already ({standing}). --replace puts what is there aside, under another "
            "name, and restores; or name another directory with --data"
        )


@contextmanager
def _staged(data: Path) -> Iterator[Path]:
    staging = data / f".restoring-{secrets.token_hex(4)}"
    try:
        data.mkdir(parents=True, exist_ok=True)
        for left in data.glob(".restoring-*"):
            shutil.rmtree(left, ignore_errors=True)
        staging.mkdir(mode=0o700)
        yield staging
    except OSError as error:
        raise StorageFailed(
            f"cannot restore into {data}: {error.strerror or error}; what was there is as it was"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _copy_checked(source: Path, target: Path, manifest: BackupManifest, told: Told) -> None:
    told(f"copying {source}", 0, 0)
    shutil.copyfile(source, target)
    expected = next(file for file in manifest.files if file.path == LOG)
    if digest_of_file(target) != (expected.size_bytes, expected.sha256):
        raise LogTampered(f"{source} changed while it was copied; nothing was restored")


def _put(file: Path, target: Path) -> list[Path]:
    """Put a file in its place by a rename; what was there (with its write-ahead log) has another name as well by then.

    At no moment is there none: a server that starts then would make an empty log.
    """
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = target.with_name(f"{target.name}.replaced-{moment}")
    there = target.exists()
    if there:
        _empty_write_ahead_log(target)
        os.link(target, aside)
    for suffix in ("-wal", "-shm"):  # of a database that cannot be opened
        beside = target.with_name(target.name + suffix)
        if beside.exists():
            beside.rename(aside.with_name(aside.name + suffix))
    file.rename(target)
    sync(target)
    return [aside] if there else []


def _empty_write_ahead_log(path: Path) -> None:
    """Move everything into the file, as far as it can be opened; what is damaged is put aside as it is."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=5)) as plain:
        plain.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _put_keys(keys: Path, place: Place, staging: Path, told: Told) -> list[Path]:
    file = keys / "keys.db" if keys.is_dir() else keys
    staged = staging / "keys.db"
    shutil.copyfile(file, staged)
    sync(staged)
    if isinstance(place.keys.database, Path):
        return _put(staged, place.keys.database)
    database = open_database(place.keys.database)
    try:
        load(
            staged, database, KEYS_TABLES, lambda done, total: told(f"rows into {database.name}", done, total)
        )
    finally:
        database.close()
    return []


def _add_missing(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")) if source.is_dir() else ():
        other = target / path.relative_to(source)
        if path.is_file() and not other.exists():
            other.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, other)

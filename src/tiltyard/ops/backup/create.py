"""Makes a backup: the log as it is at one moment, manifests, settings and papers of erasure; never the keys of people.

::

    <backups>/2026-12-01T12.30.05.125Z-4c1f/log.db          events, seals, encrypted words; opens as any log does
                                           /tiltyard.toml
                                           /identities/…    manifests by digest
                                           /revocations/…
                                           /weights/…       only if asked for
                                           /manifest.json   written last

It is made in a directory whose name begins with `.partial-` and gets its name when it is whole and on the disk. What an interrupted
one left is thrown away by the next.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tiltyard import __version__
from tiltyard.errors import ConfigurationError, StorageFailed
from tiltyard.events.copying import copy_log, sync
from tiltyard.events.dialect import SqliteDatabase, open_database
from tiltyard.events.envelope import format_time
from tiltyard.events.master_key import MasterKey
from tiltyard.events.migrations import VERSION, facts_of, version_of
from tiltyard.events.seals import Sealer
from tiltyard.events.signing import Signer
from tiltyard.events.verification import Verification, VerifyReport
from tiltyard.ops.backup.manifest import (
    LOG,
    NAME,
    BackupManifest,
    KeptFile,
    NeededModel,
    digest_of_file,
    written,
)
from tiltyard.ops.backup.telling import Told

PARTIAL: Final = ".partial-"
LOCK: Final = ".lock"
KEPT_DIRECTORIES: Final = ("identities", "revocations")
"""Of the data directory, beside the log."""
NEVER: Final = ("keys.db", "master.key")


@dataclass(frozen=True)
class Weights:
    """A model of the settings."""

    needed: NeededModel
    path: Path | None
    """Where its file or directory is; copied if there is one."""


@dataclass(frozen=True)
class Source:
    """What is to be kept."""

    data: Path
    log: Path | str
    master_key: Path
    settings: Path | None = None
    """`tiltyard.toml`, where there is one."""
    models: Sequence[Weights] = field(default_factory=tuple)


@dataclass(frozen=True)
class Made:
    """A backup that is whole."""

    path: Path
    manifest: BackupManifest
    checked: VerifyReport


def create_backup(source: Source, backups: Path, *, reason: str, told: Told) -> Made:
    """Make a backup below `backups` and check every seal in it; servers may go on writing. Blocks.

    Raises `ConfigurationError` without a log or its master key, `StorageFailed` where a disk refuses (nothing is left then) and
    `LogTampered` where the copy's seals do not fit: a damaged log is no backup.
    """
    master = MasterKey.load_or_create(source.master_key, create=False)
    if master.role != "owner":
        raise ConfigurationError(
            f"{source.master_key} is an evaluation key; backups are made with the log's own"
        )
    with _alone(backups), _partial(backups) as made:
        facts = _copy(source.log, made / LOG, told)
        checked = check_log(made / LOG, master, told)
        checked.raise_if_faulty()
        for name in KEPT_DIRECTORIES:
            if (source.data / name).is_dir():
                _copy_tree(source.data / name, made / name)
        if source.settings is not None:
            _copy_file(source.settings, made / "tiltyard.toml")
        models = [_weights(one, made, told) for one in source.models]
        told("digests", 0, 0)
        files = tuple(_kept(made))
        newest = _newest(made / LOG)
        manifest = BackupManifest(
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            tiltyard=__version__,
            reason=reason,
            log_id=facts["log_id"],
            schema_version=int(facts[VERSION]),
            events=checked.events,
            head=None if checked.head is None else str(checked.head),
            newest_event=None if newest is None else format_time(newest),
            files=files,
            models=tuple(models),
        )
        (made / NAME).write_bytes(written(manifest, Signer(master.signing_seed).sign(manifest.bytes)))
        sync(made / NAME)
        now = datetime.now(UTC)
        named = f"{now:%Y-%m-%dT%H.%M.%S}.{now.microsecond // 1000:03}Z-{secrets.token_hex(2)}"
        made.rename(backups / named)
        sync(backups / named)
    return Made(backups / named, manifest, checked)


def check_log(path: Path, master: MasterKey, told: Told) -> VerifyReport:
    """Check every seal and event of a log in one file."""
    database = SqliteDatabase(path)
    try:
        return Verification(
            database,
            Sealer(master.seal_key),
            heads_to_meet=(),
            read_content=None,
            report=lambda done, total: told("checking events", done, total),
        ).run()
    finally:
        database.close()


def _copy(place: Path | str, target: Path, told: Told) -> Mapping[str, str]:
    if isinstance(place, Path) and not place.is_file():
        raise ConfigurationError(f"there is no log {place}; name the data directory with --data")
    database = open_database(place)
    try:
        facts = facts_of(database)
        if facts is None:
            raise ConfigurationError(f"{database.name} holds no log")
        version_of(facts, database.name)
        copy_log(database, target, lambda done, total: told(f"copying {database.name}", done, total))
    finally:
        database.close()
    return facts


@contextmanager
def _alone(backups: Path) -> Iterator[None]:
    """One backup at a time; throws away what an interrupted one left."""
    try:
        backups.mkdir(parents=True, exist_ok=True)
        lock = (backups / LOCK).open("a+")
    except OSError as error:
        raise StorageFailed(
            f"cannot write into {backups}: {error.strerror}; choose another place with --to"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another backup is being made in {backups}; wait for it") from None
        for left in backups.glob(PARTIAL + "*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextmanager
def _partial(backups: Path) -> Iterator[Path]:
    made = backups / f"{PARTIAL}{secrets.token_hex(4)}"
    try:
        made.mkdir(mode=0o700)
        yield made
    except OSError as error:
        raise StorageFailed(f"cannot write the backup into {backups}: {error.strerror or error}") from error
    finally:
        if made.exists():
            shutil.rmtree(made, ignore_errors=True)


def _copy_tree(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name not in NEVER:
            _copy_file(path, target / path.relative_to(source))


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    handle = os.open(target, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _weights(one: Weights, made: Path, told: Told) -> NeededModel:
    if one.path is None:
        return one.needed
    told(f"copying the weights of {one.needed.name}", 0, 0)
    target = made / "weights" / one.needed.name / one.path.name
    if one.path.is_dir():
        _copy_tree(one.path, target)
    else:
        _copy_file(one.path, target)
    return one.needed.model_copy(update={"kept": target.relative_to(made).as_posix()})


def _kept(made: Path) -> Iterator[KeptFile]:
    for path in sorted(made.rglob("*")):
        if path.is_file():
            size, digest = digest_of_file(path)
            yield KeptFile(path=path.relative_to(made).as_posix(), size_bytes=size, sha256=digest)


def _newest(log: Path) -> int | None:
    with closing(sqlite3.connect(log)) as plain:
        row = plain.execute("SELECT max(time_us) FROM events").fetchone()
    return None if row is None or row[0] is None else int(row[0])

"""Backups in a directory: which there are, and whether one is whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tiltyard.errors import LogTampered, NotFound, TiltyardError
from tiltyard.events.master_key import MasterKey
from tiltyard.events.signing import Signer
from tiltyard.events.verification import VerifyReport
from tiltyard.ops.backup.create import PARTIAL, check_log
from tiltyard.ops.backup.manifest import LOG, NAME, BackupManifest, digest_of_file, read_manifest
from tiltyard.ops.backup.telling import Told


@dataclass(frozen=True)
class Shelved:
    """One backup, or what looks like one."""

    path: Path
    manifest: BackupManifest | None
    problem: str = ""
    """Why its manifest cannot be read; empty: it can."""


def backups_in(directory: Path) -> list[Shelved]:
    """Every backup, the oldest first; nothing is hashed."""
    return list(_shelved(directory))


def _shelved(directory: Path) -> Iterator[Shelved]:
    for path in sorted(directory.glob("*/" + NAME)) if directory.is_dir() else ():
        if path.parent.name.startswith("."):
            continue
        try:
            yield Shelved(path.parent, read_manifest(path.parent))
        except TiltyardError as error:
            yield Shelved(path.parent, None, error.message)


def backup_named(name: str, directory: Path) -> Path:
    """A backup by its path, its name in the directory, or `latest`; raises `NotFound`."""
    if name == "latest":
        found = [one.path for one in backups_in(directory) if one.manifest is not None]
        if not found:
            raise NotFound(f"there is no backup in {directory}; `tiltyard backup create` makes one")
        return found[-1]
    for path in (Path(name), directory / name):
        if (path / NAME).is_file():
            return path
    known = ", ".join(one.path.name for one in backups_in(directory)[-5:]) or "none"
    raise NotFound(
        f"there is no backup {name!r}, neither as a path nor in {directory}; the newest there: {known}"
    )


def thin_out(directory: Path, *, log_id: str, keep: int) -> list[Path]:
    """Delete all but the newest `keep` backups of one log; what cannot be read, and other logs', stay. Returns what went."""
    found = [
        one.path
        for one in backups_in(directory)
        if one.manifest is not None and one.manifest.log_id == log_id
    ]
    gone = found[:-keep]
    for path in gone:
        # Renamed first: half of a backup must not look like one.
        doomed = path.with_name(PARTIAL + path.name)
        path.rename(doomed)
        shutil.rmtree(doomed)
    return gone


def check_backup(
    backup: Path, master: MasterKey | None, told: Told
) -> tuple[BackupManifest, VerifyReport | None]:
    """Check the signature, every file's digest, and (with the master key) every seal of the log in it.

    Raises `LogTampered` naming the first thing that is wrong.
    """
    manifest = read_manifest(
        backup, public_key=None if master is None else Signer(master.signing_seed).public_key
    )
    done = 0
    for file in manifest.files:
        path = backup / file.path
        if not path.is_file():
            raise LogTampered(f"{path} is missing; the backup is not whole")
        size, digest = digest_of_file(path)
        if (size, digest) != (file.size_bytes, file.sha256):
            raise LogTampered(
                f"{path} is not what was backed up: expected {file.sha256}, got {digest}; do not restore this backup"
            )
        done += size
        told(f"digests of {backup.name}, bytes", done, manifest.size_bytes)
    known = {file.path for file in manifest.files} | {NAME}
    for path in sorted(backup.rglob("*")):
        if path.is_file() and path.relative_to(backup).as_posix() not in known:
            raise LogTampered(f"{path} is not of this backup; take it away, and find out who put it there")
    if master is None:
        return manifest, None
    report = check_log(backup / LOG, master, told)
    report.raise_if_faulty()
    if (None if report.head is None else str(report.head)) != manifest.head:
        raise LogTampered(f"{backup / LOG} ends at {report.head}, its manifest says {manifest.head}")
    return manifest, report

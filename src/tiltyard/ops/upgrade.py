"""Brings a log forward to the version that this tiltyard reads: a backup, the missing steps, projections, and a check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tiltyard.errors import ConfigurationError
from tiltyard.events.dialect import open_database
from tiltyard.events.log import EventLog
from tiltyard.events.migrations import Migration, facts_of, migrate, version_of
from tiltyard.events.places import KeysPlace
from tiltyard.events.tables import SCHEMA_VERSION
from tiltyard.events.verification import VerifyReport
from tiltyard.ops.backup.create import Made, Source, create_backup
from tiltyard.ops.backup.telling import Told


@dataclass(frozen=True)
class Upgraded:
    """What was done."""

    before: int
    steps: tuple[Migration, ...]
    backup: Made | None
    report: VerifyReport


def log_version(place: Path | str) -> int | None:
    """The version of a log; `None` where there is no log yet. Raises `ConfigurationError` for a newer one."""
    if isinstance(place, Path) and not place.is_file():
        return None
    database = open_database(place)
    try:
        facts = facts_of(database)
        return None if facts is None else version_of(facts, database.name)
    finally:
        database.close()


def upgrade_log(
    source: Source,
    keys: KeysPlace,
    *,
    backups: Path | None,
    told: Told,
    say: Callable[[str], None],
) -> Upgraded | None:
    """Bring a log forward; `None` where there is nothing to do. No server may write meanwhile. Blocks.

    A backup goes into `backups` first; `None` makes none. Raises `ConfigurationError` for a log of a newer version,
    `StorageFailed` where a disk refuses, `LogTampered` where the log is damaged: then nothing was changed.
    """
    before = log_version(source.log)
    if before is None:
        raise ConfigurationError(f"there is no log {source.log}; nothing has to be brought forward")
    if before == SCHEMA_VERSION:
        return None
    made = None
    if backups is not None:
        say(f"the log is of version {before}; a backup first")
        made = create_backup(
            source, backups, reason=f"before the upgrade from version {before} to {SCHEMA_VERSION}", told=told
        )
        say(f"  {made.path}")
    database = open_database(source.log)
    try:
        steps = migrate(database, lambda step: say(f"  to version {step.to}: {step.what}"))
    finally:
        database.close()
    with EventLog.open(
        source.log,
        keys=keys,
        report=lambda done, total: told("making the projections anew, events", done, total),
    ) as log:
        report = log.verify(report=lambda done, total: told("checking events", done, total))
    report.raise_if_faulty()
    return Upgraded(before, tuple(steps), made, report)

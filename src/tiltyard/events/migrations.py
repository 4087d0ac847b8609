"""Brings a log of an earlier version forward, one step after the other, each in a transaction of its own.

What is sealed never changes: a step may add tables, columns, indexes and facts about the log, and what it adds to `events` is beside
the sealed columns. Projections need no step: a log tells the version of its projections, and another one is made anew from the events.
There is no way back but the backup that is made before (`tiltyard upgrade`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from tiltyard import __version__
from tiltyard.errors import ConfigurationError, StorageFailed
from tiltyard.events.dialect import Database
from tiltyard.events.tables import PROJECTIONS_VERSION, SCHEMA_VERSION, key_uses, log_info, log_metadata

VERSION = "schema_version"
PROJECTIONS_FACT = "projections_version"


@dataclass(frozen=True)
class Migration:
    """One step."""

    to: int
    what: str
    """Shown while it runs."""
    apply: Callable[[Connection], None]


def _tell_projections_apart(connection: Connection) -> None:
    """Version 1 grew projections without saying so; a log that lacks the fact gets all of them anew when it is opened."""
    log_metadata.create_all(connection, tables=[key_uses])


MIGRATIONS = (Migration(2, "say which projections the log has", _tell_projections_apart),)
"""In order; `to` is the version that a log has after it."""


def facts_of(database: Database) -> dict[str, str] | None:
    """What a log says of itself; `None` where there is none."""
    if not database.has(log_info):
        return None
    with database.reading() as connection:
        return facts_in(connection) or None


def facts_in(connection: Connection) -> dict[str, str]:
    """The same, within a transaction."""
    return {row.name: row.value for row in connection.execute(select(log_info.c.name, log_info.c.value))}


def version_of(facts: Mapping[str, str], name: str) -> int:
    """The version of a log's schema; raises `ConfigurationError` where there is no reading it."""
    told = facts.get(VERSION, "")
    if not (told.isascii() and told.isdecimal()):
        raise ConfigurationError(f"{name} does not say which version of a log it is ({told[:40]!r})")
    version = int(told)
    if version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"{name} is a log of version {version}, made by a newer tiltyard; this one ({__version__}) reads version "
            f"{SCHEMA_VERSION}. A log never goes back: install the newer tiltyard again, or restore the backup that was made "
            "before the upgrade (`tiltyard backup list`, `tiltyard restore`)"
        )
    return version


def refuse_older(version: int, name: str) -> None:
    """Raise `ConfigurationError` for a version that has to be brought forward first."""
    if version < SCHEMA_VERSION:
        raise ConfigurationError(
            f"{name} is a log of version {version}; this tiltyard ({__version__}) reads version {SCHEMA_VERSION}. "
            "Bring it forward with `tiltyard upgrade`, which makes a backup first"
        )


def migrate(database: Database, report: Callable[[Migration], None] = lambda _: None) -> list[Migration]:
    """Take every step that is missing; returns those that were taken. Blocks.

    Raises `ConfigurationError` for a log of a newer version, `StorageFailed` where the database refuses; a step that fails
    leaves the log as the step before left it.
    """
    done = []
    for step in MIGRATIONS:
        with database.writing() as connection:
            facts = facts_in(connection)
            if version_of(facts, database.name) >= step.to:
                continue  # or another process was quicker
            report(step)
            step.apply(connection)
            set_fact(connection, VERSION, str(step.to))
        done.append(step)
    return done


def set_fact(connection: Connection, name: str, value: str) -> None:
    """Write one of the things that a log says of itself."""
    connection.execute(delete(log_info).where(log_info.c.name == name))
    connection.execute(insert(log_info), [{"name": name, "value": value}])


_VERSIONS = "SELECT name, value FROM log_info WHERE name IN ('schema_version', 'projections_version')"
"""As it is sent, since every append asks: 37 µs; put together by SQLAlchemy each time it took 140."""
_CURRENT = {VERSION: str(SCHEMA_VERSION), PROJECTIONS_FACT: str(PROJECTIONS_VERSION)}


def current_facts() -> dict[str, str]:
    """What a log of this version says of its shape."""
    return dict(_CURRENT)


def refuse_moved(connection: Connection, name: str) -> None:
    """Raise `StorageFailed` where another process has brought the log, or its projections, to another version since we opened it.

    Asked with the write lock held: an older process would append without filling what the newer one reads.
    """
    found = {row[0]: row[1] for row in connection.exec_driver_sql(_VERSIONS)}
    if found != _CURRENT:
        raise StorageFailed(
            f"{name} was brought to another version while this process had it open (schema {found.get(VERSION)}, projections "
            f"{found.get(PROJECTIONS_FACT)}; this tiltyard writes {SCHEMA_VERSION} and {PROJECTIONS_VERSION}). Nothing was "
            "acknowledged: start this process again with the newer tiltyard"
        )

"""Makes the tables of a new log and of its keys, and refuses what this version cannot read."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import insert, select

from tiltyard.errors import ConfigurationError
from tiltyard.events.dialect import Database
from tiltyard.events.ids import new_id
from tiltyard.events.master_key import MasterKey
from tiltyard.events.migrations import (
    PROJECTIONS_FACT,
    current_facts,
    facts_of,
    refuse_older,
    version_of,
)
from tiltyard.events.tables import (
    PROJECTIONS,
    PROJECTIONS_VERSION,
    key_info,
    keys_metadata,
    log_info,
    log_metadata,
)

APPEND_ONLY = ("events", "seals")


def prepare_log(database: Database) -> tuple[str, bool]:
    """Make the log's tables if there are none; return the log's id, and whether its projections have to be made anew.

    Raises `ConfigurationError` for a log of another version, saying what to do.
    """
    facts = facts_of(database)
    if facts is None:
        database.create(log_metadata, append_only=APPEND_ONLY)
        with database.writing() as connection:
            # Of several processes that start together the first one names the log.
            if connection.execute(select(log_info)).first() is None:
                rows = {"log_id": new_id(), **current_facts()}
                connection.execute(
                    insert(log_info), [{"name": name, "value": value} for name, value in rows.items()]
                )
        facts = facts_of(database) or {}
    refuse_older(version_of(facts, database.name), database.name)
    projections = facts.get(PROJECTIONS_FACT, "0")
    if not projections.isdecimal() or int(projections) > PROJECTIONS_VERSION:
        raise ConfigurationError(
            f"{database.name} has projections of version {projections[:40]}, made by a newer tiltyard; this one makes version "
            f"{PROJECTIONS_VERSION}. Install the newer one again"
        )
    stale = int(projections) < PROJECTIONS_VERSION or not database.has(*PROJECTIONS)
    return facts["log_id"], stale


def prepare_keys(database: Database, master: MasterKey, key_file: Path) -> None:
    """Make the keys' tables if there are none; raises `ConfigurationError` under another master key."""
    if not database.has(key_info):
        database.create(keys_metadata)
    with database.reading() as connection:
        fingerprint = connection.execute(_FINGERPRINT).scalar()
    if fingerprint is None:
        with database.writing() as connection:
            fingerprint = connection.execute(_FINGERPRINT).scalar()
            if fingerprint is None:
                fingerprint = master.fingerprint
                row = {"name": "master_fingerprint", "value": fingerprint}
                connection.execute(insert(key_info), [row])
    if fingerprint != master.fingerprint:
        raise ConfigurationError(
            f"{key_file} is not the master key of {database.name} "
            f"(fingerprint {master.fingerprint.hex()}, expected {fingerprint.hex()}); restore the right one"
        )


_FINGERPRINT = select(key_info.c.value).where(key_info.c.name == "master_fingerprint")

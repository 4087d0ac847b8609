"""Makes the tables of a new log and of its keys, and refuses what this version cannot read."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import insert, select

from tiltyard.errors import ConfigurationError
from tiltyard.events.dialect import Database
from tiltyard.events.ids import new_id
from tiltyard.events.master_key import MasterKey
from tiltyard.events.tables import (
    PROJECTIONS,
    SCHEMA_VERSION,
    key_info,
    keys_metadata,
    log_info,
    log_metadata,
)


def prepare_log(database: Database) -> tuple[str, bool]:
    """Make the log's tables if there are none; return the log's id, and whether projections that it lacked have to be filled."""
    facts, lacks_projections = _facts(database), False
    if facts is None:
        database.create(log_metadata, append_only=("events", "seals"))
        with database.writing() as connection:
            # Of several processes that start together the first one names the log.
            if connection.execute(select(log_info)).first() is None:
                rows = [
                    {"name": "log_id", "value": new_id()},
                    {"name": "schema_version", "value": str(SCHEMA_VERSION)},
                ]
                connection.execute(insert(log_info), rows)
        facts = _facts(database)
    elif not database.has(*PROJECTIONS):  # a log of an earlier version
        database.create(log_metadata, append_only=("events", "seals"))
        lacks_projections = True
    if facts is None or facts.get("schema_version") != str(SCHEMA_VERSION):
        found = None if facts is None else facts.get("schema_version")
        raise ConfigurationError(
            f"{database.name} is a log of version {found}; this tiltyard reads version {SCHEMA_VERSION}"
        )
    return facts["log_id"], lacks_projections


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


def _facts(database: Database) -> dict[str, str] | None:
    if not database.has(log_info):
        return None
    with database.reading() as connection:
        rows = connection.execute(select(log_info.c.name, log_info.c.value)).all()
    return {row.name: row.value for row in rows} or None

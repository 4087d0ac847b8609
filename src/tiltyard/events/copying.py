"""Copies a log (or keys) while others write it: always into one SQLite file, which any tiltyard can open, and from it again.

SQLite's own backup interface copies pages under one read transaction; a PostgreSQL log is read row by row in one REPEATABLE READ
transaction, without its projections, which are made anew where the file is opened. `pg_dump` has to be of the server's version or newer, has
to be installed, and writes what only PostgreSQL reads.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, Table, func, insert, select

from tiltyard.errors import ConfigurationError, StorageFailed
from tiltyard.events.dialect import Database, SqliteDatabase, reading_uri
from tiltyard.events.migrations import PROJECTIONS_FACT
from tiltyard.events.tables import (
    contents,
    events,
    heads,
    key_info,
    key_uses,
    keys_metadata,
    log_info,
    log_metadata,
    seals,
    subject_keys,
)

PAGES = 1024
"""Copied between two reports."""
ROWS = 1000
LOG_TABLES: tuple[Table, ...] = (log_info, events, seals, contents, key_uses)
KEYS_TABLES: tuple[Table, ...] = (key_info, subject_keys, heads)
APPEND_ONLY = ("events", "seals")

Report = Callable[[int, int], None]
"""Hears of `(done, total)`: pages of SQLite, rows of PostgreSQL."""


def _unheard(_done: int, _total: int) -> None:
    """Nobody listens."""


def copy_log(source: Database, target: Path, report: Report = _unheard) -> None:
    """Copy a log as it is at one moment into a new SQLite file; writers go on meanwhile.

    Raises `StorageFailed` where a disk refuses, `ConfigurationError` where there is no log.
    """
    if not source.has(log_info):
        raise ConfigurationError(f"{source.name} holds no log")
    if isinstance(source, SqliteDatabase):
        _copy_pages(source.path, target, report)
    else:
        _copy_rows(source, target, LOG_TABLES, report)


def copy_keys(source: Database, target: Path, report: Report = _unheard) -> None:
    """Copy the keys of data subjects into a new SQLite file, under the same master key."""
    if not source.has(subject_keys):
        raise ConfigurationError(f"{source.name} holds no keys")
    if isinstance(source, SqliteDatabase):
        _copy_pages(source.path, target, report)
    else:
        _copy_rows(source, target, KEYS_TABLES, report)


def load(file: Path, target: Database, tables: Sequence[Table], report: Report = _unheard) -> None:
    """Write a log (`LOG_TABLES`) or keys (`KEYS_TABLES`) out of a SQLite file into an empty database, in one transaction.

    Raises `ConfigurationError` where there is something already.
    """
    first = tables[0]
    if target.has(first):
        with target.reading() as connection:
            if connection.execute(select(first)).first() is not None:
                raise ConfigurationError(
                    f"{target.name} is not empty; make another database and name it with TILTYARD_LOG or TILTYARD_KEYS"
                )
    source = SqliteDatabase(file)
    target.create(_metadata(tables), append_only=APPEND_ONLY if tables is LOG_TABLES else ())
    try:
        with source.reading() as reading, target.writing() as writing:
            if writing.execute(select(first)).first() is not None:
                raise ConfigurationError(f"{target.name} was filled by another process meanwhile")
            _pour(reading, writing, tables, report)
    finally:
        source.close()


def _copy_pages(source: Path, target: Path, report: Report) -> None:
    if not source.is_file():
        raise ConfigurationError(f"there is no {source}")
    try:
        with (
            closing(sqlite3.connect(reading_uri(source), uri=True, timeout=30)) as read,
            closing(sqlite3.connect(target)) as write,
        ):
            # Held, the snapshot stays what it is; else SQLite begins anew whenever somebody commits in between.
            read.execute("PRAGMA query_only=ON")
            read.execute("BEGIN")
            read.execute("SELECT count(*) FROM sqlite_master").fetchone()
            read.backup(
                write, pages=PAGES, sleep=0, progress=lambda _s, left, total: report(total - left, total)
            )
            # One file that is whole by itself, without a log beside it.
            write.execute("PRAGMA journal_mode=DELETE").fetchone()
    except sqlite3.Error as error:
        raise StorageFailed(f"cannot copy {source} to {target}: {error}") from error
    except OSError as error:
        raise StorageFailed(f"cannot copy {source} to {target}: {error.strerror}") from error
    sync(target)


def _copy_rows(source: Database, target: Path, tables: Sequence[Table], report: Report) -> None:
    file = SqliteDatabase(target)
    try:
        file.create(_metadata(tables), append_only=APPEND_ONLY if tables is LOG_TABLES else ())
        with source.reading() as reading, file.writing() as writing:
            _pour(reading, writing, tables, report)
    finally:
        file.close()
    with closing(sqlite3.connect(target)) as plain:
        plain.execute("PRAGMA journal_mode=DELETE").fetchone()
    sync(target)


def _metadata(tables: Sequence[Table]) -> MetaData:
    return log_metadata if tables is LOG_TABLES else keys_metadata


def _pour(reading: Connection, writing: Connection, tables: Sequence[Table], report: Report) -> None:
    total = sum(reading.execute(select(func.count()).select_from(table)).scalar_one() for table in tables)
    done = 0
    for table in tables:
        for rows in _pages(reading, table):
            kept = [row for row in rows if row.get("name") != PROJECTIONS_FACT]
            if kept:
                writing.execute(insert(table), kept)
            done += len(rows)
            report(done, total)


def _pages(reading: Connection, table: Table) -> Iterator[list[dict[str, Any]]]:
    key = next(iter(table.primary_key.columns))
    last: object = None
    while True:
        query = select(table).order_by(key).limit(ROWS)
        if last is not None:
            query = query.where(key > last)
        rows = [dict(row) for row in reading.execute(query).mappings()]
        if rows:
            yield rows
        if len(rows) < ROWS:
            return
        last = rows[-1][key.name]


def sync(path: Path) -> None:
    """Bring a file, and its name in the directory, to the disk; raises `StorageFailed`."""
    try:
        for one in (path, path.parent):
            handle = os.open(one, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    except OSError as error:
        raise StorageFailed(f"cannot bring {path} to the disk: {error.strerror}") from error

"""The two databases that can hold a log, and everything in which they differ.

SQLite: write-ahead log, `synchronous=FULL` (a commit returns after fsync), one writer at a time by
`BEGIN IMMEDIATE`. PostgreSQL: one writer at a time by a transaction-scoped advisory lock; durable as long as
the server runs with its defaults `fsync=on` and `synchronous_commit=on`.
"""

from __future__ import annotations

import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, cast
from urllib.parse import quote

from sqlalchemy import Connection, Engine, MetaData, Table, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError

from tiltyard.errors import ConfigurationError, StorageFailed

BUSY_TIMEOUT_S = 30.0
_ADVISORY_LOCK = 0x71175A2D
"""Any constant that nobody else in the database uses."""
_WRITES = "tiltyard_writes"


class Database(ABC):
    """A database that lets one writer in at a time and whose commits are durable."""

    _writing_options: ClassVar[Mapping[str, Any]] = {}
    _reading_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        """Shown in messages: the path, or the URL without its password."""
        self.engine = engine

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that is the only writer until it ends; raises `StorageFailed` on refusal."""
        try:
            with self.engine.connect() as plain:
                connection = plain.execution_options(**self._writing_options)
                with connection.begin():
                    self._lock(connection)
                    yield connection
        except SQLAlchemyError as error:
            raise self.storage_failed(error) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that sees one state of the database throughout."""
        try:
            with self.engine.connect() as plain:
                connection = plain.execution_options(**self._reading_options)
                with connection.begin():
                    yield connection
        except SQLAlchemyError as error:
            raise self.storage_failed(error) from error

    def has(self, *tables: Table) -> bool:
        """Tell whether tables are there, all of them."""
        with self.reading() as connection:
            found = inspect(connection)
            return all(found.has_table(table.name) for table in tables)

    def close(self) -> None:
        """Give back every connection."""
        self.engine.dispose()

    def storage_failed(self, error: SQLAlchemyError) -> StorageFailed:
        """Turn a driver's refusal into an error that says what to do."""
        cause = getattr(error, "orig", None) or error
        reason = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
        return StorageFailed(f"{self.name} refused: {reason}. {self._advice(reason)}")

    @abstractmethod
    def refuse_to_be_made(self) -> None:
        """Raise `ConfigurationError` where opening would make an empty database that nobody asked for."""

    @abstractmethod
    def sweep(self, table: Table) -> None:
        """Take away what an update of the table has left of the old values."""

    @abstractmethod
    def settle(self) -> None:
        """The same for whatever was overwritten, as far as that is cheap."""

    @abstractmethod
    def create(self, metadata: MetaData, append_only: tuple[str, ...] = ()) -> None:
        """Create what is not there yet; tables named in `append_only` refuse UPDATE and DELETE."""

    @abstractmethod
    def _lock(self, connection: Connection) -> None:
        """Wait until this transaction is the only writer."""

    @abstractmethod
    def _advice(self, reason: str) -> str:
        """Say what to do about a refusal."""


class SqliteDatabase(Database):
    """A SQLite file."""

    _writing_options = MappingProxyType({_WRITES: True})

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        engine = create_engine(
            f"sqlite+pysqlite:///{reading_uri(path)}&uri=true" if read_only else f"sqlite+pysqlite:///{path}",
            connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
        )
        event.listen(engine, "connect", _configure_sqlite_reader if read_only else _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        super().__init__(str(path), engine)

    def create(self, metadata: MetaData, append_only: tuple[str, ...] = ()) -> None:
        """Create file, tables and triggers; safe when several processes do it at once."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFailed(f"cannot make the directory {self.path.parent}: {error}") from error
        self._enter_wal()
        with self.writing() as connection:
            metadata.create_all(connection)
            for table in append_only:
                for verb in ("UPDATE", "DELETE"):
                    connection.exec_driver_sql(
                        f"CREATE TRIGGER IF NOT EXISTS {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                    )
        # SQLite syncs the directory for its journals, not for the database file itself.
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def refuse_to_be_made(self) -> None:
        """Raise `ConfigurationError` where there is no file."""
        if not self.path.is_file():
            raise ConfigurationError(
                f"there is no {self.path}; name the data directory with --data or TILTYARD_DATA_DIR, "
                "or start tiltyard once to make it"
            )

    def sweep(self, table: Table) -> None:
        """Do as `settle` does: that is all there is to do."""
        self.settle()

    def settle(self) -> None:
        """Move everything into the database file (overwritten values are zeros there) and empty the write-ahead log."""
        try:
            with self._raw() as raw:
                raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except (sqlite3.Error, SQLAlchemyError) as error:
            raise StorageFailed(f"cannot empty the write-ahead log of {self.path}: {error}") from error

    def has(self, *tables: Table) -> bool:
        """Tell whether tables are there, without making the file."""
        return self.path.exists() and super().has(*tables)

    @contextmanager
    def _raw(self) -> Iterator[sqlite3.Connection]:
        # Pragmas about the write-ahead log do not work inside a transaction.
        with self.engine.connect() as connection:
            yield cast("sqlite3.Connection", connection.connection.driver_connection)

    def _enter_wal(self) -> None:
        # Changing the mode needs a lock for which SQLite does not wait, so two openers may collide.
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                with self._raw() as raw:
                    mode = raw.execute("PRAGMA journal_mode=WAL").fetchone()[0]
                if mode != "wal":
                    raise ConfigurationError(
                        f"{self.path} cannot use a write-ahead log (journal mode {mode}); "
                        "put the data directory on a local file system"
                    )
                return
            except (sqlite3.OperationalError, OperationalError) as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise StorageFailed(f"cannot open {self.path}: {error}") from error
                time.sleep(0.01)
            except (sqlite3.DatabaseError, SQLAlchemyError) as error:
                raise StorageFailed(f"cannot open {self.path}: {error}") from error

    def _lock(self, connection: Connection) -> None:
        """Nothing to do: `BEGIN IMMEDIATE` has waited already."""

    def _advice(self, reason: str) -> str:
        if "full" in reason:
            return "Nothing was acknowledged; free space on that file system and try again."
        if "locked" in reason:
            return f"Nothing was acknowledged: another process held it for {BUSY_TIMEOUT_S:.0f} s."
        if "readonly" in reason:
            return "Nothing was acknowledged; make the file and its directory writable."
        return "Nothing was acknowledged."


class PostgresDatabase(Database):
    """A PostgreSQL database reached through psycopg."""

    _reading_options = MappingProxyType({"isolation_level": "REPEATABLE READ"})

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        if parsed.drivername in {"postgresql", "postgres"}:
            parsed = parsed.set(drivername="postgresql+psycopg")
        try:
            engine = create_engine(parsed, pool_pre_ping=True)
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"{parsed.render_as_string(hide_password=True)} needs the package {error.name}; "
                "install tiltyard[postgres]"
            ) from error
        super().__init__(parsed.render_as_string(hide_password=True), engine)

    def refuse_to_be_made(self) -> None:
        """Nothing to do: a server makes no database by being asked for one."""

    def sweep(self, table: Table) -> None:
        """Vacuum the table: pages are rewritten without the old rows."""
        try:
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql(f"VACUUM (FULL) {table.name}")
        except SQLAlchemyError as error:
            raise self.storage_failed(error) from error

    def settle(self) -> None:
        """Nothing: what an update leaves goes with the server's own vacuum."""

    def create(self, metadata: MetaData, append_only: tuple[str, ...] = ()) -> None:
        """Create tables and triggers; safe when several processes do it at once."""
        with self.writing() as connection:
            metadata.create_all(connection)
            connection.exec_driver_sql(
                "CREATE OR REPLACE FUNCTION tiltyard_append_only() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' is append-only'; END $$"
            )
            for table in append_only:
                connection.exec_driver_sql(
                    f"CREATE OR REPLACE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE "
                    f"ON {table} EXECUTE FUNCTION tiltyard_append_only()"
                )

    def _lock(self, connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)").bindparams(lock=_ADVISORY_LOCK))

    def _advice(self, reason: str) -> str:
        if "lock timeout" in reason:
            return f"Nothing was acknowledged: another process held the log for {BUSY_TIMEOUT_S:.0f} s."
        return "Nothing was acknowledged as stored."


def open_database(url: str | Path, *, read_only: bool = False) -> Database:
    """Choose the database by URL; a path (or `sqlite:///path`) is a SQLite file, of which `read_only` changes nothing.

    Raises `ConfigurationError` for a URL of another kind.
    """
    if isinstance(url, Path):
        return SqliteDatabase(url, read_only=read_only)
    if "://" not in url:
        return SqliteDatabase(Path(url), read_only=read_only)
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigurationError(f"the log's address {url!r} is not a URL: {error}") from error
    kind = parsed.drivername.partition("+")[0]
    if kind == "sqlite" and parsed.database and parsed.database != ":memory:":
        return SqliteDatabase(Path(parsed.database), read_only=read_only)
    if kind in {"postgresql", "postgres"}:
        return PostgresDatabase(url)
    raise ConfigurationError(
        f"the log's address begins with {parsed.drivername!r}; write a path, sqlite:///path or postgresql://…"
    )


def reading_uri(path: Path) -> str:
    """Address of a SQLite file for somebody who only reads, which leaves the directory as it is.

    Without a write-ahead log beside it a reader would make one, and only one that may write takes it away again.
    """
    alone = not path.with_name(path.name + "-wal").exists() and os.access(path.parent, os.W_OK)
    mode = "rw" if alone and os.access(path, os.W_OK) else "ro"
    return f"file:{quote(str(path.absolute()))}?mode={mode}"


def _configure_sqlite_reader(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only=ON")


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # The driver begins no transaction on its own: `_begin_sqlite` says which kind.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

"""The log: its database, its version, its seals, its keys; read, never written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from sqlalchemy import select

from tiltyard.errors import ConfigurationError, StorageFailed, TiltyardError
from tiltyard.events.dialect import Database, PostgresDatabase, SqliteDatabase, open_database
from tiltyard.events.master_key import MasterKey
from tiltyard.events.migrations import PROJECTIONS_FACT, facts_of, refuse_older, version_of
from tiltyard.events.places import KeysPlace
from tiltyard.events.seals import Seal, Sealer
from tiltyard.events.tables import PROJECTIONS_VERSION, events, heads, key_info, seals
from tiltyard.events.verification import Head, Verification
from tiltyard.ops.doctor.finding import Finding

QUICK_SEALS: Final = 200
"""The newest ones, which a quick look checks."""
QUICK_BYTES: Final = 64 << 20
"""SQLite files up to this size are checked page by page without --deep."""
BACKWARDS_US: Final = 1_000_000
RESTORE: Final = (
    "tiltyard backup list, then tiltyard restore NAME --replace (the log that is here is put aside)"
)

Told = Callable[[int, int], None]


class LogLook:
    """One look at a log and its keys; `newest_event_us` and `facts` are there after `findings`."""

    def __init__(self, place: Path | str, keys: KeysPlace, *, deep: bool, told: Told) -> None:
        self.newest_event_us: int | None = None
        self.is_there = False
        self._place, self._keys, self._deep, self._told = place, keys, deep, told

    def findings(self) -> Iterator[Finding]:
        """Database, version, keys and seals."""
        if isinstance(self._place, Path) and not self._place.exists():
            yield Finding("log", "skipped", f"there is no {self._place} yet; `tiltyard up` makes it")
            return
        self.is_there = True
        try:
            database = open_database(self._place, read_only=True)
        except TiltyardError as error:
            yield Finding("log", "fail", error.message, "write TILTYARD_LOG as a path or postgresql://…")
            return
        try:
            yield from self._look(database)
        except StorageFailed as error:
            told = error.message.removesuffix(" Nothing was acknowledged.")
            if "malformed" in told or "not a database" in told:
                told = f"{database.name} is damaged: {told.removeprefix(f'{database.name} refused: ')}"
            yield Finding("database", "fail", told, self._mend())
        finally:
            database.close()

    def _look(self, database: Database) -> Iterator[Finding]:
        facts = facts_of(database)
        yield from (
            _sqlite(database, deep=self._deep)
            if isinstance(database, SqliteDatabase)
            else _postgres(database)
        )
        if facts is None:
            yield Finding("log", "skipped", f"{database.name} holds no log yet; `tiltyard up` makes it")
            return
        try:
            version = version_of(facts, database.name)
        except ConfigurationError as error:
            yield Finding("schema", "fail", error.message, "pip install the newer tiltyard")
            return
        try:
            refuse_older(version, database.name)
            yield Finding("schema", "ok", f"version {version}")
        except ConfigurationError as error:
            yield Finding("schema", "warn", error.message, "tiltyard upgrade")
        if facts.get(PROJECTIONS_FACT, str(PROJECTIONS_VERSION)) != str(PROJECTIONS_VERSION):
            yield Finding(
                "projections",
                "warn",
                "of another version; the next start makes them anew",
                "tiltyard events rebuild",
            )
        yield from self._times(database)
        yield from self._sealed(database, facts["log_id"])

    def _times(self, database: Database) -> Iterator[Finding]:
        query = select(events.c.sequence, events.c.time_us).order_by(events.c.sequence.desc()).limit(1000)
        with database.reading() as connection:
            rows = connection.execute(query).all()
        if not rows:
            return
        self.newest_event_us = max(row.time_us for row in rows)
        jumps = [
            (earlier, later)
            for later, earlier in pairwise(rows)
            if earlier.time_us - later.time_us > BACKWARDS_US
        ]
        if jumps:
            earlier, later = jumps[0]
            yield Finding(
                "clock jumps", "warn",
                f"event {later.sequence} is {(earlier.time_us - later.time_us) / 1e6:,.0f} s before the one in front of it: the clock was "
                "set back, or gateways' clocks differ",
                "keep every gateway's clock right (chrony, timedatectl set-ntp true)",
            )  # fmt: skip
        else:
            yield Finding("clock jumps", "ok", f"none in the newest {len(rows):,} events")

    def _sealed(self, database: Database, log_id: str) -> Iterator[Finding]:
        try:
            master = MasterKey.load_or_create(self._keys.master_key, create=False)
        except ConfigurationError as error:
            yield Finding(
                "seals", "skipped", f"without the master key nobody can check them: {error.message}"
            )
            return
        head, finding = self._key_database(master, log_id)
        yield finding
        sealer = Sealer(master.seal_key)
        after = None if self._deep else _seal_before_the_newest(database)
        if head is not None and after is not None and head.number <= after.number:
            with database.reading() as connection:
                held = connection.execute(select(seals.c.hash).where(seals.c.number == head.number)).scalar()
            if held != head.hash:
                yield Finding(
                    "seals",
                    "fail",
                    f"the log does not hold seal {head.number}, which the keys remember",
                    self._mend(),
                )
                return
            head = None
        report = Verification(
            database,
            sealer,
            heads_to_meet=() if head is None else (head,),
            read_content=None,
            report=self._told,
            after=after,
        ).run()
        if report.fault is not None:
            short = "cut short" in report.fault.message
            yield Finding(
                "seals", "fail", report.fault.message,
                "tiltyard events verify --restored, if it was restored from a backup; else " + RESTORE if short else self._mend(),
            )  # fmt: skip
        elif self._deep:
            told = f"all {report.events:,} events under {report.seals:,} seals; `tiltyard events verify --content` reads the words too"
            yield Finding("seals", "ok", told)
        else:
            yield Finding(
                "seals", "ok", f"the newest {report.events:,} events, up to seal {report.seals:,}; --deep checks all"
            )  # fmt: skip

    def _key_database(self, master: MasterKey, log_id: str) -> tuple[Head | None, Finding]:
        place = self._keys.database
        if isinstance(place, Path) and not place.exists():
            return None, Finding(
                "keys", "warn", f"there is no {place}: words written so far cannot be read (erased, or not restored)",
                "tiltyard restore NAME --replace --keys DIR, if you have a copy of the keys",
            )  # fmt: skip
        database = None
        try:
            database = open_database(place, read_only=True)
            if not database.has(key_info):
                return None, Finding("keys", "warn", f"{database.name} holds no keys yet")
            with database.reading() as connection:
                wanted = key_info.c.name == "master_fingerprint"
                fingerprint = connection.execute(select(key_info.c.value).where(wanted)).scalar()
                row = connection.execute(select(heads).where(heads.c.log_id == log_id)).first()
        except TiltyardError as error:
            return None, Finding(
                "keys",
                "fail",
                error.message,
                f"bring {place} back from its own copy, or see why it cannot be reached",
            )
        finally:
            if database is not None:
                database.close()
        if fingerprint != master.fingerprint:
            return None, Finding(
                "keys", "fail", f"{self._keys.master_key} is not the master key of {database.name}", "bring the right one back"
            )  # fmt: skip
        return (None if row is None else Head(row.number, row.hash)), Finding(
            "keys", "ok", f"{database.name} fits the master key"
        )

    def _mend(self) -> str:
        return (
            RESTORE
            if isinstance(self._place, Path)
            else "restore the database, or tiltyard restore NAME into an empty one"
        )


def _sqlite(database: SqliteDatabase, *, deep: bool) -> Iterator[Finding]:
    size = database.path.stat().st_size
    wal = database.path.with_name(database.path.name + "-wal")
    wal_mb = wal.stat().st_size / 1e6 if wal.exists() else 0.0
    with database.reading() as connection:
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        looked = deep or size <= QUICK_BYTES
        pragma = "integrity_check" if deep else "quick_check"
        faults = (
            [str(row[0]) for row in connection.exec_driver_sql(f"PRAGMA {pragma}(5)")] if looked else ["ok"]
        )
    told = f"{database.path}: {size / 1e6:,.1f} MB, write-ahead log {wal_mb:,.1f} MB"
    if faults != ["ok"]:
        yield Finding("database", "fail", f"{database.path} is damaged: {faults[0]}", RESTORE)
    elif mode != "wal":
        yield Finding(
            "database", "warn", f"{told}; journal mode {mode}: readers and writers wait for each other until the next start",
            "put the data directory on a local file system, and start tiltyard once",
        )  # fmt: skip
    elif wal_mb > max(256.0, size / 1e6):
        yield Finding(
            "database", "warn", f"{told}: something reads it without end", "end long-running readers of it"
        )
    else:
        yield Finding("database", "ok", told + ("" if looked else "; --deep checks its pages"))


def _postgres(database: Database) -> Iterator[Finding]:
    if not isinstance(database, PostgresDatabase):
        return
    with database.reading() as connection:

        def shown(name: str) -> str:
            return str(connection.exec_driver_sql(f"SHOW {name}").scalar())

        version, most = shown("server_version"), int(shown("max_connections"))
        used = int(connection.exec_driver_sql("SELECT count(*) FROM pg_stat_activity").scalar() or 0)
        unsafe = [
            f"{name} = off"
            for name in ("fsync", "synchronous_commit", "full_page_writes")
            if shown(name) == "off"
        ]
    told = f"{database.name}: PostgreSQL {version}, {used} of {most} connections"
    if unsafe:
        yield Finding(
            "database", "fail", f"{told}; {', '.join(unsafe)}: what is acknowledged can be lost", "set them on in postgresql.conf"
        )  # fmt: skip
    elif used > 0.8 * most:
        yield Finding("database", "warn", told, "raise max_connections, or put a pooler in front")
    else:
        yield Finding("database", "ok", told)


def _seal_before_the_newest(database: Database) -> Seal | None:
    query = select(seals).order_by(seals.c.number.desc()).offset(QUICK_SEALS).limit(1)
    with database.reading() as connection:
        row = connection.execute(query).mappings().first()
    return None if row is None else Seal(**row)

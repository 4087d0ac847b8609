from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from real_postgres import RealPostgres
from tiltyard.events.log import EventLog
from tiltyard.events.places import KeysPlace

OpenLog = Callable[..., EventLog]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of a log runs on both databases; one that looks at files itself (`tmp_path`) on SQLite only."""
    if "storage" in metafunc.fixturenames and "storage" not in _said(metafunc):
        own = metafunc.function.__code__.co_varnames[: metafunc.function.__code__.co_argcount]
        metafunc.parametrize("storage", ["sqlite"] if "tmp_path" in own else ["sqlite", "postgres"])


def _said(metafunc: pytest.Metafunc) -> set[str]:
    """What the test's own marks parametrize."""
    return {str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize")}


@pytest.fixture
def open_log(storage: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OpenLog]:
    """Opens one log (`tmp_path/log.db`, or a database of a real server), as often as wanted; closes everything afterwards."""
    opened: list[EventLog] = []
    if storage == "postgres":
        server: RealPostgres = request.getfixturevalue("postgres")
        urls = server.database(), server.database()

    def open_one(data: Path = tmp_path) -> EventLog:
        if storage == "postgres":
            opened.append(EventLog.open(urls[0], keys=KeysPlace(urls[1], data / "master.key")))
        else:
            opened.append(EventLog.open(data / "log.db", keys=data / "keys.db"))
        return opened[-1]

    yield open_one
    for log in opened:
        log.close()


@pytest.fixture
def log(open_log: OpenLog) -> EventLog:
    return open_log()

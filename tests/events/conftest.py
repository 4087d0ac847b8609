from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tiltyard.events.log import EventLog

OpenLog = Callable[..., EventLog]


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[OpenLog]:
    """Opens `tmp_path/log.db`, as often as wanted; closes everything afterwards."""
    opened: list[EventLog] = []

    def open_one(data: Path = tmp_path) -> EventLog:
        opened.append(EventLog.open(data / "log.db", keys=data / "keys.db"))
        return opened[-1]

    yield open_one
    for log in opened:
        log.close()


@pytest.fixture
def log(open_log: OpenLog) -> EventLog:
    return open_log()

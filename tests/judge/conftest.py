from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiltyard.events.log import EventLog

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))  # the stand-in of a foreign server


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as opened:
        yield opened

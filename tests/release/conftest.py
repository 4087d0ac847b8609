from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from release_stage import Scene

from tiltyard.events.log import EventLog

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))  # the stand-in of a server


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made: list[Scene] = []

    def clock_ns() -> int:
        return made[0].now_us * 1000 if made else 0

    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db", clock_ns=clock_ns) as log:
        made.append(Scene(log))
        yield made[0]

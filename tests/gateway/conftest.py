from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_stage import Stage, staged
from real_house import House, real_house

from tiltyard.events.log import EventLog


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EventLog]:
    directory = tmp_path_factory.mktemp("log")
    log = EventLog.open(directory / "log.db", keys=directory / "keys.db")
    yield log
    log.close()


@pytest.fixture(scope="session")
def stage(log: EventLog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway before one healthy worker, shared by the tests that do no damage."""
    with staged(log, tmp_path_factory.mktemp("workers")) as stage:
        yield stage


@pytest.fixture(scope="session")
def house(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The whole way with the real model, shared by the tests that do no damage."""
    with real_house(model_path, tmp_path_factory.mktemp("house")) as house:
        yield house

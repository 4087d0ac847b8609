"""One real `tiltyard up` for the tests that do not stop it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from running_tiltyard import Tiltyard


@pytest.fixture(scope="session")
def yard(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Tiltyard]:
    """One `tiltyard up` for a whole session."""
    started = Tiltyard.up(tmp_path_factory.mktemp("data"))
    yield started
    assert started.interrupt() == 0

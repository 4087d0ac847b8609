"""The house that the clients knock at: gateway, worker process and real model, on a real socket."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "gateway"))

from real_house import House, real_house


@pytest.fixture(scope="session")
def house(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Shared by all clients; none does damage."""
    if (
        find_spec("anthropic") is None
        and not {"TILTYARD_TEST_INSPECT", "TILTYARD_TEST_LM_EVAL"} & os.environ.keys()
    ):
        pytest.skip("the clients are not installed; `make conformance` installs them and runs these")
    with real_house(model_path, tmp_path_factory.mktemp("house")) as house:
        yield house

"""The real models of the kernel tests, where they are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kernel_models import GgufWeights, read_gguf


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real test data that is kept outside the repository."""
    path = Path(os.environ.get("TILTYARD_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no test data at {path}; set TILTYARD_DATA")
    return path


@pytest.fixture(scope="session")
def default_model() -> GgufWeights:
    """SmolLM2-135M-Instruct Q4_1: TILTYARD_TEST_MODEL, or where `tiltyard models pull` puts it."""
    default = Path.home() / ".cache" / "tiltyard" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path = Path(os.environ.get("TILTYARD_TEST_MODEL", default))
    if not path.is_file():
        pytest.skip(f"the default model is not at {path}; set TILTYARD_TEST_MODEL")
    return read_gguf(path)


@pytest.fixture(scope="session")
def stories(data: Path) -> GgufWeights:
    return read_gguf(data / "serving" / "gguf" / "stories260K" / "stories260K.gguf")

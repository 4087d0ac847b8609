"""The real models of the kernel tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_models import GgufWeights, read_gguf


@pytest.fixture(scope="session")
def data(shared_data: Path) -> Path:
    """The folder of real test data that is kept outside the repository."""
    return shared_data


@pytest.fixture(scope="session")
def default_model(model_path: Path) -> GgufWeights:
    """SmolLM2-135M-Instruct Q4_1, as this room's own small reader sees it."""
    return read_gguf(model_path)


@pytest.fixture(scope="session")
def stories(data: Path) -> GgufWeights:
    return read_gguf(data / "serving" / "gguf" / "stories260K" / "stories260K.gguf")

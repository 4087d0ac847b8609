"""A model as it is stored, whatever its kind: one GGUF file, or a directory of safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from tiltyard.models.directory import ModelDirectory
from tiltyard.models.gguf import GgufFile

StoredModel: TypeAlias = GgufFile | ModelDirectory
"""Both say what they hold under GGUF's keys and names, and give tensors in GGUF's layouts."""


def open_model(path: Path) -> StoredModel:
    """Open a model file or directory; raises `ModelRejected` if it is not sound."""
    return ModelDirectory.open(path) if path.is_dir() else GgufFile.open(path)


def stored_format(model: StoredModel) -> Literal["gguf", "safetensors"]:
    """What a manifest calls it."""
    return "safetensors" if isinstance(model, ModelDirectory) else "gguf"

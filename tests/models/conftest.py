"""Tokenizer of the default model, and little GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest

from tiltyard.models.gguf import GgufFile
from tiltyard.models.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm2(model_path: Path) -> Tokenizer:
    with GgufFile.open(model_path) as gguf:
        return Tokenizer.from_gguf(gguf)


def add(writer: oracle.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write metadata and float tensors with the `gguf` library."""

    def write(
        metadata: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any]] | None = None, name: str = "model"
    ) -> Path:
        path = tmp_path / f"{name}.gguf"
        writer = oracle.GGUFWriter(path, metadata.get("general.architecture", "llama"))
        for key, value in metadata.items():
            if value is not None and key != "general.architecture":
                add(writer, key, value)
        for tensor, data in (tensors or {}).items():
            writer.add_tensor(tensor, data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def write_vocabulary(write_gguf: Callable[..., Path]) -> Callable[..., Path]:
    """Write a file that holds only a tokenizer (and perhaps a chat template)."""

    def write(fields: dict[str, Any]) -> Path:
        keys = {
            ("tokenizer." if key == "chat_template" else "tokenizer.ggml.") + key: fields[key]
            for key in fields
        }
        return write_gguf(keys, name="vocabulary")

    return write

"""A model as it is stored, whatever its kind: one GGUF file, or a directory of safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from tiltyard.identity.canonical import Digest
from tiltyard.models.directory import ModelDirectory
from tiltyard.models.directory_tokenizer import directory_tokenizer_digest
from tiltyard.models.gguf import GgufFile
from tiltyard.models.tokenizer import Tokenizer, tokenizer_digest

StoredModel: TypeAlias = GgufFile | ModelDirectory
"""Both say what they hold under GGUF's keys and names, and give tensors in GGUF's layouts."""


def open_model(path: Path) -> StoredModel:
    """Open a model file or directory; raises `ModelRejected` if it is not sound."""
    return ModelDirectory.open(path) if path.is_dir() else GgufFile.open(path)


def stored_format(model: StoredModel) -> Literal["gguf", "safetensors"]:
    """What a manifest calls it."""
    return "safetensors" if isinstance(model, ModelDirectory) else "gguf"


def tokenizer_of(model: StoredModel) -> Tokenizer:
    """Build the tokenizer that comes with a model; raises `ModelRejected` for one that we do not reproduce."""
    if isinstance(model, GgufFile):
        return Tokenizer.from_gguf(model)
    embedding = model.tensors.get("token_embd.weight")
    return Tokenizer.from_directory(model.path, vocab_size=None if embedding is None else embedding.shape[0])


def tokenizer_digest_of(model: StoredModel) -> Digest:
    """The digest of that tokenizer, without building it."""
    return tokenizer_digest(model) if isinstance(model, GgufFile) else directory_tokenizer_digest(model.path)

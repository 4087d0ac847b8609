"""Typed access to a GGUF file's metadata; every refusal names file, key and value."""

from __future__ import annotations

import math

from tiltyard.errors import ModelRejected
from tiltyard.models.stored import StoredModel

MAX_SIZE = 1 << 24
"""No width, count or context of a real model is larger."""


class Fields:
    """The keys of one architecture: `fields.size("block_count")` reads `llama.block_count`."""

    def __init__(self, gguf: StoredModel, prefix: str) -> None:
        self.gguf = gguf
        self.prefix = prefix

    def name(self, key: str) -> str:
        """The whole key."""
        return f"{self.prefix}.{key}"

    def __contains__(self, key: str) -> bool:
        return self.name(key) in self.gguf.metadata

    def size(self, key: str, default: int | None = None) -> int:
        """A count of at least 1."""
        value = self.gguf.metadata.get(self.name(key), default)
        if value is None:
            raise self._missing(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise ModelRejected(
                f"{self.gguf.path}: {self.name(key)!r} is {value!r}; "
                f"expected an integer from 1 to {MAX_SIZE:,}"
            )
        return value

    def count(self, key: str) -> int:
        """A count that may be 0 or missing."""
        return self.size(key) if self.gguf.metadata.get(self.name(key), 0) != 0 else 0

    def positive(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.gguf.metadata.get(self.name(key), default)
        if value is None:
            raise self._missing(key)
        if not isinstance(value, float) or not math.isfinite(value) or value <= 0:
            raise ModelRejected(
                f"{self.gguf.path}: {self.name(key)!r} is {value!r}; expected a positive number"
            )
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self.gguf.metadata.get(self.name(key), default)
        if not isinstance(value, str):
            raise ModelRejected(f"{self.gguf.path}: {self.name(key)!r} is {value!r}; expected a string")
        return value

    def _missing(self, key: str) -> ModelRejected:
        return ModelRejected(f"{self.gguf.path}: metadata key {self.name(key)!r} is missing")

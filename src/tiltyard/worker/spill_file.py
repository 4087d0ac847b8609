"""The second tier as a file: blocks of KV under a byte budget, without a name, gone when the worker ends.

The file has no name from the start, so nobody else can open it and a killed worker leaves nothing behind.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tiltyard.errors import ConfigurationError, StorageFailed

SMOOTHING = 0.1


class SpillFile:
    """An `engine.spill.SpillStore`: slot `i` lies at byte `i * block_bytes`; the file grows as it is used."""

    def __init__(
        self,
        directory: Path,
        *,
        block_bytes: int,
        budget_bytes: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Raises `ConfigurationError` where no file can be made, or not one block fits."""
        self.capacity = budget_bytes // block_bytes
        if self.capacity < 1:
            raise ConfigurationError(
                f"spill_mb leaves {budget_bytes:,} bytes; a block takes {block_bytes:,}. Raise it, or set it to 0",
                param="spill_mb",
            )
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - it lives as we do
        except OSError as error:
            raise ConfigurationError(
                f"no spill file can be made in {directory}: {error.strerror}. Name another spill_dir, or set "
                "spill_mb to 0",
                param="spill_dir",
            ) from error
        self.load_s = 0.0
        self.trouble: str | None = None
        """Why the last block could not be kept or brought back."""
        self._block_bytes = block_bytes
        self._clock = clock

    def save(self, slot: int, data: bytes) -> bool:
        """Keep a block; False if the disk refuses it."""
        try:
            written = os.pwrite(self._file.fileno(), data, slot * self._block_bytes)
        except OSError as error:
            self.trouble = error.strerror
            return False
        return written == self._block_bytes

    def load(self, slot: int) -> bytes | None:
        """Bring a block back, and measure how long that takes."""
        began = self._clock()
        try:
            data = os.pread(self._file.fileno(), self._block_bytes, slot * self._block_bytes)
        except OSError as error:
            self.trouble = error.strerror
            return None
        took = self._clock() - began
        self.load_s = took if not self.load_s else (1 - SMOOTHING) * self.load_s + SMOOTHING * took
        return data if len(data) == self._block_bytes else None

    def wipe(self, slot: int) -> None:
        """Overwrite a block; raises `StorageFailed` if the disk refuses it."""
        try:
            os.pwrite(self._file.fileno(), bytes(self._block_bytes), slot * self._block_bytes)
        except OSError as error:
            raise StorageFailed(f"a spilled block could not be overwritten: {error.strerror}") from error

    def close(self) -> None:
        """Give the file's space back."""
        self._file.close()

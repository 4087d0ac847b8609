"""A file of tensors in memory as it lies on disk: mapped, viewed without copies, its pages given back when read."""

from __future__ import annotations

import mmap
import stat
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import ModelRejected


class Extent(Protocol):
    """Where a tensor lies, in bytes from the start of the file."""

    @property
    def offset(self) -> int:
        """Its first byte."""

    @property
    def size_bytes(self) -> int:
        """How many they are."""


class MappedFile(ABC):
    """What every format shares; made by `open`, closed by `close` or a `with` block."""

    FORMAT: ClassVar[str]
    SUFFIX: ClassVar[str]

    @abstractmethod
    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self.size_bytes = len(mapping)
        self._mapping = mapping

    @abstractmethod
    def extent(self, name: str) -> Extent:
        """Where a tensor lies."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map and check a file; raises `ModelRejected` if it is not a sound one of its format."""
        try:
            # Before opening: a pipe would wait for a writer, and a device has no size to check against.
            if not stat.S_ISREG(path.stat().st_mode):
                raise ModelRejected(
                    f"{path} is not a regular file; a model must be a {cls.SUFFIX} file on disk"
                )
            with path.open("rb") as stream:
                mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ModelRejected(f"{path}: at byte 0: the file is empty, not a {cls.FORMAT} file") from None
        except OSError as error:
            raise ModelRejected(f"{path} cannot be read: {error.strerror}") from error
        try:
            return cls(path, mapping)
        except ModelRejected:
            mapping.close()
            raise

    def tensor_data(self, name: str) -> NDArray[np.uint8]:
        """Return a tensor's raw bytes as a flat, read-only view into the mapping (no copy)."""
        at = self.extent(name)
        return np.frombuffer(self._mapping, dtype=np.uint8, count=at.size_bytes, offset=at.offset)

    def forget(self, name: str) -> None:
        """Give the memory of a tensor's pages back; they are read again if they are needed again."""
        at = self.extent(name)
        start = at.offset // mmap.PAGESIZE * mmap.PAGESIZE
        if at.size_bytes:
            self._mapping.madvise(mmap.MADV_DONTNEED, start, at.offset + at.size_bytes - start)

    def close(self) -> None:
        """Unmap; while a view from `tensor_data` lives, the mapping lives with it."""
        with suppress(BufferError):
            self._mapping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Weights as the kernels hold them, kept on disk between starts: a load is then one copy, without rounding.

One file for each (weights, quantization, packing version), whatever the instruction set::

    magic | length of the header | SHA-256 of the header | header (JSON) | matrices, each at a multiple of 4096

The header says whose matrices they are: a file under another's name is not taken for it. It is written beside its place and renamed, so a reader sees a whole file or none; each matrix has a checksum that
the native engine verifies while it reads. Nothing here is needed for anything: a file that is damaged, or for
which there is no room, costs a log line and the time to pack again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiltyard.identity.canonical import Digest
from tiltyard.kernels import PACKING_VERSION, NativeModel

MAGIC = b"TILTPACK"
PREAMBLE = len(MAGIC) + 8 + hashlib.sha256().digest_size
ALIGNMENT = 4096
MAX_HEADER = 64 << 20
SPARE_BYTES = 256 << 20
"""What must stay free on the disk: the log needs it more."""
ABANDONED_S = 3600.0
"""An unfinished file this old belongs to a process that died."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where a matrix lies in the file."""

    form: int
    offset: int
    size: int
    checksum: int


class PackedTensor(NamedTuple):
    """What `NativeModel.set_packed` takes after the name."""

    form: int
    tiles: NDArray[np.uint8]
    checksum: int


class PackedCache:
    """A directory of packed weights that stays below `limit_bytes`; the longest unused go first.

    >>> kept = cache.open(weights_digest, "as-stored")      # None: pack, then cache.keep(...)
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes

    def path(self, weights: Digest, served_as: str) -> Path:
        """The file of these weights."""
        return self.directory / f"{weights.removeprefix('sha256:')}-{served_as}-{PACKING_VERSION}.packed"

    def open(self, weights: Digest, served_as: str) -> Mapping[str, PackedTensor] | None:
        """Map the matrices by name, or `None` if they are not here; a damaged file is taken away."""
        path = self.path(weights, served_as)
        try:
            with path.open("rb") as stream:
                data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            places = _read_header(data, _owner(weights, served_as))
            os.utime(path)  # used now: the last to go
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            self.discard(weights, served_as, str(error))
            return None
        return {
            name: PackedTensor(
                place.form, np.frombuffer(data, np.uint8, place.size, place.offset), place.checksum
            )
            for name, place in places.items()
        }

    def discard(self, weights: Digest, served_as: str, reason: str) -> None:
        """Take away a file that turned out to be damaged."""
        path = self.path(weights, served_as)
        _logger.warning("packed weights %s are damaged and will be made again: %s", path, reason)
        with suppress(OSError):
            path.unlink()

    def keep(self, weights: Digest, served_as: str, model: NativeModel, names: Iterable[str]) -> bool:
        """Write a finished model's matrices; False, and a log line, where there is no room."""
        path = self.path(weights, served_as)
        temporary = path.with_suffix(f".{os.getpid()}")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._tidy(path)
            names = tuple(names)
            needed = model.weight_bytes + (len(names) + 2) * ALIGNMENT
            if not self._make_room(needed):
                return False
            with temporary.open("wb") as stream:
                _write(stream.fileno(), model, names, _owner(weights, served_as))
            temporary.replace(path)
        except OSError as error:
            _logger.warning(
                "packed weights are not kept, so the next start packs them again: %s: %s",
                path,
                error.strerror or error,
            )
            with suppress(OSError):
                temporary.unlink()
            return False
        return True

    def _make_room(self, needed: int) -> bool:
        """Remove the longest unused files until `needed` bytes fit both the limit and the disk."""
        files = sorted((status.st_mtime, status.st_size, path) for path, status in self._files())
        used = sum(size for _, size, _ in files)
        free = shutil.disk_usage(self.directory).free
        if needed > self.limit_bytes:
            reason = f"workers.packed_cache_mb allows {self.limit_bytes >> 20:,}"
        elif free + used - needed < SPARE_BYTES:
            reason = f"the disk has {free / 1e6:,.0f} MB free"
        else:
            for _, size, oldest in files:
                if used + needed <= self.limit_bytes and free - needed >= SPARE_BYTES:
                    break
                oldest.unlink(missing_ok=True)
                used, free = used - size, free + size
            return True
        reason = f"they take {needed / 1e6:,.0f} MB; {reason}"
        _logger.warning(
            "packed weights are not kept in %s, so the next start packs them again: %s",
            self.directory,
            reason,
        )
        return False

    def _tidy(self, path: Path) -> None:
        """Remove what processes that died left unfinished, and this file itself, which is to be replaced."""
        path.unlink(missing_ok=True)
        for found in self.directory.iterdir():
            if found.suffix.removeprefix(".").isdigit() and found.stat().st_mtime < time.time() - ABANDONED_S:
                found.unlink(missing_ok=True)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in self.directory.glob("*.packed"):
            with suppress(FileNotFoundError):  # another worker tidies too
                found.append((path, path.stat()))
        return found


def _owner(weights: Digest, served_as: str) -> str:
    return f"{weights} {served_as} {PACKING_VERSION}"


def _write(file: int, model: NativeModel, names: tuple[str, ...], owner: str) -> None:
    """Matrices first, at places that are known once the header's size is; then the header in front."""
    start = _aligned(PREAMBLE + 256 * (len(names) + 1))
    places: dict[str, Place] = {}
    at = start
    for name in names:
        form, tiles, checksum = model.packed_matrix(name)
        _write_at(file, tiles.data, at)
        places[name] = Place(form, at, tiles.size, checksum)
        at = _aligned(at + tiles.size)
    table = {name: asdict(place) for name, place in places.items()}
    header = json.dumps({"of": owner, "matrices": table}).encode()
    if PREAMBLE + len(header) > start:
        raise OSError(
            f"a header of {len(header):,} bytes does not fit"
        )  # names of 64 bytes at most always do
    preamble = MAGIC + len(header).to_bytes(8, "little") + hashlib.sha256(header).digest()
    _write_at(file, memoryview(preamble + header), 0)


def _write_at(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def _read_header(data: mmap.mmap, owner: str) -> dict[str, Place]:
    """Read and check the header; raises `ValueError` naming what is wrong."""
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError("the magic is missing")
    length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
    if length > min(MAX_HEADER, len(data) - PREAMBLE):
        raise ValueError(f"the header claims {length:,} bytes")
    header = data[PREAMBLE : PREAMBLE + length]
    if hashlib.sha256(header).digest() != data[len(MAGIC) + 8 : PREAMBLE]:
        raise ValueError("the header does not have its digest")
    match json.loads(header):
        case {"of": str(whose), "matrices": dict(table)}:
            pass
        case _:
            raise ValueError("the header has another layout")
    if whose != owner:
        raise ValueError(f"it holds {whose}")
    return {name: _place(name, entry, len(data)) for name, entry in table.items()}


def _place(name: str, entry: object, end: int) -> Place:
    match entry:
        case {
            "form": int(form),
            "offset": int(offset),
            "size": int(size),
            "checksum": int(checksum),
        } if 0 <= offset <= offset + size <= end and 0 <= checksum < 1 << 64 and 0 <= form < 1 << 31:
            return Place(form, offset, size, checksum)
    raise ValueError(f"{name} is nowhere in the file: {str(entry)[:100]}")


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT

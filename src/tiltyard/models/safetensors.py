"""Read a safetensors file: memory-mapped, strict, and safe on hostile bytes.

Layout (little endian): length of the header (8 bytes), the header (JSON: name -> dtype, shape, data_offsets), then
the tensors, side by side without holes. Every refusal is a `ModelRejected`.

    with SafetensorsFile.open(path) as file:
        file.tensors["lm_head.weight"].shape      # (49152, 576): rows, columns
        file.tensor_data("lm_head.weight")        # uint8 view into the mapping, no copy
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from tiltyard.errors import ModelRejected
from tiltyard.models.mapped import MappedFile

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_DIMENSIONS = 8
MAX_NAME_BYTES = 512
MAX_BYTES = 1 << 62
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
METADATA = "__metadata__"


@dataclass(frozen=True)
class SafetensorsInfo:
    """Where one tensor lies in the file and how it is stored."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file."""
    size_bytes: int


class SafetensorsFile(MappedFile):
    """An open file; made by `SafetensorsFile.open`, closed by `close`."""

    FORMAT = "safetensors"
    SUFFIX = ".safetensors"

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        super().__init__(path, mapping)
        self.tensors: Mapping[str, SafetensorsInfo] = MappingProxyType(read_header(str(path), mapping))

    def extent(self, name: str) -> SafetensorsInfo:
        """Where a tensor lies."""
        return self.tensors[name]


def read_header(name: str, data: bytes | mmap.mmap) -> dict[str, SafetensorsInfo]:
    """Read and check the header of a whole file; raises `ModelRejected`, whose message begins with `name`."""
    return _Header(name, data).read()


class _Header:
    """The JSON in front of the tensors, checked against the bytes that there are."""

    def __init__(self, name: str, data: bytes | mmap.mmap) -> None:
        self.name = name
        self.data = data

    def read(self) -> dict[str, SafetensorsInfo]:
        if len(self.data) < 8:
            self.refuse("the file is too short for a header")
        length = int.from_bytes(self.data[:8], "little")
        if length > min(MAX_HEADER_BYTES, len(self.data) - 8):
            self.refuse(
                f"the header claims {length:,} bytes; {min(MAX_HEADER_BYTES, len(self.data) - 8):,} are possible"
            )
        entries = self._parse(self.data[8 : 8 + length])
        start = 8 + length
        found = {name: self._entry(name, entry, start) for name, entry in entries.items() if name != METADATA}
        self._check_places(found, start)
        return found

    def refuse(self, problem: str) -> NoReturn:
        raise ModelRejected(f"{self.name}: {problem}")

    def _parse(self, raw: bytes) -> dict[str, object]:
        def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
            table = dict(pairs)
            if len(table) != len(pairs):
                self.refuse("a name occurs twice in the header")
            return table

        try:
            header: object = json.loads(raw, object_pairs_hook=once)
        except (ValueError, RecursionError) as error:
            self.refuse(f"the header is no JSON: {str(error)[:200]}")
        if not isinstance(header, dict):
            self.refuse("the header is no JSON object")
        return header

    def _entry(self, name: str, entry: object, start: int) -> SafetensorsInfo:
        shown = repr(name[:100])
        if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
            self.refuse(f"tensor {shown}... has a name of more than {MAX_NAME_BYTES} bytes")
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            self.refuse(f"tensor {shown} must have dtype, shape and data_offsets, and nothing else")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
            self.refuse(f"tensor {shown} has the unknown dtype {str(dtype)[:40]!r}")
        if not _whole_numbers(shape) or len(shape) > MAX_DIMENSIONS:
            self.refuse(f"tensor {shown}: a shape is at most {MAX_DIMENSIONS} whole numbers")
        if not _whole_numbers(offsets) or len(offsets) != 2:
            self.refuse(f"tensor {shown}: data_offsets must be two whole numbers")
        size = DTYPE_BYTES[dtype]
        for dimension in shape:
            size *= dimension
            if size > MAX_BYTES:
                self.refuse(f"tensor {shown} has a dimension of {dimension:,}, which no tensor can have")
        begin, end = offsets
        if end - begin != size:
            self.refuse(f"tensor {shown} has {end - begin:,} bytes; its shape and dtype need {size:,}")
        if start + end > len(self.data):
            self.refuse(
                f"tensor {shown} ends at byte {start + end:,}, past the end of the file at {len(self.data):,}; "
                "the file is truncated or the offset is wrong"
            )
        return SafetensorsInfo(dtype, tuple(shape), start + begin, size)

    def _check_places(self, found: Mapping[str, SafetensorsInfo], start: int) -> None:
        """The tensors must fill the file: no overlaps (a small file that claims much), no holes (hidden data)."""
        expected = start
        for name, info in sorted(found.items(), key=lambda item: (item[1].offset, item[1].size_bytes)):
            if info.offset != expected:
                problem = "overlaps another tensor" if info.offset < expected else "leaves a hole in the file"
                self.refuse(f"tensor {name!r} at byte {info.offset:,} {problem}; expected {expected:,}")
            expected = info.offset + info.size_bytes
        if expected != len(self.data):
            self.refuse(f"{len(self.data) - expected:,} bytes behind the last tensor belong to none")


def _whole_numbers(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value
    )

"""Read a GGUF file: memory-mapped, strict, and safe on hostile bytes.

Layout (little endian, versions 2 and 3): magic, version, tensor count, metadata count, metadata pairs,
tensor descriptions, padding to the alignment, tensor data. Every refusal is a `ModelRejected` that names
the byte offset of the thing that is wrong.

    with GgufFile.open(path) as gguf:
        gguf.metadata["general.architecture"]        # 'llama'
        gguf.tensors["token_embd.weight"].shape      # (49152, 576): rows, columns
        gguf.tensor_data("token_embd.weight")        # uint8 view into the mapping, no copy
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn, TypeAlias

import numpy as np

from tiltyard.errors import ModelRejected
from tiltyard.models.mapped import MappedFile

MetadataValue: TypeAlias = bool | int | float | str | tuple["MetadataValue", ...]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_DIMENSIONS = 4
MAX_NESTING = 4
"""Arrays of arrays of arrays of arrays; real files use one level."""
MAX_KEY_BYTES = 65_535
"""The GGUF specification's own limit."""
MAX_NAME_BYTES = 64
"""The GGUF specification's own limit for a tensor name."""
MAX_METADATA_BYTES = 256 << 20
"""A vocabulary of 280,000 merges takes 8 MB; this bounds what a hostile file can make us allocate."""
MAX_ELEMENTS = 1 << 62

# Smallest possible encodings, so that a count is checked against the bytes left before anything is allocated.
MIN_STRING_BYTES = 8
MIN_ARRAY_BYTES = 12
MIN_PAIR_BYTES = MIN_STRING_BYTES + 1 + 4 + 1
MIN_TENSOR_BYTES = MIN_STRING_BYTES + 1 + 4 + 8 + 4 + 8

TYPE_BOOL, TYPE_STRING, TYPE_ARRAY = 7, 8, 9
# GGUF value type -> (struct code, size in bytes)
SCALARS: dict[int, tuple[str, int]] = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}


@dataclass(frozen=True)
class TensorType:
    """One ggml storage type: `block_bytes` bytes hold `block_elements` elements of a row."""

    name: str
    block_elements: int
    block_bytes: int


TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
}
"""Sizes as in ggml's type table; `tests/models/test_gguf.py` compares them with the `gguf` library's."""


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies in the file and how it is stored."""

    name: str
    ggml_type: int
    type_name: str
    shape: tuple[int, ...]
    """NumPy order: rows, columns (GGUF itself lists the columns first)."""
    offset: int
    """Bytes from the start of the file."""
    size_bytes: int


class GgufFile(MappedFile):
    """An open GGUF file; made by `GgufFile.open`, closed by `close` or a `with` block."""

    FORMAT = "GGUF"
    SUFFIX = ".gguf"

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        super().__init__(path, mapping)
        reader = _Reader(path, mapping)
        reader.read()
        self.version = reader.version
        self.alignment = reader.alignment
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(reader.metadata)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(reader.tensors)
        self._spans = reader.spans

    def extent(self, name: str) -> TensorInfo:
        """Where a tensor lies."""
        return self.tensors[name]

    def metadata_bytes(self, key: str) -> bytes:
        """Return the encoded value of a metadata pair (type word and value), for digests."""
        start, end = self._spans[key]
        return self._mapping[start:end]


class _Reader:
    """One pass over the header; `position` only moves forward and never past `end`."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.end = len(data)
        self.position = 0
        self.version = 0
        self.alignment = DEFAULT_ALIGNMENT
        self.metadata: dict[str, MetadataValue] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        self.tensors: dict[str, TensorInfo] = {}

    def read(self) -> None:
        tensor_count, pair_count = self._header()
        self._metadata(pair_count)
        self.alignment = self._read_alignment()
        self._tensors(tensor_count)

    def refuse(self, offset: int, problem: str) -> NoReturn:
        raise ModelRejected(f"{self.path}: at byte {offset:,}: {problem}")

    # Steps, in file order.

    def _header(self) -> tuple[int, int]:
        if self.data[:4] != MAGIC:
            self.refuse(0, f"expected the magic {MAGIC!r}, found {self.data[:4]!r}; this is not a GGUF file")
        self.position = 4
        version = self._integer("I", 4, "version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            hint = "a big-endian file" if swapped in VERSIONS else "unknown"
            self.refuse(4, f"GGUF version {version} is {hint}; little-endian versions 2 and 3 are supported")
        self.version = version
        tensor_count = self._integer("Q", 8, "tensor count")
        pair_count = self._integer("Q", 8, "metadata count")
        self._check_count(8, tensor_count, MIN_TENSOR_BYTES, "tensors")
        self._check_count(16, pair_count, MIN_PAIR_BYTES, "metadata pairs")
        return tensor_count, pair_count

    def _metadata(self, count: int) -> None:
        for _ in range(count):
            start = self.position
            key = self._string(MAX_KEY_BYTES, "metadata key")
            if key in self.metadata:
                self.refuse(start, f"metadata key {key!r} occurs twice")
            value_start = self.position
            self.metadata[key] = self._value(self._integer("I", 4, f"type of {key!r}"), key, depth=0)
            self.spans[key] = (value_start, self.position)
            if self.position > MAX_METADATA_BYTES:
                self.refuse(start, f"metadata is larger than {MAX_METADATA_BYTES:,} bytes at key {key!r}")

    def _read_alignment(self) -> int:
        value = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        sound = (
            isinstance(value, int)
            and not isinstance(value, bool)
            and 0 < value <= MAX_ALIGNMENT
            and value & (value - 1) == 0
        )
        if not sound or not isinstance(value, int):
            self.refuse(
                self.spans["general.alignment"][0],
                f"general.alignment is {value!r}; it must be a power of two up to {MAX_ALIGNMENT}",
            )
        return value

    def _tensors(self, count: int) -> None:
        found: list[tuple[int, str, int, tuple[int, ...], int, int]] = []
        names: set[str] = set()
        for _ in range(count):
            start = self.position
            name = self._string(MAX_NAME_BYTES, "tensor name")
            if name in names:
                self.refuse(start, f"tensor {name!r} occurs twice")
            names.add(name)
            shape = self._shape(name)
            type_start = self.position
            ggml_type = self._integer("I", 4, f"type of tensor {name!r}")
            size_bytes = self._tensor_size(type_start, name, ggml_type, shape)
            offset_start = self.position
            offset = self._integer("Q", 8, f"offset of tensor {name!r}")
            found.append((offset_start, name, ggml_type, shape, offset, size_bytes))
        data_start = self._aligned(self.position)
        expected = 0
        for offset_start, name, ggml_type, shape, offset, size_bytes in found:
            if offset % self.alignment:
                self.refuse(
                    offset_start,
                    f"tensor {name!r} has offset {offset:,}, which is not aligned to {self.alignment} bytes",
                )
            if data_start + offset + size_bytes > self.end:
                self.refuse(
                    offset_start,
                    f"tensor {name!r} ends at byte {data_start + offset + size_bytes:,}, past the end of the "
                    f"file at {self.end:,}; the file is truncated or the offset is wrong",
                )
            if offset != expected:
                # ggml writes and accepts only tensors that lie in the order of their descriptions.
                problem = "overlaps another tensor" if offset < expected else "leaves a hole in the file"
                self.refuse(
                    offset_start, f"tensor {name!r} at offset {offset:,} {problem}; expected {expected:,}"
                )
            expected = self._aligned(offset + size_bytes)
            self.tensors[name] = TensorInfo(
                name, ggml_type, TENSOR_TYPES[ggml_type].name, shape, data_start + offset, size_bytes
            )

    def _shape(self, name: str) -> tuple[int, ...]:
        start = self.position
        dimensions = self._integer("I", 4, f"dimensions of tensor {name!r}")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            self.refuse(
                start, f"tensor {name!r} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed"
            )
        sizes: list[int] = []
        elements = 1
        for _ in range(dimensions):
            at = self.position
            size = self._integer("Q", 8, f"shape of tensor {name!r}")
            elements *= size
            if size == 0 or elements > MAX_ELEMENTS:
                self.refuse(at, f"tensor {name!r} has a dimension of {size:,}, which no tensor can have")
            sizes.append(size)
        return tuple(reversed(sizes))

    def _tensor_size(self, offset: int, name: str, ggml_type: int, shape: tuple[int, ...]) -> int:
        kind = TENSOR_TYPES.get(ggml_type)
        if kind is None:
            self.refuse(offset, f"tensor {name!r} has the unknown type {ggml_type}")
        if shape[-1] % kind.block_elements:
            self.refuse(
                offset,
                f"tensor {name!r} has rows of {shape[-1]:,}; {kind.name} packs {kind.block_elements} a block",
            )
        elements = 1
        for size in shape:
            elements *= size
        return elements // kind.block_elements * kind.block_bytes

    # Values.

    def _value(self, kind: int, key: str, depth: int) -> MetadataValue:
        if kind in SCALARS:
            code, size = SCALARS[kind]
            self._need(size, key)
            (number,) = struct.unpack_from("<" + code, self.data, self.position)
            self.position += size
            return number  # type: ignore[no-any-return]  # struct's result is Any; the code says int or float
        if kind == TYPE_STRING:
            return self._string(self.end, key)
        if kind == TYPE_BOOL:
            return self._bools(1, key)[0]
        if kind == TYPE_ARRAY:
            return self._array(key, depth + 1)
        return self.refuse(self.position - 4, f"{key!r} has the unknown value type {kind}")

    def _array(self, key: str, depth: int) -> tuple[MetadataValue, ...]:
        start = self.position
        if depth > MAX_NESTING:
            self.refuse(start, f"{key!r} nests arrays more than {MAX_NESTING} deep")
        kind = self._integer("I", 4, f"element type of {key!r}")
        count = self._integer("Q", 8, f"length of {key!r}")
        if kind in SCALARS:
            code, size = SCALARS[kind]
            self._check_count(start + 4, count, size, f"elements of {key!r}")
            numbers = np.frombuffer(self.data, np.dtype(code).newbyteorder("<"), count, self.position)
            self.position += count * size
            return tuple(numbers.tolist())
        if kind == TYPE_STRING:
            self._check_count(start + 4, count, MIN_STRING_BYTES, f"elements of {key!r}")
            return self._strings(count, key)
        if kind == TYPE_BOOL:
            self._check_count(start + 4, count, 1, f"elements of {key!r}")
            return self._bools(count, key)
        if kind == TYPE_ARRAY:
            self._check_count(start + 4, count, MIN_ARRAY_BYTES, f"elements of {key!r}")
            return tuple(self._array(key, depth + 1) for _ in range(count))
        return self.refuse(start, f"{key!r} has elements of the unknown type {kind}")

    def _strings(self, count: int, key: str) -> tuple[str, ...]:
        """Read many strings in one tight loop: vocabularies have hundreds of thousands."""
        data, end, position = self.data, self.end, self.position
        length_at = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        for _ in range(count):
            if position + 8 > end:
                self.refuse(position, f"the file ends inside {key!r}")
            (length,) = length_at(data, position)
            stop = position + 8 + length
            if stop > end:
                self.refuse(
                    position, f"a string of {length:,} bytes in {key!r} runs past the end of the file"
                )
            try:
                strings.append(data[position + 8 : stop].decode())
            except UnicodeDecodeError as error:
                self.refuse(position + 8 + error.start, f"a string in {key!r} is not UTF-8")
            position = stop
        self.position = position
        return tuple(strings)

    def _string(self, limit: int, what: str) -> str:
        start = self.position
        length = self._integer("Q", 8, what)
        if length > limit or length > self.end - self.position:
            self.refuse(
                start,
                f"{what} claims {length:,} bytes; {min(limit, self.end - self.position):,} are possible",
            )
        raw = self.data[self.position : self.position + length]
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            self.refuse(self.position + error.start, f"{what} is not UTF-8")
        self.position += length
        return text

    def _bools(self, count: int, key: str) -> tuple[bool, ...]:
        self._need(count, key)
        raw = self.data[self.position : self.position + count]
        for index, byte in enumerate(raw):
            if byte > 1:
                self.refuse(self.position + index, f"a boolean in {key!r} is {byte}; it must be 0 or 1")
        self.position += count
        return tuple(byte == 1 for byte in raw)

    def _integer(self, code: str, size: int, what: str) -> int:
        self._need(size, what)
        (number,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += size
        return int(number)

    def _need(self, size: int, what: str) -> None:
        if size > self.end - self.position:
            self.refuse(self.position, f"the file ends inside {what}; it is truncated")

    def _check_count(self, offset: int, count: int, smallest: int, what: str) -> None:
        if count * smallest > self.end - self.position:
            self.refuse(
                offset, f"{count:,} {what} cannot fit in the {self.end - self.position:,} bytes that are left"
            )

    def _aligned(self, offset: int) -> int:
        return (offset + self.alignment - 1) // self.alignment * self.alignment

"""Writes GGUF bytes by hand, so that a test can write any of them wrong."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, body: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + body


@dataclass
class Tensor:
    name: str | bytes = "t"
    shape: tuple[int, ...] = (8,)  # GGUF order: columns first
    kind: int = 0  # F32
    offset: int = 0

    def encode(self) -> bytes:
        dimensions = struct.pack("<I", len(self.shape)) + b"".join(struct.pack("<Q", n) for n in self.shape)
        return string(self.name) + dimensions + struct.pack("<IQ", self.kind, self.offset)


@dataclass
class Gguf:
    """A sound little file unless told otherwise: one pair, one tensor of 8 floats."""

    magic: bytes = b"GGUF"
    version: int = 3
    pairs: list[bytes] = field(
        default_factory=lambda: [pair("general.architecture", STRING, string("llama"))]
    )
    tensors: list[Tensor] = field(default_factory=lambda: [Tensor()])
    tensor_count: int | None = None
    pair_count: int | None = None
    alignment: int = 32
    data: bytes = bytes(32)

    def encode(self) -> bytes:
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        pair_count = len(self.pairs) if self.pair_count is None else self.pair_count
        header = self.magic + struct.pack("<IQQ", self.version, tensor_count, pair_count)
        head = header + b"".join(self.pairs) + b"".join(tensor.encode() for tensor in self.tensors)
        return head + bytes(-len(head) % self.alignment) + self.data

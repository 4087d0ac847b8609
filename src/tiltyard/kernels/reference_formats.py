"""The other GGUF weight types of the numerics contract: bfloat16, five bits, and ggml's super-blocks of 256.

Each becomes a `Matrix` of integers with a scale (and minimum) for each block of 32, so the products of
`reference.multiply` are theirs too. Layouts: https://github.com/ggml-org/ggml, `ggml-common.h`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tiltyard.kernels.reference import Matrix
from tiltyard.kernels.reference import decode as decode_plain
from tiltyard.kernels.reference_math import F32

PLAIN = (0, 1, 2, 3, 8)
Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, BF16 = 6, 7, 12, 13, 14, 30
BLOCK_BYTES = {Q5_0: 22, Q5_1: 24, Q4_K: 144, Q5_K: 176, Q6_K: 210}
SUPER_BLOCK = 256
U8 = NDArray[np.uint8]


def decode(ggml_type: int, raw: U8, rows: int, columns: int) -> Matrix:
    """Raw GGUF bytes of a matrix -> `Matrix`; any type that the kernels take."""
    if ggml_type in PLAIN:
        return decode_plain(ggml_type, raw, rows, columns)
    if ggml_type == BF16:
        upper = raw.view(np.uint16).reshape(rows, columns).astype(np.uint32)
        return Matrix((upper << np.uint32(16)).view(np.float32))
    blocks = raw.reshape(rows, -1, BLOCK_BYTES[ggml_type])
    if ggml_type == Q6_K:
        return _six_bits(blocks)
    q, scale, minimum = (_five_bits if ggml_type in (Q5_0, Q5_1) else _super_block)(blocks)
    values = scale[..., None] * q.reshape(rows, -1, 32).astype(np.float32) + minimum[..., None]
    return Matrix(values.reshape(rows, columns), q.reshape(rows, columns), scale, minimum)


def half(blocks: U8, at: int) -> F32:
    """The binary16 at byte `at` of each block."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def _five_bits(blocks: U8) -> tuple[NDArray[np.int32], F32, F32]:
    """Q5_0 (d, 32 fifth bits, 16 bytes) as Q5_1 (d, m, ...) with m = -16 d."""
    fifth = np.unpackbits(blocks[..., -20:-16], axis=-1, bitorder="little")
    nibbles = np.concatenate([blocks[..., -16:] & 15, blocks[..., -16:] >> 4], axis=-1)
    scale = half(blocks, 0)
    minimum = half(blocks, 2) if blocks.shape[-1] == BLOCK_BYTES[Q5_1] else np.float32(-16) * scale
    return (nibbles | fifth << 4).astype(np.int32), scale, minimum


def _super_block(blocks: U8) -> tuple[NDArray[np.int32], F32, F32]:
    """Q4_K and Q5_K: d, dmin, eight scales and minima of six bits, fifth bits, nibbles."""
    rows, count, _ = blocks.shape
    s = blocks[..., 4:16]
    scales = np.concatenate([s[..., 0:4] & 63, s[..., 8:12] & 15 | s[..., 0:4] >> 6 << 4], axis=-1)
    minima = np.concatenate([s[..., 4:8] & 63, s[..., 8:12] >> 4 | s[..., 4:8] >> 6 << 4], axis=-1)
    nibbles = blocks[..., -128:].reshape(rows, count, 4, 1, 32)
    q = np.concatenate([nibbles & 15, nibbles >> 4], axis=3).reshape(rows, count, 8, 32)
    if blocks.shape[-1] == BLOCK_BYTES[Q5_K]:
        fifth = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
        q = q | fifth << 4
    scale = half(blocks, 0)[..., None] * scales.astype(np.float32)  # 11 and 6 bits: exact
    minimum = -half(blocks, 2)[..., None] * minima.astype(np.float32)
    return q.astype(np.int32), scale.reshape(rows, -1), minimum.reshape(rows, -1)


def _six_bits(blocks: U8) -> Matrix:
    """Q6_K: the integer weight is the int8 scale of its 16 values times (q - 32); the block's scale is d."""
    rows, count, _ = blocks.shape
    low = blocks[..., :128].reshape(rows, count, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=3).reshape(rows, count, 2, 4, 32)
    high = (
        blocks[..., 128:192].reshape(rows, count, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    )
    q = (low | high << 4).astype(np.int32).reshape(rows, count, 16, 16) - 32
    small = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.int32)[..., None]
    d = half(blocks, 208)
    values = d[..., None, None] * small.astype(np.float32) * q.astype(np.float32)  # 23 bits: exact
    return Matrix(values.reshape(rows, -1), (q * small).reshape(rows, -1), d.repeat(8, axis=-1))

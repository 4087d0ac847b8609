"""The contract's paged attention: what the cache keeps, and how one query attends to it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tiltyard.kernels.reference_math import F32, ONE, ZERO, exp32, fma, inverse_step, tree_sum

KV_BLOCK = 32
SPLIT = 256  # positions in one attention split
MASKED = np.float32(-1e30)


class KvStore(NamedTuple):
    """Keys or values as the cache holds them: `values` (tokens, heads, head_dim); `scale` (tokens, heads)."""

    values: F32
    scale: F32


def store_kv(x: F32, precision: str) -> KvStore:
    """What the cache keeps of keys or values: f16, saturating, or int8 with a scale per token and head."""
    if precision == "f16":
        top = np.float32(65504)
        return KvStore(
            np.clip(x, -top, top).astype(np.float16).astype(np.float32), np.ones(x.shape[:-1], np.float32)
        )
    largest = np.abs(x).max(axis=-1)
    inverse = inverse_step(largest)
    return KvStore(np.rint(x * inverse[..., None]), largest / np.float32(127))


def attend(q: F32, keys: KvStore, values: KvStore, first: int = 0) -> F32:
    """One scaled query (head_dim) over the tokens from `first` on, by splits of 256 and blocks of 32, in order.

    Splits and blocks lie where they lie without a window; those that it hides whole are passed over.
    """
    merged: tuple[np.float32, np.float32, F32] | None = None
    count = len(keys.values)
    for start in range(first // SPLIT * SPLIT, count, SPLIT):
        part = _attend_split(q, keys, values, max(start, first), min(start + SPLIT, count))
        merged = part if merged is None else _merge(merged, part)
    if merged is None:
        raise ValueError("attention over no tokens")
    _, total, out = merged
    return np.asarray(out * (ONE / total))


def _attend_split(
    q: F32, keys: KvStore, values: KvStore, start: int, end: int
) -> tuple[np.float32, np.float32, F32]:
    highest, total = MASKED, ZERO
    out = np.zeros(q.shape[0], np.float32)
    for block in range(start // KV_BLOCK * KV_BLOCK, end, KV_BLOCK):
        first, last = max(block, start), min(block + KV_BLOCK, end)
        scores = np.zeros(last - first, np.float32)
        for d in range(q.shape[0]):
            scores = fma(q[d], keys.values[first:last, d], scores)
        scores = scores * keys.scale[first:last]
        following = max(highest, np.float32(scores.max()))
        weights = np.zeros(KV_BLOCK, np.float32)
        weights[first - block : last - block] = exp32(scores - following)
        lanes = weights.reshape(4, 8)
        block_total = tree_sum((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]))
        factor = exp32(np.asarray(highest - following, np.float32))  # exactly 1 when the maximum stays
        total = np.float32(fma(total, factor, block_total))
        out = out * factor
        for t in range(first, last):
            out = fma(weights[t - block] * values.scale[t], values.values[t], out)
        highest = following
    return highest, total, out


def _merge(
    a: tuple[np.float32, np.float32, F32], b: tuple[np.float32, np.float32, F32]
) -> tuple[np.float32, np.float32, F32]:
    highest = max(a[0], b[0])
    factor_a = exp32(np.asarray(a[0] - highest, np.float32))
    factor_b = exp32(np.asarray(b[0] - highest, np.float32))
    total = np.float32(fma(b[1], factor_b, np.asarray(a[1] * factor_a)))
    return highest, total, fma(b[2], factor_b, a[2] * factor_a)

"""The numerics contract of the forward pass in NumPy: slow, readable, and the oracle of the compiled kernels.

Two forwards live here. `forward_float` is what the network means: float64 on dequantized weights, no blocks,
no quantized activations; the kernels come close to it. `forward_exact` is what the contract says
(docs/numerics.md): the same operations in the same order as the kernels, so its logits are theirs, bit for
bit.

A fused multiply-add does not exist in NumPy; `fma` builds a correctly rounded one from float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I8 = NDArray[np.int8]
I64 = NDArray[np.int64]

QUANT_BLOCK = 32
KV_BLOCK = 32
SPLIT = 256  # positions in one attention split
MASKED = np.float32(-1e30)
ZERO = np.float32(0)
ONE = np.float32(1)


@dataclass(frozen=True)
class Shape:
    """Dimensions of a Llama-architecture model, as in its GGUF header."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dim: int
    ff_dim: int
    vocab_size: int
    norm_eps: float
    rope_base: float
    rope_dim: int


@dataclass(frozen=True)
class LowRank:
    """What a LoRA adapter adds to a product: scale * up (down x); down (rank, columns), up (rows, rank)."""

    down: F32
    up: F32
    scale: np.float32


@dataclass(frozen=True)
class Matrix:
    """A weight matrix, rows x columns; quantized if `scale` is there.

    Quantized: weight = scale * q + minimum; scale and minimum (rows, columns / 32), q (rows, columns).
    Float: `values`. `minimum` is None for Q8_0. `adapter` adds to the product (docs/numerics.md, "Adapters").
    """

    values: F32
    q: NDArray[np.int32] | None = None
    scale: F32 | None = None
    minimum: F32 | None = None
    adapter: LowRank | None = None


Tensors = Mapping[str, Matrix]
Norms = Mapping[str, F32]


# Decoding GGUF rows: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and ggml-quants.


def decode(ggml_type: int, raw: NDArray[np.uint8], rows: int, columns: int) -> Matrix:
    """Raw GGUF bytes of a matrix -> `Matrix`. Types F32=0, F16=1, Q4_0=2, Q4_1=3, Q8_0=8."""
    if ggml_type == 0:
        return Matrix(raw.view(np.float32).reshape(rows, columns))
    if ggml_type == 1:
        return Matrix(raw.view(np.float16).reshape(rows, columns).astype(np.float32))
    size = {2: 18, 3: 20, 8: 34}[ggml_type]
    blocks = raw.reshape(rows, columns // QUANT_BLOCK, size)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
    minimum: F32 | None = None
    if ggml_type == 8:
        q = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).astype(np.int32)
    else:
        nibbles = blocks[..., size - 16 :]
        q = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).astype(np.int32)
        if ggml_type == 2:
            minimum = np.float32(-8) * scale
        else:
            minimum = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0].astype(np.float32)
    values = scale[..., None] * q.astype(np.float32)
    if minimum is not None:
        values = values + minimum[..., None]
    return Matrix(values.reshape(rows, columns), q.reshape(rows, columns), scale, minimum)


# Arithmetic


def fma(a: F32 | np.float32, b: F32 | np.float32, c: F32 | np.float32) -> F32:
    """a * b + c with one rounding, element by element.

    The product of two float32 is exact in float64. The sum is rounded to odd (its error is found by TwoSum),
    so that the final rounding to float32 is the only one that counts. Boldo and Melquiond 2008,
    https://doi.org/10.1109/TC.2007.70819.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    odd = (bits & 1) == 1
    away = (error > 0) == (total > 0)  # is the exact sum larger in magnitude than `total`?
    nudged = np.where(away, bits + 1, bits - 1)
    inexact = (error != 0) & np.isfinite(total) & ~odd
    return np.asarray(np.where(inexact, nudged, bits).view(np.float64).astype(np.float32))


def tree_sum(lanes: F32) -> F32:
    """Sum the last axis of eight by the one reduction tree: (0+4, 1+5, 2+6, 3+7), (0+2, 1+3), 0+1."""
    four = lanes[..., :4] + lanes[..., 4:]
    two = four[..., :2] + four[..., 2:]
    return np.asarray(two[..., 0] + two[..., 1])


def exp32(x: F32) -> F32:
    """The contract's exp: clamp to [-87, 88], n = rint(x / ln 2), degree-7 polynomial, times 2^n."""
    x = np.maximum(np.minimum(x, np.float32(88)), np.float32(-87))
    n = np.rint(x * np.float32(1.44269504088896341))
    r = fma(n, np.float32(-0.693359375), x)
    r = fma(n, np.float32(2.12194440e-4), r)
    p = np.full_like(r, np.float32(1.9875691500e-4))
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, np.float32(coefficient))
    p = fma(p, r * r, r + ONE)
    return np.asarray(p * np.ldexp(ONE, n.astype(np.int32)).astype(np.float32))


LN2_HIGH, LN2_LOW = 0.6931471804855391, 7.440617110012397e-11
HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)


def exp64(x: float) -> float:
    """exp in double from additions and multiplications alone (exact_math.hpp)."""
    n = float(round(x * 1.4426950408889634))
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = 1.0
    for i in range(14, 0, -1):
        p = p * (r / i) + 1.0
    return math.ldexp(p, int(n))


def log64(x: float) -> float:
    """Natural logarithm in double: 2 atanh((m - 1) / (m + 1)) + e ln 2."""
    m, e = math.frexp(x)
    if m < 0.75:
        m, e = m * 2, e - 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 0.0
    for i in range(12, -1, -1):
        p = p * z + 1.0 / (2 * i + 1)
    return e * LN2_HIGH + (e * LN2_LOW + 2.0 * s * p)


def sincos64(x: float) -> tuple[float, float]:
    """Sine and cosine in double: reduce by pi / 2 in three parts, then Taylor."""
    n = float(round(x * 0.6366197723675814))
    r = ((x - n * HALF_PI[0]) - n * HALF_PI[1]) - n * HALF_PI[2]
    z = r * r
    s = c = 1.0
    for i in range(9, 0, -1):
        s = 1.0 - s * z / (2 * i * (2 * i + 1))
        c = 1.0 - c * z / ((2 * i - 1) * (2 * i))
    s *= r
    return ((s, c), (c, -s), (-s, -c), (-c, s))[int(n) & 3]


def rope_angles(position: int, dimensions: int, base: float) -> tuple[F32, F32]:
    """Cosines and sines of the pairs (2i, 2i + 1) at a position; Su et al. 2021, equation 34."""
    log_base = log64(base)
    pairs = [sincos64(position * exp64(-(2.0 * i / dimensions) * log_base)) for i in range(dimensions // 2)]
    return (
        np.array([cosine for _, cosine in pairs], np.float32),
        np.array([sine for sine, _ in pairs], np.float32),
    )


SMALLEST = np.float32(1e-36)


class Quantized(NamedTuple):
    """int8 activations, in blocks of 32 along the last axis: value = scale * q, and one outlier apart.

    A value that holds more than half of its block's energy is the outlier: it stays a float, and its q is 0.
    """

    q: NDArray[np.int32]
    scale: F32
    total: F32  # sum of a block's values
    outlier: F32  # 0: none
    place: NDArray[np.intp]


def inverse_step(largest: F32) -> F32:
    """127 / largest, or 0 for what is too small to quantize."""
    safe = np.where(largest > SMALLEST, largest, ONE)
    return np.where(largest > SMALLEST, np.float32(127) / safe, ZERO).astype(np.float32)


def quantize(x: F32) -> Quantized:
    """Quantize the last axis (a multiple of 32) in blocks, ties to even."""
    blocks = x.reshape(*x.shape[:-1], -1, QUANT_BLOCK)
    largest = np.abs(blocks).max(axis=-1)
    squares = np.zeros((*largest.shape, 8), np.float32)
    for j in range(0, QUANT_BLOCK, 8):
        squares = fma(blocks[..., j : j + 8], blocks[..., j : j + 8], squares)
    apart = (largest * largest * np.float32(2) > tree_sum(squares)) & (largest > SMALLEST)
    place = np.abs(blocks).argmax(axis=-1)
    outlier = np.where(apart, np.take_along_axis(blocks, place[..., None], -1)[..., 0], ZERO)
    rest = np.where(apart[..., None] & (np.arange(QUANT_BLOCK) == place[..., None]), ZERO, blocks)
    largest = np.abs(rest).max(axis=-1)
    q = np.rint(rest * inverse_step(largest)[..., None])
    scale = largest / np.float32(127)
    total = scale * q.sum(axis=-1) + outlier
    return Quantized(q.reshape(x.shape).astype(np.int32), scale, total, outlier, place)


def padded(x: F32, multiple: int = QUANT_BLOCK) -> F32:
    """The last axis, filled with zeros up to a multiple."""
    short = -x.shape[-1] % multiple
    return np.concatenate([x, np.zeros((*x.shape[:-1], short), np.float32)], axis=-1) if short else x


def multiply(matrix: Matrix, x: F32) -> F32:
    """x (tokens, columns) times the matrix, transposed -> (tokens, rows), as the contract orders it."""
    out = _multiply(matrix, x)
    if (adapter := matrix.adapter) is None:
        return out
    return fma(adapter.scale, _multiply(Matrix(adapter.up), _multiply(Matrix(adapter.down), x)), out)


def _multiply(matrix: Matrix, x: F32) -> F32:
    rows, columns = matrix.values.shape
    out = np.zeros((x.shape[0], rows), np.float32)
    if matrix.q is None or matrix.scale is None:
        for k in range(columns):
            out = fma(matrix.values[None, :, k], x[:, None, k], out)
        return out
    activations = quantize(x)
    for b in range(columns // QUANT_BLOCK):
        span = slice(b * QUANT_BLOCK, (b + 1) * QUANT_BLOCK)
        dot = (activations.q[:, span] @ matrix.q[:, span].T).astype(np.float32)
        scale = matrix.scale[None, :, b] * activations.scale[:, None, b]
        out = fma(dot, scale, out)
        if matrix.minimum is not None:
            out = fma(matrix.minimum[None, :, b], activations.total[:, None, b], out)
    for b in range(columns // QUANT_BLOCK):
        span = slice(b * QUANT_BLOCK, (b + 1) * QUANT_BLOCK)
        which = np.flatnonzero(activations.outlier[:, b])
        weights = matrix.q[:, span][:, activations.place[which, b]].T.astype(np.float32)
        scale = matrix.scale[None, :, b] * activations.outlier[which, None, b]
        out[which] = fma(weights, scale, out[which])
    return out


def rms_norm(x: F32, gain: F32, eps: float) -> F32:
    """x / sqrt(mean(x^2) + eps) * gain; Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467."""
    n = x.shape[-1]
    wide = padded(x).reshape(*x.shape[:-1], -1, 4, 8)
    lanes = np.zeros((*x.shape[:-1], 4, 8), np.float32)
    for i in range(wide.shape[-3]):
        lanes = fma(wide[..., i, :, :], wide[..., i, :, :], lanes)
    squares = tree_sum((lanes[..., 0, :] + lanes[..., 1, :]) + (lanes[..., 2, :] + lanes[..., 3, :]))
    inverse = ONE / np.sqrt(squares / np.float32(n) + np.float32(eps))
    return np.asarray((x * inverse[..., None]) * gain)


def rotate(x: F32, cosine: F32, sine: F32) -> F32:
    """Rotate the pairs (2i, 2i + 1) of the last axis; what lies beyond the pairs stays."""
    out = x.copy()
    n = 2 * cosine.shape[-1]
    a, b = x[..., 0:n:2], x[..., 1:n:2]
    out[..., 0:n:2] = a * cosine - b * sine
    out[..., 1:n:2] = a * sine + b * cosine
    return out


def silu_multiply(gate: F32, up: F32) -> F32:
    """gate / (1 + exp(-gate)) * up; Shazeer 2020, https://arxiv.org/abs/2002.05202."""
    return np.asarray((gate / (ONE + exp32(ZERO - gate))) * up)


# Attention


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


def attend(q: F32, keys: KvStore, values: KvStore) -> F32:
    """One scaled query (head_dim) over all tokens given, by splits of 256 and blocks of 32, in order."""
    merged: tuple[np.float32, np.float32, F32] | None = None
    for start in range(0, len(keys.values), SPLIT):
        part = _attend_split(q, keys, values, start, min(start + SPLIT, len(keys.values)))
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
    for first in range(start, end, KV_BLOCK):
        last = min(first + KV_BLOCK, end)
        scores = np.zeros(last - first, np.float32)
        for d in range(q.shape[0]):
            scores = fma(q[d], keys.values[first:last, d], scores)
        scores = scores * keys.scale[first:last]
        following = max(highest, np.float32(scores.max()))
        weights = np.zeros(KV_BLOCK, np.float32)
        weights[: last - first] = exp32(scores - following)
        lanes = weights.reshape(4, 8)
        block_total = tree_sum((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]))
        factor = exp32(np.asarray(highest - following, np.float32))  # exactly 1 when the maximum stays
        total = np.float32(fma(total, factor, block_total))
        out = out * factor
        for t in range(first, last):
            out = fma(weights[t - first] * values.scale[t], values.values[t], out)
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


# The network


class FeedForward(Protocol):
    """The last part of a layer, in both arithmetics: residual `x` with what is made of the normed rows `y` added."""

    def exact(self, matrices: Tensors, at: str, x: F32, y: F32) -> F32:
        """As the contract says; `at` is the layer's prefix, such as "blk.0."."""

    def floats(self, matrices: Tensors, at: str, x: F64, y: F64) -> F64:
        """In plain float64."""


class Dense:
    """One SwiGLU network for all rows."""

    def exact(self, matrices: Tensors, at: str, x: F32, y: F32) -> F32:
        """x + down(silu(gate(y)) * up(y))."""
        gate, up = (multiply(matrices[f"{at}ffn_{part}.weight"], y) for part in ("gate", "up"))
        return np.asarray(x + multiply(matrices[at + "ffn_down.weight"], silu_multiply(gate, up)))

    def floats(self, matrices: Tensors, at: str, x: F64, y: F64) -> F64:
        """The same in float64."""
        gate, up, down = (
            matrices[f"{at}ffn_{part}.weight"].values.T.astype(np.float64) for part in ("gate", "up", "down")
        )
        inner = y @ gate
        return np.asarray(x + (inner / (1 + np.exp(-inner)) * (y @ up)) @ down)


DENSE = Dense()


def forward_exact(  # noqa: PLR0917 - as forward_float, and two more
    shape: Shape,
    matrices: Tensors,
    norms: Norms,
    tokens: list[int],
    kv: str,
    feed_forward: FeedForward = DENSE,
) -> F32:
    """Logits (tokens, vocab) of one sequence, bit for bit those of the kernels. `kv`: "f16" or "int8"."""
    x = matrices["token_embd.weight"].values[tokens].copy()
    count, head_dim = len(tokens), shape.head_dim
    angles = [rope_angles(p, shape.rope_dim, shape.rope_base) for p in range(count)]
    cosine = np.stack([c for c, _ in angles])[:, None, :]
    sine = np.stack([s for _, s in angles])[:, None, :]
    query_scale = np.float32(1.0 / math.sqrt(head_dim))
    group = shape.n_heads // shape.n_kv_heads

    def product(name: str, rows: F32) -> F32:
        return multiply(matrices[name], rows)

    for layer in range(shape.n_layers):
        at = f"blk.{layer}."
        y = rms_norm(x, norms[at + "attn_norm.weight"], shape.norm_eps)
        q = product(at + "attn_q.weight", y).reshape(count, shape.n_heads, head_dim)
        k = product(at + "attn_k.weight", y).reshape(count, shape.n_kv_heads, head_dim)
        v = product(at + "attn_v.weight", y).reshape(count, shape.n_kv_heads, head_dim)
        q = rotate(q, cosine, sine) * query_scale
        keys, values = store_kv(rotate(k, cosine, sine), kv), store_kv(v, kv)
        attended = np.empty((count, shape.n_heads, head_dim), np.float32)
        for t in range(count):
            for h in range(shape.n_heads):
                g = h // group
                attended[t, h] = attend(
                    q[t, h],
                    KvStore(keys.values[: t + 1, g], keys.scale[: t + 1, g]),
                    KvStore(values.values[: t + 1, g], values.scale[: t + 1, g]),
                )
        x = x + product(at + "attn_output.weight", attended.reshape(count, -1))
        y = rms_norm(x, norms[at + "ffn_norm.weight"], shape.norm_eps)
        x = feed_forward.exact(matrices, at, x, y)
    y = rms_norm(x, norms["output_norm.weight"], shape.norm_eps)
    return product("output.weight" if "output.weight" in matrices else "token_embd.weight", y)


def forward_float(
    shape: Shape, matrices: Tensors, norms: Norms, tokens: list[int], feed_forward: FeedForward = DENSE
) -> F64:
    """Logits (tokens, vocab) in plain float64 on dequantized weights: what the network means."""
    x = matrices["token_embd.weight"].values[tokens].astype(np.float64)
    count, head_dim = len(tokens), shape.head_dim
    frequency = shape.rope_base ** -(np.arange(0, shape.rope_dim, 2) / shape.rope_dim)
    angle = np.arange(count)[:, None, None] * frequency
    causal = np.tril(np.ones((count, count), bool))
    group = shape.n_heads // shape.n_kv_heads

    def product(name: str, rows: F64) -> F64:
        return np.asarray(rows @ matrices[name].values.T.astype(np.float64))

    def norm(rows: F64, name: str) -> F64:
        mean = (rows**2).mean(-1, keepdims=True)
        return np.asarray(rows / np.sqrt(mean + shape.norm_eps) * norms[name])

    def turned(rows: F64) -> F64:
        out = rows.copy()
        a, b = rows[..., 0 : shape.rope_dim : 2], rows[..., 1 : shape.rope_dim : 2]
        out[..., 0 : shape.rope_dim : 2] = a * np.cos(angle) - b * np.sin(angle)
        out[..., 1 : shape.rope_dim : 2] = a * np.sin(angle) + b * np.cos(angle)
        return out

    for layer in range(shape.n_layers):
        at = f"blk.{layer}."
        y = norm(x, at + "attn_norm.weight")
        q = turned(product(at + "attn_q.weight", y).reshape(count, shape.n_heads, head_dim))
        k = turned(product(at + "attn_k.weight", y).reshape(count, shape.n_kv_heads, head_dim))
        v = product(at + "attn_v.weight", y).reshape(count, shape.n_kv_heads, head_dim)
        scores = np.einsum("qhd,khd->hqk", q, k.repeat(group, axis=1)) / math.sqrt(head_dim)
        scores = np.where(causal, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", weights, v.repeat(group, axis=1))
        x = x + product(at + "attn_output.weight", attended.reshape(count, -1))
        y = norm(x, at + "ffn_norm.weight")
        x = feed_forward.floats(matrices, at, x, y)
    y = norm(x, "output_norm.weight")
    return product("output.weight" if "output.weight" in matrices else "token_embd.weight", y)

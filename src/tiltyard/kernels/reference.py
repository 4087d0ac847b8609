"""The numerics contract of the forward pass in NumPy: slow, readable, and the oracle of the compiled kernels.

`forward_exact` is what the contract says (docs/numerics.md): the same operations in the same order as the kernels, so its
logits are theirs, bit for bit. Its arithmetic is in `reference_math`, its attention in `reference_attention`, its rope
tables in `rope`. `reference_float.forward_float` is what the network means, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tiltyard.kernels.reference_attention import KvStore, attend, store_kv
from tiltyard.kernels.reference_math import (
    F32,
    F64,
    ONE,
    SMALLEST,
    ZERO,
    exp32,
    fma,
    inverse_step,
    sincos64,
    tree_sum,
)
from tiltyard.kernels.rope import RopeTable, rope_table

QUANT_BLOCK = 32


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, as in its GGUF header; the options, after `rope_dim`, are off as in Llama."""

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
    activation: Literal["silu", "gelu"] = "silu"
    rope_style: Literal["adjacent", "halves"] = "adjacent"
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    embedding_scale: float = 1.0
    query_scale: float = 0.0
    """0: 1 / sqrt(head_dim)."""
    windows: tuple[int, ...] = ()
    """Positions that each layer sees, its own included; 0, or no tuple: all."""
    rope_tables: tuple[RopeTable, ...] = ()
    """Empty: one of `rope_base`."""
    layer_rope: tuple[int, ...] = ()
    """Which table each layer uses; empty: the first."""
    rope_factors: bool = False
    """Whether the vector `rope_freqs.weight` divides the frequencies of the first table."""

    def window(self, layer: int) -> int:
        """Positions that a layer sees; 0: all."""
        return self.windows[layer] if self.windows else 0

    def rope(self, layer: int, vectors: Norms) -> RopeTable:
        """The rope table of a layer."""
        which = self.layer_rope[layer] if self.layer_rope else 0
        tables = self.rope_tables or (rope_table(self.rope_dim, self.rope_base),)
        table = tables[which]
        if self.rope_factors and which == 0:
            factors = vectors["rope_freqs.weight"]
            table = table._replace(
                frequencies=[f / float(g) for f, g in zip(table.frequencies, factors, strict=True)]
            )
        return table

    @property
    def scale_of_queries(self) -> float:
        """What multiplies queries after their rotation."""
        return self.query_scale or 1.0 / math.sqrt(self.head_dim)


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
"""Every tensor with one dimension: norm gains, biases, rope factors."""


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


def rope_angles(position: int, table: RopeTable) -> tuple[F32, F32]:
    """Cosines and sines of the pairs at a position; Su et al. 2021, equation 34."""
    pairs = [sincos64(position * frequency) for frequency in table.frequencies]
    return (
        np.array([cosine * table.amplitude for _, cosine in pairs], np.float32),
        np.array([sine * table.amplitude for sine, _ in pairs], np.float32),
    )


class Quantized(NamedTuple):
    """int8 activations, in blocks of 32 along the last axis: value = scale * q, and one outlier apart.

    A value that holds more than half of its block's energy is the outlier: it stays a float, and its q is 0.
    """

    q: NDArray[np.int32]
    scale: F32
    total: F32  # sum of a block's values
    outlier: F32  # 0: none
    place: NDArray[np.intp]


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


def rotate(x: F32, cosine: F32, sine: F32, style: Literal["adjacent", "halves"] = "adjacent") -> F32:
    """Rotate the pairs of the last axis, (2i, 2i + 1) or (i, i + pairs); what lies beyond the pairs stays."""
    out = x.copy()
    first, second = pairs_of(2 * cosine.shape[-1], style)
    a, b = x[..., first], x[..., second]
    out[..., first] = a * cosine - b * sine
    out[..., second] = a * sine + b * cosine
    return out


def pairs_of(n: int, style: Literal["adjacent", "halves"]) -> tuple[slice, slice]:
    """Where the first and the second values of the pairs lie among n values."""
    if style == "halves":
        return slice(0, n // 2), slice(n // 2, n)
    return slice(0, n, 2), slice(1, n, 2)


def silu_multiply(gate: F32, up: F32) -> F32:
    """gate / (1 + exp(-gate)) * up; Shazeer 2020, https://arxiv.org/abs/2002.05202."""
    return np.asarray((gate / (ONE + exp32(ZERO - gate))) * up)


def gelu_multiply(gate: F32, up: F32) -> F32:
    """GELU of the gate in its tanh form, times up; Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415.

    0.5 x (1 + tanh(z / 2)) = x / (1 + exp(-z)), with z = 2 sqrt(2 / pi) (x + 0.044715 x^3).
    """
    z = gate * fma(gate * gate, np.float32(0.07135481627260025), np.float32(1.5957691216057308))
    return np.asarray((gate / (ONE + exp32(ZERO - z))) * up)


# The network


class Mixture(Protocol):
    """A mixture of experts in place of each layer's feed-forward network (reference_experts.py)."""

    def exact(self, matrices: Tensors, at: str, x: F32, y: F32) -> F32:
        """Residual `x` with what is made of the normed rows `y` added; `at` is the layer's prefix, such as "blk.0."."""

    def floats(self, matrices: Tensors, at: str, x: F64, y: F64) -> F64:
        """The same in plain float64."""


def forward_exact(  # noqa: PLR0917 - as forward_float, and two more
    shape: Shape,
    matrices: Tensors,
    norms: Norms,
    tokens: list[int],
    kv: str,
    experts: Mixture | None = None,
) -> F32:
    """Logits (tokens, vocab) of one sequence, bit for bit those of the kernels. `kv`: "f16" or "int8"."""
    hidden = hidden_exact(shape, matrices, norms, tokens, kv, experts)
    return multiply(matrices["output.weight" if "output.weight" in matrices else "token_embd.weight"], hidden)


def hidden_exact(  # noqa: PLR0917 - as forward_exact
    shape: Shape,
    matrices: Tensors,
    norms: Norms,
    tokens: list[int],
    kv: str,
    experts: Mixture | None = None,
) -> F32:
    """What the head multiplies: the final norm's output (tokens, dim)."""
    x = matrices["token_embd.weight"].values[tokens].copy()
    if shape.embedding_scale != 1:
        x = x * np.float32(shape.embedding_scale)
    for layer in range(shape.n_layers):
        at = f"blk.{layer}."
        y = rms_norm(x, norms[at + "attn_norm.weight"], shape.norm_eps)
        y = multiply(matrices[at + "attn_output.weight"], _attention(shape, matrices, norms, layer, y, kv=kv))
        if shape.post_norms:
            y = rms_norm(y, norms[at + "post_attention_norm.weight"], shape.norm_eps)
        x = x + y
        y = rms_norm(x, norms[at + "ffn_norm.weight"], shape.norm_eps)
        if experts is not None:
            x = experts.exact(matrices, at, x, y)
            continue
        gate, up = multiply(matrices[at + "ffn_gate.weight"], y), multiply(matrices[at + "ffn_up.weight"], y)
        y = gelu_multiply(gate, up) if shape.activation == "gelu" else silu_multiply(gate, up)
        y = multiply(matrices[at + "ffn_down.weight"], y)
        if shape.post_norms:
            y = rms_norm(y, norms[at + "post_ffw_norm.weight"], shape.norm_eps)
        x = x + y
    return rms_norm(x, norms["output_norm.weight"], shape.norm_eps)


def _attention(shape: Shape, matrices: Tensors, norms: Norms, layer: int, y: F32, *, kv: str) -> F32:
    """Attention of all heads of one layer, side by side (tokens, heads * head_dim)."""
    at, count = f"blk.{layer}.", len(y)
    table = shape.rope(layer, norms)
    angles = [rope_angles(position, table) for position in range(count)]
    cosine, sine = (np.stack(values)[:, None, :] for values in zip(*angles, strict=True))

    def heads(name: str, n: int) -> F32:
        rows = multiply(matrices[f"{at}attn_{name}.weight"], y)
        if shape.qkv_bias:
            rows = rows + norms[f"{at}attn_{name}.bias"]
        rows = rows.reshape(count, n, shape.head_dim)
        if shape.qk_norm and name != "v":
            rows = rms_norm(rows, norms[f"{at}attn_{name}_norm.weight"], shape.norm_eps)
        return rows if name == "v" else rotate(rows, cosine, sine, shape.rope_style)

    q = heads("q", shape.n_heads) * np.float32(shape.scale_of_queries)
    keys = store_kv(heads("k", shape.n_kv_heads), kv)
    values = store_kv(heads("v", shape.n_kv_heads), kv)
    attended = np.empty((count, shape.n_heads, shape.head_dim), np.float32)
    window = shape.window(layer)
    for t in range(count):
        first = max(t + 1 - window, 0) if window else 0
        for h in range(shape.n_heads):
            g = h * shape.n_kv_heads // shape.n_heads
            attended[t, h] = attend(
                q[t, h],
                KvStore(keys.values[: t + 1, g], keys.scale[: t + 1, g]),
                KvStore(values.values[: t + 1, g], values.scale[: t + 1, g]),
                first,
            )
    return attended.reshape(count, -1)

"""What the network means: a forward pass in float64 on dequantized weights, no blocks, no quantized activations.

The kernels come close to it; nothing here is part of the contract.
"""

from __future__ import annotations

import math

import numpy as np

from tiltyard.kernels.reference import Mixture, Norms, Shape, Tensors, pairs_of
from tiltyard.kernels.reference_math import F64


def forward_float(
    shape: Shape, matrices: Tensors, norms: Norms, tokens: list[int], experts: Mixture | None = None
) -> F64:
    """Logits (tokens, vocab) in plain float64 on dequantized weights: what the network means."""
    count = len(tokens)

    def product(name: str, rows: F64) -> F64:
        return np.asarray(rows @ matrices[name].values.T.astype(np.float64))

    def norm(rows: F64, name: str) -> F64:
        mean = (rows**2).mean(-1, keepdims=True)
        return np.asarray(rows / np.sqrt(mean + shape.norm_eps) * norms[name])

    def heads(at: str, name: str, n: int, y: F64) -> F64:
        rows = product(f"{at}attn_{name}.weight", y)
        if shape.qkv_bias:
            rows = rows + norms[f"{at}attn_{name}.bias"]
        rows = rows.reshape(count, n, shape.head_dim)
        return norm(rows, f"{at}attn_{name}_norm.weight") if shape.qk_norm and name != "v" else rows

    def attended(at: str, layer: int, y: F64) -> F64:
        table = shape.rope(layer, norms)
        angle = np.arange(count)[:, None, None] * np.array(table.frequencies)
        cosine, sine = table.amplitude * np.cos(angle), table.amplitude * np.sin(angle)
        first, second = pairs_of(shape.rope_dim, shape.rope_style)

        def turned(rows: F64) -> F64:
            out = rows.copy()
            out[..., first] = rows[..., first] * cosine - rows[..., second] * sine
            out[..., second] = rows[..., first] * sine + rows[..., second] * cosine
            return out

        q, k = turned(heads(at, "q", shape.n_heads, y)), turned(heads(at, "k", shape.n_kv_heads, y))
        v = heads(at, "v", shape.n_kv_heads, y)
        group = shape.n_heads // shape.n_kv_heads
        scores = np.einsum("qhd,khd->hqk", q, k.repeat(group, axis=1)) * shape.scale_of_queries
        seen = np.tril(np.ones((count, count), bool))
        if window := shape.window(layer):
            seen &= ~np.tril(seen, -window)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.asarray(np.einsum("hqk,khd->qhd", weights, v.repeat(group, axis=1)).reshape(count, -1))

    x = matrices["token_embd.weight"].values[tokens].astype(np.float64) * shape.embedding_scale
    for layer in range(shape.n_layers):
        at = f"blk.{layer}."
        y = product(at + "attn_output.weight", attended(at, layer, norm(x, at + "attn_norm.weight")))
        x = x + (norm(y, at + "post_attention_norm.weight") if shape.post_norms else y)
        y = norm(x, at + "ffn_norm.weight")
        if experts is not None:
            x = experts.floats(matrices, at, x, y)
            continue
        gate, up = product(at + "ffn_gate.weight", y), product(at + "ffn_up.weight", y)
        z = 2 * math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3) if shape.activation == "gelu" else gate
        y = product(at + "ffn_down.weight", gate / (1 + np.exp(-z)) * up)
        x = x + (norm(y, at + "post_ffw_norm.weight") if shape.post_norms else y)
    y = norm(x, "output_norm.weight")
    return product("output.weight" if "output.weight" in matrices else "token_embd.weight", y)

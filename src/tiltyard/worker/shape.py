"""An architecture in the words of the native engine."""

from __future__ import annotations

from typing import Literal, TypedDict

from tiltyard.kernels.rope import RopeTable, rope_table
from tiltyard.models.architecture import Architecture


class NativeShape(TypedDict):
    """Arguments of `NativeModel` that an architecture decides."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dim: int
    ff_dim: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    rope_base: float
    rope_dim: int
    tied_embeddings: bool
    activation: Literal["silu", "gelu"]
    rope_style: Literal["adjacent", "halves"]
    qkv_bias: bool
    qk_norm: bool
    post_norms: bool
    embedding_scale: float
    query_scale: float
    windows: list[int]
    rope_tables: list[RopeTable]
    layer_rope: list[int]
    rope_factors: bool
    n_experts: int
    n_experts_used: int
    expert_ff_dim: int


def native_shape(architecture: Architecture) -> NativeShape:
    """Say the same layer by layer, with rope frequencies instead of bases; raises `ConfigurationError`."""
    a = architecture
    local = [a.is_local(layer) for layer in range(a.n_layers)]
    tables = [rope_table(a.rope_dim, a.rope_base, a.rope_scaling)]
    if a.local_rope_base is not None:
        tables.append(rope_table(a.rope_dim, a.local_rope_base))
    return NativeShape(
        n_layers=a.n_layers,
        n_heads=a.n_heads,
        n_kv_heads=a.n_kv_heads,
        head_dim=a.head_dim,
        dim=a.dim,
        ff_dim=a.ff_dim,
        vocab_size=a.vocab_size,
        max_positions=a.max_positions,
        norm_eps=a.norm_eps,
        rope_base=a.rope_base,
        rope_dim=a.rope_dim,
        tied_embeddings=a.tied_embeddings,
        activation=a.activation,
        rope_style=a.rope_style,
        qkv_bias=a.qkv_bias,
        qk_norm=a.qk_norm,
        post_norms=a.post_norms,
        embedding_scale=a.embedding_scale,
        query_scale=a.query_scale or 0.0,
        windows=[a.window if is_local else 0 for is_local in local],
        rope_tables=tables,
        layer_rope=[int(is_local and len(tables) > 1) for is_local in local],
        rope_factors=a.rope_factors,
        n_experts=a.n_experts,
        n_experts_used=a.n_experts_used,
        expert_ff_dim=a.expert_ff_dim,
    )

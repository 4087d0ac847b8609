"""Models for the kernel tests: random small ones of any shape and weight mix, and GGUF files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tiltyard.identity.rope import RopeScaling
from tiltyard.kernels import BLOCK_TOKENS, NativeModel
from tiltyard.kernels.reference import Matrix, Shape
from tiltyard.kernels.reference_experts import Experts
from tiltyard.kernels.reference_formats import decode
from tiltyard.kernels.rope import rope_table

F32, F16, Q4_0, Q4_1, Q8_0 = 0, 1, 2, 3, 8
Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, BF16 = 6, 7, 12, 13, 14, 30
BLOCK_BYTES = {
    F32: 4, F16: 2, BF16: 2, Q4_0: 18, Q4_1: 20, Q5_0: 22, Q5_1: 24, Q8_0: 34, Q4_K: 144, Q5_K: 176, Q6_K: 210
}  # fmt: skip
SUPER_BLOCKS = (Q4_K, Q5_K, Q6_K)  # of 256 values


def random_bytes(ggml_type: int, rows: int, columns: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A random matrix in a GGUF encoding, its values around 1 / sqrt(columns)."""
    size = 1.0 / np.sqrt(columns)
    if ggml_type in (F32, F16):
        dtype = np.float32 if ggml_type == F32 else np.float16
        return (rng.standard_normal((rows, columns)) * size).astype(dtype).view(np.uint8).reshape(-1)
    if ggml_type == BF16:
        values = (rng.standard_normal((rows, columns)) * size).astype(np.float32)
        return (
            np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8).reshape(-1)
        )
    width = 256 if ggml_type in SUPER_BLOCKS else 32
    blocks = rng.integers(0, 256, (rows, columns // width, BLOCK_BYTES[ggml_type]), dtype=np.uint8)
    step = {Q4_0: 4.0, Q4_1: 4.0, Q5_0: 8.0, Q5_1: 8.0, Q8_0: 64.0, Q4_K: 128.0, Q5_K: 256.0, Q6_K: 1024.0}[
        ggml_type
    ]
    scale = (rng.uniform(0.5, 1.5, blocks.shape[:2]) * size / step).astype(np.float16)
    at = 208 if ggml_type == Q6_K else 0
    blocks[..., at : at + 2] = scale[..., None].view(np.uint8)
    if ggml_type in (Q4_1, Q5_1, Q4_K, Q5_K):  # of super-blocks the minimum is taken off
        low, high = {Q4_1: (-9, -6), Q5_1: (-18, -12), Q4_K: (6, 9), Q5_K: (12, 18)}[ggml_type]
        minimum = (scale * rng.uniform(low, high, scale.shape)).astype(np.float16)
        blocks[..., 2:4] = minimum[..., None].view(np.uint8)
    return blocks.reshape(-1)


@dataclass
class SmallModel:
    """Random weights under GGUF names, for the kernels and for the reference."""

    shape: Shape
    types: Sequence[int] = (Q4_1, Q8_0)  # drawn from for each matrix
    tied: bool = True
    seed: int = 0
    max_positions: int = 1024
    experts: Experts | None = None  # each with an inner width of ff_dim
    raw: dict[str, tuple[int, NDArray[np.uint8]]] = field(default_factory=dict)
    matrices: dict[str, Matrix] = field(default_factory=dict)
    norms: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s, rng = self.shape, np.random.default_rng(self.seed)
        heads, kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
        sizes = {"token_embd.weight": (s.vocab_size, s.dim)}
        if not self.tied:
            sizes["output.weight"] = (s.vocab_size, s.dim)
        self.norms["output_norm.weight"] = rng.uniform(0.5, 1.5, s.dim).astype(np.float32)
        for i in range(s.n_layers):
            at = f"blk.{i}."
            stack = "_exps" if self.experts else ""
            count = self.experts.count if self.experts else 1
            sizes |= {
                at + "attn_q.weight": (heads, s.dim),
                at + "attn_k.weight": (kv, s.dim),
                at + "attn_v.weight": (kv, s.dim),
                at + "attn_output.weight": (s.dim, heads),
                at + f"ffn_gate{stack}.weight": (count * s.ff_dim, s.dim),
                at + f"ffn_up{stack}.weight": (count * s.ff_dim, s.dim),
                at + f"ffn_down{stack}.weight": (count * s.dim, s.ff_dim),
            }
            if self.experts:
                sizes[at + "ffn_gate_inp.weight"] = (count, s.dim)
            for name in ("attn_norm.weight", "ffn_norm.weight"):
                self.norms[at + name] = rng.uniform(0.5, 1.5, s.dim).astype(np.float32)
            if s.post_norms:
                for name in ("post_attention_norm.weight", "post_ffw_norm.weight"):
                    self.norms[at + name] = rng.uniform(0.1, 0.5, s.dim).astype(np.float32)
            if s.qk_norm:
                for name in ("attn_q_norm.weight", "attn_k_norm.weight"):
                    self.norms[at + name] = rng.uniform(0.5, 1.5, s.head_dim).astype(np.float32)
            if s.qkv_bias:
                for name, size in (("attn_q.bias", heads), ("attn_k.bias", kv), ("attn_v.bias", kv)):
                    self.norms[at + name] = rng.standard_normal(size).astype(np.float32)
        if s.rope_factors:
            self.norms["rope_freqs.weight"] = rng.uniform(1, 8, s.rope_dim // 2).astype(np.float32)
        for name, (rows, columns) in sizes.items():
            kind = F32 if "gate_inp" in name else int(rng.choice(self.types))
            data = random_bytes(kind, rows, columns, rng)
            self.raw[name] = (kind, data)
            self.matrices[name] = decode(kind, data, rows, columns)

    def native(
        self,
        *,
        isa: str = "scalar",
        threads: int = 1,
        kv: str = "f16",
        blocks: int = 64,
        requantize: int | None = None,
        packed: Mapping[str, tuple[int, NDArray[np.uint8], int]] | None = None,
        offload: tuple[Path, int] | None = None,
    ) -> NativeModel:
        s = self.shape
        more = expert_arguments(self.experts, s.ff_dim)
        model = NativeModel(
            n_layers=s.n_layers,
            n_heads=s.n_heads,
            n_kv_heads=s.n_kv_heads,
            head_dim=s.head_dim,
            dim=s.dim,
            ff_dim=s.ff_dim,
            vocab_size=s.vocab_size,
            max_positions=self.max_positions,
            norm_eps=s.norm_eps,
            rope_base=s.rope_base,
            rope_dim=s.rope_dim,
            tied_embeddings=self.tied,
            activation=s.activation,
            rope_style=s.rope_style,
            qkv_bias=s.qkv_bias,
            qk_norm=s.qk_norm,
            post_norms=s.post_norms,
            embedding_scale=s.embedding_scale,
            query_scale=s.query_scale,
            windows=s.windows,
            rope_tables=s.rope_tables,
            layer_rope=s.layer_rope,
            rope_factors=s.rope_factors,
            threads=threads,
            isa=isa,
            **more,
        )
        if offload:
            model.offload_experts(str(offload[0]), offload[1])
        for name, (kind, data) in self.raw.items():
            if packed is None:
                model.set_tensor(name, kind, data, requantize)
            else:
                model.set_packed(name, *packed[name])
        for name, gain in self.norms.items():
            model.set_tensor(name, F32, gain.view(np.uint8))
        model.finish()
        model.allocate_kv(blocks, kv)
        return model


def expert_arguments(experts: Experts | None, width: int) -> dict[str, int]:
    if experts is None:
        return {}
    return {
        "n_experts": experts.count,
        "n_experts_used": experts.used,
        "expert_ff_dim": width,
        "normalize_experts": experts.normalize,
    }


def run(
    model: NativeModel,
    vocab: int,
    tokens: Sequence[int],
    *,
    start: int = 0,
    table: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """Feed `tokens` of one sequence from position `start`; logits of `rows` (all by default)."""
    count = len(tokens)
    if table is None:
        table = range(-(-(start + count) // BLOCK_TOKENS))
    wanted = np.arange(count, dtype=np.int32) if rows is None else np.array(rows, np.int32)
    logits = np.empty((len(wanted), vocab), np.float32)
    model.forward(
        np.array(tokens, np.int32),
        np.arange(start, start + count, dtype=np.int32),
        np.zeros(count, np.int32),
        np.array([list(table)], np.int32),
        wanted,
        logits,
    )
    return logits


SMALL = Shape(
    n_layers=2,
    n_heads=6,
    n_kv_heads=2,
    head_dim=32,
    dim=96,
    ff_dim=160,
    vocab_size=203,
    norm_eps=1e-5,
    rope_base=10000.0,
    rope_dim=32,
)

LOCAL_AND_SCALED = (
    rope_table(32, 1e4),
    rope_table(32, 1e6, RopeScaling(type="yarn", factor=4.0, original_context=256)),
)
FAMILIES = {
    "mistral": replace(SMALL, n_layers=1, windows=(20,)),
    "qwen2": replace(SMALL, n_layers=1, rope_style="halves", qkv_bias=True),
    "qwen3": replace(
        SMALL, rope_style="halves", qk_norm=True, n_heads=5, n_kv_heads=1, head_dim=40, rope_dim=32, dim=80
    ),
    "gemma3": replace(
        SMALL,
        activation="gelu",
        rope_style="halves",
        qk_norm=True,
        post_norms=True,
        embedding_scale=96**0.5,
        query_scale=0.2,
        windows=(24, 0),
        rope_tables=LOCAL_AND_SCALED,
        layer_rope=(0, 1),
    ),
    "gemma3 with heads of 256": replace(
        SMALL,
        activation="gelu",
        rope_style="halves",
        qk_norm=True,
        post_norms=True,
        n_layers=1,
        n_heads=4,
        n_kv_heads=1,
        head_dim=256,
        rope_dim=256,
        windows=(33,),
    ),
    "llama 3": replace(SMALL, n_layers=1, rope_factors=True, rope_base=5e5),
    "everything at once": replace(
        SMALL,
        activation="gelu",
        qkv_bias=True,
        qk_norm=True,
        post_norms=True,
        head_dim=24,
        rope_dim=24,
        n_heads=4,
        dim=72,
        ff_dim=88,
        windows=(0, 7),
        rope_factors=True,
    ),
}
"""The option sets of the families, as the kernels see them."""


@dataclass(frozen=True)
class GgufWeights:
    """A model file's header values and tensors, read with the `gguf` package."""

    header: dict[str, float]
    vocab: int
    tensors: dict[str, tuple[int, NDArray[np.uint8]]]

    def native(
        self,
        *,
        isa: str,
        threads: int = 2,
        kv: str = "f16",
        blocks: int = 64,
        requantize: int | None = None,
        offload: tuple[Path, int] | None = None,
    ) -> NativeModel:
        h = self.header
        experts = Experts(int(h.get("expert_count", 0)), int(h.get("expert_used_count", 0)))
        heads, dim = int(h["attention.head_count"]), int(h["embedding_length"])
        model = NativeModel(
            n_layers=int(h["block_count"]),
            n_heads=heads,
            n_kv_heads=int(h["attention.head_count_kv"]),
            head_dim=dim // heads,
            dim=dim,
            ff_dim=int(h["feed_forward_length"]),
            vocab_size=self.vocab,
            max_positions=int(h["context_length"]),
            norm_eps=h["attention.layer_norm_rms_epsilon"],
            rope_base=h.get("rope.freq_base", 10000.0),
            rope_dim=int(h.get("rope.dimension_count", dim // heads)),
            tied_embeddings="output.weight" not in self.tensors,
            threads=threads,
            isa=isa,
            **expert_arguments(experts if experts.count else None, int(h["feed_forward_length"])),
        )
        if offload:
            model.offload_experts(str(offload[0]), offload[1])
        for name, (kind, raw) in self.tensors.items():
            model.set_tensor(name, kind, raw, None if "norm" in name else requantize)
        model.finish()
        model.allocate_kv(blocks, kv)
        return model


def read_gguf(path: Path) -> GgufWeights:
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(path)
    header = {
        name.removeprefix("llama."): value.contents()
        for name, value in reader.fields.items()
        if name.startswith("llama.") and isinstance(value.contents(), (int, float))
    }
    tensors = {
        t.name: (int(t.tensor_type), np.ascontiguousarray(t.data).view(np.uint8).reshape(-1))
        for t in reader.tensors
    }
    vocab = next(int(t.shape[1]) for t in reader.tensors if t.name == "token_embd.weight")
    return GgufWeights(header, vocab, tensors)

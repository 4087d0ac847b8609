"""The shape of a Llama-family model, read from GGUF metadata and checked against the tensors."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from tiltyard.errors import ModelRejected
from tiltyard.models.gguf import GgufFile

MAX_SIZE = 1 << 24
"""No width, count or context of a real model is larger."""
DEFAULT_ROPE_BASE = 10_000.0
"""What a file means that does not say (llama.cpp's default)."""


@dataclass(frozen=True)
class LlamaArchitecture:
    """Sizes of a Llama-family transformer; all but the last three are counts."""

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

    @classmethod
    def from_gguf(cls, gguf: GgufFile) -> LlamaArchitecture:
        """Read and check; raises `ModelRejected` naming the key or tensor that is missing or odd."""
        fields = _Fields(gguf)
        family = gguf.metadata.get("general.architecture")
        if family != "llama":
            raise ModelRejected(f"{gguf.path}: architecture {family!r} is not supported; supported: 'llama'")
        _refuse_unsupported(gguf)
        dim = fields.size("llama.embedding_length")
        n_heads = fields.size("llama.attention.head_count")
        n_kv_heads = fields.size("llama.attention.head_count_kv", default=n_heads)
        head_dim = fields.size("llama.attention.key_length", default=max(1, dim // n_heads))
        if n_heads % n_kv_heads:
            raise ModelRejected(
                f"{gguf.path}: {n_heads} heads do not divide into {n_kv_heads} key-value heads"
            )
        if fields.size("llama.attention.value_length", default=head_dim) != head_dim:
            raise ModelRejected(f"{gguf.path}: keys and values of different lengths are not supported")
        rope_dim = fields.size("llama.rope.dimension_count", default=head_dim)
        if rope_dim > head_dim or rope_dim % 2:
            raise ModelRejected(
                f"{gguf.path}: llama.rope.dimension_count is {rope_dim}; "
                f"it must be even and at most {head_dim}"
            )
        architecture = cls(
            n_layers=fields.size("llama.block_count"),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            dim=dim,
            ff_dim=fields.size("llama.feed_forward_length"),
            vocab_size=_vocabulary_size(gguf),
            max_positions=fields.size("llama.context_length"),
            norm_eps=fields.positive("llama.attention.layer_norm_rms_epsilon"),
            rope_base=fields.positive("llama.rope.freq_base", default=DEFAULT_ROPE_BASE),
            rope_dim=rope_dim,
            tied_embeddings="output.weight" not in gguf.tensors,
        )
        architecture._check_tensors(gguf)
        return architecture

    def to_manifest(self) -> dict[str, int | float | str | bool]:
        """Return what a behaviour manifest records: the family and every field."""
        return {"family": "llama", **asdict(self)}

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return each tensor that the engine needs, with its shape in NumPy order (rows, columns)."""
        queries, keys = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (self.vocab_size, self.dim),
            "output_norm.weight": (self.dim,),
        }
        if not self.tied_embeddings:
            shapes["output.weight"] = (self.vocab_size, self.dim)
        for layer in range(self.n_layers):
            block = {
                "attn_norm": (self.dim,),
                "attn_q": (queries, self.dim),
                "attn_k": (keys, self.dim),
                "attn_v": (keys, self.dim),
                "attn_output": (self.dim, queries),
                "ffn_norm": (self.dim,),
                "ffn_gate": (self.ff_dim, self.dim),
                "ffn_up": (self.ff_dim, self.dim),
                "ffn_down": (self.dim, self.ff_dim),
            }
            shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
        return shapes

    def _check_tensors(self, gguf: GgufFile) -> None:
        if self.n_layers > len(gguf.tensors):
            raise ModelRejected(
                f"{gguf.path}: {self.n_layers:,} layers, but only {len(gguf.tensors):,} tensors"
            )
        expected = self.tensor_shapes()
        missing = sorted(expected.keys() - gguf.tensors.keys())
        if missing:
            raise ModelRejected(f"{gguf.path}: {len(missing)} tensors are missing, such as {missing[0]!r}")
        surplus = sorted(gguf.tensors.keys() - expected.keys())
        if surplus:
            raise ModelRejected(
                f"{gguf.path}: tensor {surplus[0]!r} is no part of a plain Llama model; {len(surplus)} such; "
                "serving without it would change the answers, so the file is refused"
            )
        for name, shape in expected.items():
            info = gguf.tensors[name]
            if info.shape != shape:
                raise ModelRejected(f"{gguf.path}: tensor {name!r} has shape {info.shape}; expected {shape}")


class _Fields:
    """Typed access to metadata; the error names file, key and value."""

    def __init__(self, gguf: GgufFile) -> None:
        self.gguf = gguf

    def size(self, key: str, default: int | None = None) -> int:
        value = self.gguf.metadata.get(key, default)
        if value is None:
            raise ModelRejected(f"{self.gguf.path}: metadata key {key!r} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise ModelRejected(
                f"{self.gguf.path}: {key!r} is {value!r}; expected an integer from 1 to {MAX_SIZE:,}"
            )
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.gguf.metadata.get(key, default)
        if value is None:
            raise ModelRejected(f"{self.gguf.path}: metadata key {key!r} is missing")
        if not isinstance(value, float) or not math.isfinite(value) or value <= 0:
            raise ModelRejected(f"{self.gguf.path}: {key!r} is {value!r}; expected a positive number")
        return value


def _vocabulary_size(gguf: GgufFile) -> int:
    """Rows of the embedding; what the metadata says must agree."""
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelRejected(f"{gguf.path}: tensor 'token_embd.weight' is missing; is this only a vocabulary?")
    rows = embedding.shape[0]
    if rows > MAX_SIZE:
        raise ModelRejected(
            f"{gguf.path}: tensor 'token_embd.weight' has {rows:,} rows; at most {MAX_SIZE:,}"
        )
    claimed = gguf.metadata.get("llama.vocab_size", rows)
    if claimed != rows:
        raise ModelRejected(
            f"{gguf.path}: 'llama.vocab_size' is {claimed!r}, but the embedding has {rows:,} rows"
        )
    return rows


def _refuse_unsupported(gguf: GgufFile) -> None:
    scaling = gguf.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelRejected(f"{gguf.path}: RoPE scaling {scaling!r} is not supported yet")
    experts = gguf.metadata.get("llama.expert_count", 0)
    if experts:
        raise ModelRejected(f"{gguf.path}: mixture of {experts} experts is not supported yet")
    if "llama.attention.sliding_window" in gguf.metadata:
        raise ModelRejected(f"{gguf.path}: sliding-window attention is not supported yet")

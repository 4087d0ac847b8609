"""The shape of a decoder-only transformer, read from GGUF metadata and checked against the tensors.

One description serves all families: what sets them apart are options, each off as in plain Llama.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, NamedTuple

from tiltyard.errors import ModelRejected
from tiltyard.identity.rope import OWN_FIELDS, RopeScaling
from tiltyard.models.experts import experts_of
from tiltyard.models.metadata import MAX_SIZE, Fields
from tiltyard.models.rope import stored_scaling
from tiltyard.models.stored import StoredModel

DEFAULT_ROPE_BASE = 10_000.0
"""What a file means that does not say (llama.cpp's default)."""


class Family(NamedTuple):
    """What the name in `general.architecture` implies; the rest stands in the metadata."""

    activation: Literal["silu", "gelu"] = "silu"
    rope_style: Literal["adjacent", "halves"] = "adjacent"
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    rope_base: float = DEFAULT_ROPE_BASE
    experts: bool = False


FAMILIES = {
    "llama": Family(),  # Llama, SmolLM, Mistral, Mixtral
    "qwen2": Family(rope_style="halves", qkv_bias=True),
    "qwen3": Family(rope_style="halves", qk_norm=True),
    "qwen3moe": Family(rope_style="halves", qk_norm=True, experts=True),
    "gemma3": Family("gelu", "halves", qk_norm=True, post_norms=True, rope_base=1_000_000.0),
}
GEMMA3_GLOBAL_EVERY = 6
"""Gemma 3, https://arxiv.org/abs/2503.19786, section 2: five local layers, then a global one."""
GEMMA3_27B_LAYERS = 62
"""The one Gemma 3 whose queries are scaled by width / heads, and no key says so (llama.cpp: by layers, too)."""


@dataclass(frozen=True)
class Architecture:
    """Sizes and options of a transformer; those up to `tied_embeddings` are plain Llama's."""

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
    family: str = "llama"
    activation: Literal["silu", "gelu"] = "silu"
    """Of the feed-forward gate: SwiGLU, or GeGLU with the tanh form of GELU."""
    rope_style: Literal["adjacent", "halves"] = "adjacent"
    """Which values rotate together: (2i, 2i + 1), or (i, i + rope_dim / 2) as in GPT-NeoX."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """RMS norm of each query and key head before its rotation."""
    post_norms: bool = False
    """RMS norm of what attention and feed-forward return, before it is added."""
    embedding_scale: float = 1.0
    query_scale: float | None = None
    """`None`: 1 / sqrt(head_dim)."""
    window: int = 0
    """Positions that a local layer sees, its own included; 0: every layer sees all."""
    global_every: int = 0
    """With a window: every so many layers the last one sees all; 0: none does."""
    local_rope_base: float | None = None
    """Of the layers with a window, whose rotation is never scaled; `None`: as the others."""
    rope_factors: bool = False
    """Whether the tensor `rope_freqs.weight` divides the frequencies (Llama 3's scaling)."""
    rope_scaling: RopeScaling | None = None
    n_experts: int = 0
    """A mixture of experts in every layer; 0: none."""
    n_experts_used: int = 0
    expert_ff_dim: int = 0
    pooling: Literal["last", "mean"] = "last"
    """What an embedding is made of: the last token's hidden state, or the mean of all."""

    @classmethod
    def from_gguf(cls, gguf: StoredModel) -> Architecture:
        """Read and check; raises `ModelRejected` naming the key or tensor that is missing or odd."""
        name = gguf.metadata.get("general.architecture")
        family = FAMILIES.get(name) if isinstance(name, str) else None
        if family is None:
            supported = ", ".join(map(repr, FAMILIES))
            raise ModelRejected(
                f"{gguf.path}: architecture {name!r} is not supported; supported: {supported}"
            )
        keys = Fields(gguf, str(name))
        _refuse_unsupported(gguf, keys)
        dim = keys.size("embedding_length")
        n_heads = keys.size("attention.head_count")
        n_kv_heads = keys.size("attention.head_count_kv", default=n_heads)
        head_dim = keys.size("attention.key_length", default=max(1, dim // n_heads))
        if n_heads % n_kv_heads:
            raise ModelRejected(
                f"{gguf.path}: {n_heads} heads do not divide into {n_kv_heads} key-value heads"
            )
        if keys.size("attention.value_length", default=head_dim) != head_dim:
            raise ModelRejected(f"{gguf.path}: keys and values of different lengths are not supported")
        rope_dim = keys.size("rope.dimension_count", default=head_dim)
        if rope_dim > head_dim or rope_dim % 2:
            raise ModelRejected(
                f"{gguf.path}: {keys.name('rope.dimension_count')} is {rope_dim}; "
                f"it must be even and at most {head_dim}"
            )
        max_positions = keys.size("context_length")
        experts = experts_of(keys, expected=family.experts)
        architecture = cls(
            n_layers=keys.size("block_count"),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            dim=dim,
            ff_dim=keys.size("feed_forward_length"),
            vocab_size=_vocabulary_size(gguf, keys),
            max_positions=max_positions,
            norm_eps=keys.positive("attention.layer_norm_rms_epsilon"),
            rope_base=keys.positive("rope.freq_base", default=family.rope_base),
            rope_dim=rope_dim,
            tied_embeddings="output.weight" not in gguf.tensors,
            family=keys.prefix,
            activation=family.activation,
            rope_style=family.rope_style,
            qkv_bias=family.qkv_bias,
            qk_norm=family.qk_norm,
            post_norms=family.post_norms,
            window=keys.count("attention.sliding_window"),
            rope_factors="rope_freqs.weight" in gguf.tensors,
            rope_scaling=stored_scaling(keys, max_positions),
            n_experts=experts.count,
            n_experts_used=experts.used,
            expert_ff_dim=experts.ff_dim,
            pooling=_pooling(keys),
        )
        if keys.prefix == "gemma3":
            architecture = _gemma3(architecture, keys)
        architecture.check_tensors(gguf)
        return architecture

    def to_manifest(self) -> dict[str, int | float | str | bool]:
        """Return what a behaviour manifest records: the family, every size, and the options that are on.

        RoPE scaling is not among them: it is a field of the manifest itself.
        """
        values = asdict(self)
        defaults = {field.name: field.default for field in fields(self)}
        return {
            name: value
            for name, value in values.items()
            if name != "rope_scaling" and (name == "family" or value != defaults[name])
        }

    def stretched(self, scaling: RopeScaling) -> Architecture:
        """The same with another RoPE scaling and the context that it gives; raises `ModelRejected`.

        A scaling equal to the file's own changes nothing. What it does not say about the original context is
        what the file says.
        """
        own = self.rope_scaling
        original = scaling.original_context or (own and own.original_context) or self.max_positions
        if "original_context" in OWN_FIELDS[scaling.type]:
            scaling = scaling.model_copy(update={"original_context": original})
        if scaling == own:
            return self
        if self.rope_factors:
            raise ModelRejected(
                "the model file scales its rotation by a tensor of its own (rope_freqs.weight); leave "
                "rope_scaling out of the identity"
            )
        context = max(self.max_positions, math.floor(original * scaling.factor))
        if context > MAX_SIZE:
            raise ModelRejected(f"rope_scaling makes a context of {context:,}; at most {MAX_SIZE:,}")
        return replace(self, rope_scaling=scaling, max_positions=context)

    def is_local(self, layer: int) -> bool:
        """Whether a layer's attention sees `window` positions only."""
        return self.window > 0 and (self.global_every == 0 or (layer + 1) % self.global_every != 0)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return each tensor that the engine needs, with its shape in NumPy order (rows, columns)."""
        queries, keys = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (self.vocab_size, self.dim),
            "output_norm.weight": (self.dim,),
        }
        if not self.tied_embeddings:
            shapes["output.weight"] = (self.vocab_size, self.dim)
        if self.rope_factors:
            shapes["rope_freqs.weight"] = (self.rope_dim // 2,)
        block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (self.dim,),
            "attn_q.weight": (queries, self.dim),
            "attn_k.weight": (keys, self.dim),
            "attn_v.weight": (keys, self.dim),
            "attn_output.weight": (self.dim, queries),
            "ffn_norm.weight": (self.dim,),
        }
        if self.n_experts:
            inner = (self.n_experts, self.expert_ff_dim, self.dim)
            block |= {
                "ffn_gate_inp.weight": (self.n_experts, self.dim),
                "ffn_gate_exps.weight": inner,
                "ffn_up_exps.weight": inner,
                "ffn_down_exps.weight": (self.n_experts, self.dim, self.expert_ff_dim),
            }
        else:
            block |= {
                "ffn_gate.weight": (self.ff_dim, self.dim),
                "ffn_up.weight": (self.ff_dim, self.dim),
                "ffn_down.weight": (self.dim, self.ff_dim),
            }
        if self.qkv_bias:
            block |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
        if self.qk_norm:
            block |= {"attn_q_norm.weight": (self.head_dim,), "attn_k_norm.weight": (self.head_dim,)}
        if self.post_norms:
            block |= {"post_attention_norm.weight": (self.dim,), "post_ffw_norm.weight": (self.dim,)}
        for layer in range(self.n_layers):
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
        return shapes

    def check_tensors(self, gguf: StoredModel) -> None:
        """Raise `ModelRejected` unless a file holds exactly these tensors, in these shapes."""
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
                f"{gguf.path}: tensor {surplus[0]!r} is no part of a {self.family} model as we know it; "
                f"{len(surplus)} such; serving without it would change the answers, so the file is refused"
            )
        for name, shape in expected.items():
            info = gguf.tensors[name]
            if info.shape != shape:
                raise ModelRejected(f"{gguf.path}: tensor {name!r} has shape {info.shape}; expected {shape}")


def _gemma3(architecture: Architecture, keys: Fields) -> Architecture:
    """What Gemma 3 does beyond the options of its family; https://arxiv.org/abs/2503.19786."""
    head_dim = architecture.head_dim
    if architecture.n_layers == GEMMA3_27B_LAYERS:
        head_dim = max(1, architecture.dim // architecture.n_heads)
    return replace(
        architecture,
        embedding_scale=math.sqrt(architecture.dim),
        query_scale=keys.positive("attention.scale", default=1 / math.sqrt(head_dim)),
        window=keys.size("attention.sliding_window"),
        global_every=_global_every(keys, architecture.n_layers),
        local_rope_base=keys.positive("rope.freq_base_swa", default=DEFAULT_ROPE_BASE),
    )


def _global_every(keys: Fields, n_layers: int) -> int:
    """The period of global layers, from a number or from one truth value (is it local?) for each layer."""
    value = keys.gguf.metadata.get(keys.name("attention.sliding_window_pattern"), GEMMA3_GLOBAL_EVERY)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SIZE:
        return value
    if isinstance(value, tuple) and len(value) == n_layers and all(isinstance(v, bool) for v in value):
        every = value.index(False) + 1 if False in value else 0
        if value == tuple(every == 0 or (layer + 1) % every != 0 for layer in range(n_layers)):
            return every
    raise ModelRejected(
        f"{keys.gguf.path}: {keys.name('attention.sliding_window_pattern')!r} is {value!r}; expected the "
        f"period of the global layers, or one truth value for each of {n_layers} layers that repeats"
    )


def _pooling(keys: Fields) -> Literal["last", "mean"]:
    """GGUF's `pooling_type`: 0 says nothing, 1 is the mean, 3 the last token."""
    kind = keys.gguf.metadata.get(keys.name("pooling_type"), 0)
    if kind not in (0, 1, 3):
        raise ModelRejected(
            f"{keys.gguf.path}: {keys.name('pooling_type')!r} is {kind!r}; supported: 0 (none), 1 (mean), 3 (last)"
        )
    return "mean" if kind == 1 else "last"


def _vocabulary_size(gguf: StoredModel, keys: Fields) -> int:
    """Rows of the embedding; what the metadata says must agree."""
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelRejected(f"{gguf.path}: tensor 'token_embd.weight' is missing; is this only a vocabulary?")
    rows = embedding.shape[0]
    if rows > MAX_SIZE:
        raise ModelRejected(
            f"{gguf.path}: tensor 'token_embd.weight' has {rows:,} rows; at most {MAX_SIZE:,}"
        )
    claimed = gguf.metadata.get(keys.name("vocab_size"), rows)
    if claimed != rows:
        raise ModelRejected(
            f"{gguf.path}: {keys.name('vocab_size')!r} is {claimed!r}, but the embedding has {rows:,} rows"
        )
    return rows


def _refuse_unsupported(gguf: StoredModel, keys: Fields) -> None:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if gguf.metadata.get(keys.name(key), 0.0) != 0.0:
            raise ModelRejected(f"{gguf.path}: {keys.name(key)!r} is set; soft-capping is not supported")

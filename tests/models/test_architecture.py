"""Architectures of every family, read from metadata and tensors: what is taken, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiltyard.errors import ModelRejected
from tiltyard.identity.rope import RopeScaling
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.models.resolve import stored_types

SMALL = {
    "llama.block_count": 1,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 16,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.context_length": 64,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 4,
}


def small_tensors() -> dict[str, Any]:
    shapes = {
        "token_embd": (10, 8),
        "output_norm": (8,),
        "blk.0.attn_norm": (8,),
        "blk.0.attn_q": (8, 8),
        "blk.0.attn_k": (4, 8),
        "blk.0.attn_v": (4, 8),
        "blk.0.attn_output": (8, 8),
        "blk.0.ffn_norm": (8,),
        "blk.0.ffn_gate": (16, 8),
        "blk.0.ffn_up": (16, 8),
        "blk.0.ffn_down": (8, 16),
    }
    return {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}


def test_a_small_model_is_read_with_the_formats_defaults(write_gguf: Callable[..., Path]) -> None:
    with GgufFile.open(write_gguf(SMALL, small_tensors())) as gguf:
        architecture = Architecture.from_gguf(gguf)
        assert stored_types(gguf) == ("F32",)
    assert (architecture.head_dim, architecture.rope_base, architecture.vocab_size) == (4, 10_000.0, 10)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (
            {"general.architecture": "gemma"},
            "architecture 'gemma' is not supported; supported: 'llama', 'qwen2', 'qwen3', 'qwen3moe', 'gemma3'",
        ),
        ({"llama.block_count": None}, "'llama.block_count' is missing"),
        ({"llama.block_count": 0}, "'llama.block_count' is 0"),
        ({"llama.block_count": 2**31}, "'llama.block_count' is 2147483648"),
        ({"llama.block_count": 10_000}, "10,000 layers, but only 11 tensors"),
        ({"llama.block_count": 2}, "9 tensors are missing, such as 'blk.1.attn_k.weight'"),
        ({"llama.embedding_length": "8"}, "'llama.embedding_length' is '8'"),
        ({"llama.attention.head_count_kv": 3}, "2 heads do not divide into 3"),
        ({"llama.rope.dimension_count": 3}, "must be even"),
        ({"llama.rope.dimension_count": 6}, "at most 4"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "is nan; expected a positive number"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "is -1.0"),
        ({"llama.rope.scaling.type": "longrope"}, "is 'longrope'; supported: none, linear, yarn"),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2000.0},
            "RoPE scaling is wrong: factor Input should be less than or equal to 1024",
        ),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.attn_factor": 0.5},
            "'llama.rope.scaling.attn_factor' is 0.5; only 1 is supported",
        ),
        ({"llama.final_logit_softcapping": 30.0}, "'llama.final_logit_softcapping' is set"),
        ({"llama.expert_count": 8}, "'llama.expert_used_count' is missing"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 9}, "9 of 8 experts a token"),
        (
            {"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_shared_count": 1},
            "'llama.expert_shared_count' is 1",
        ),
        (
            {"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_gating_func": 2},
            "'llama.expert_gating_func' is 2; supported: 1 (softmax)",
        ),
        ({"llama.expert_count": 8, "llama.expert_used_count": 2}, "such as 'blk.0.ffn_down_exps.weight'"),
        ({"llama.vocab_size": 11}, "'llama.vocab_size' is 11, but the embedding has 10 rows"),
        ({"llama.feed_forward_length": 32}, "'blk.0.ffn_gate.weight' has shape (16, 8); expected (32, 8)"),
    ],
)
def test_architectures_that_we_cannot_serve_are_refused(
    metadata: dict[str, Any], said: str, write_gguf: Callable[..., Path]
) -> None:
    with (
        GgufFile.open(write_gguf(SMALL | metadata, small_tensors())) as gguf,
        pytest.raises(ModelRejected) as refusal,
    ):
        Architecture.from_gguf(gguf)
    assert said in refusal.value.message


def test_a_tensor_that_the_engine_would_ignore_is_refused(write_gguf: Callable[..., Path]) -> None:
    tensors = small_tensors() | {"blk.0.attn_q.bias": np.zeros(8, np.float32)}
    with (
        GgufFile.open(write_gguf(SMALL, tensors)) as gguf,
        pytest.raises(ModelRejected, match=r"'blk\.0\.attn_q\.bias' is no part"),
    ):
        Architecture.from_gguf(gguf)


def family(name: str, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and tensors of `SMALL` as another architecture."""
    metadata = {key.replace("llama.", f"{name}."): value for key, value in SMALL.items()}
    tensors = small_tensors()
    head = {
        "blk.0.attn_q_norm.weight": np.ones(4, np.float32),
        "blk.0.attn_k_norm.weight": np.ones(4, np.float32),
    }
    if name == "qwen2":
        tensors |= {f"blk.0.attn_{n}.bias": np.zeros(8 if n == "q" else 4, np.float32) for n in "qkv"}
    if name in ("qwen3", "gemma3"):
        tensors |= head
    if name == "gemma3":
        tensors |= {
            f"blk.0.{n}.weight": np.ones(8, np.float32) for n in ("post_attention_norm", "post_ffw_norm")
        }
        metadata["gemma3.attention.sliding_window"] = 16
    return {"general.architecture": name} | metadata | changes, tensors


def test_the_manifest_of_a_family_names_it_and_the_options_that_are_on(
    write_gguf: Callable[..., Path],
) -> None:
    """Plain Llama's stays as it was: digests that were published do not move."""
    manifests = {}
    for name in ("llama", "qwen2", "qwen3", "gemma3"):
        with GgufFile.open(write_gguf(*family(name), name=name)) as gguf:
            manifests[name] = Architecture.from_gguf(gguf).to_manifest()
    plain = manifests["llama"]
    assert set(plain) == {
        "family", "n_layers", "n_heads", "n_kv_heads", "head_dim", "dim", "ff_dim", "vocab_size", "max_positions",
        "norm_eps", "rope_base", "rope_dim", "tied_embeddings",
    }  # fmt: skip
    added = {name: dict(manifest.items() - plain.items()) for name, manifest in manifests.items()}
    assert added["qwen2"] == {"family": "qwen2", "rope_style": "halves", "qkv_bias": True}
    assert added["qwen3"] == {"family": "qwen3", "rope_style": "halves", "qk_norm": True}
    assert added["gemma3"] == {
        "family": "gemma3",
        "rope_style": "halves",
        "qk_norm": True,
        "post_norms": True,
        "activation": "gelu",
        "embedding_scale": 8**0.5,
        "query_scale": 0.5,
        "window": 16,
        "global_every": 6,
        "local_rope_base": 10_000.0,
        "rope_base": 1_000_000.0,
    }


@pytest.mark.parametrize(
    ("pattern", "every"),
    [(6, 6), ([True, False] * 6, 2), ([True] * 12, 0), ([True] * 5 + [False] + [True] * 6, None)],
)
def test_gemmas_pattern_of_layers_is_a_period(
    pattern: Any, every: int | None, write_gguf: Callable[..., Path]
) -> None:
    metadata, tensors = family("gemma3", **{"gemma3.attention.sliding_window_pattern": pattern})
    metadata["gemma3.block_count"] = 12
    for layer in range(1, 12):
        tensors |= {
            name.replace("blk.0", f"blk.{layer}"): data for name, data in tensors.items() if "blk.0." in name
        }
    with GgufFile.open(write_gguf(metadata, tensors)) as gguf:
        if every is None:
            with pytest.raises(ModelRejected, match="sliding_window_pattern"):
                Architecture.from_gguf(gguf)
            return
        architecture = Architecture.from_gguf(gguf)
    assert architecture.global_every == every
    assert [architecture.is_local(layer) for layer in range(4)] == (
        [True] * 4 if every != 2 else [True, False, True, False]
    )


def test_a_family_without_its_tensors_is_refused(write_gguf: Callable[..., Path]) -> None:
    metadata, tensors = family("qwen2")
    del tensors["blk.0.attn_k.bias"]
    with (
        GgufFile.open(write_gguf(metadata, tensors)) as gguf,
        pytest.raises(ModelRejected, match=r"1 tensors are missing, such as 'blk\.0\.attn_k\.bias'"),
    ):
        Architecture.from_gguf(gguf)


def test_a_files_own_scaling_is_read_and_declaring_it_again_changes_nothing(
    write_gguf: Callable[..., Path],
) -> None:
    keys = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 16,
        "llama.rope.scaling.yarn_beta_fast": 8.0,
        "tokenizer.ggml.model": "llama",
    }
    with GgufFile.open(write_gguf(SMALL | keys, small_tensors())) as gguf:
        architecture = Architecture.from_gguf(gguf)
    own = RopeScaling(type="yarn", factor=4.0, original_context=16, beta_fast=8.0)
    assert architecture.rope_scaling == own
    assert architecture.stretched(own) is architecture
    other = architecture.stretched(RopeScaling(type="yarn", factor=8.0))
    assert (other.rope_scaling, other.max_positions) == (
        RopeScaling(type="yarn", factor=8.0, original_context=16), 128,
    )  # fmt: skip


def test_llama_3s_tensor_is_scaling_enough(write_gguf: Callable[..., Path]) -> None:
    tensors = small_tensors() | {"rope_freqs.weight": np.ones(2, np.float32)}
    with GgufFile.open(write_gguf(SMALL, tensors)) as gguf:
        architecture = Architecture.from_gguf(gguf)
    assert architecture.rope_factors
    with pytest.raises(ModelRejected, match=r"rope_freqs\.weight"):
        architecture.stretched(RopeScaling(type="linear", factor=2.0))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"type": "linear", "factor": 2.0, "beta_fast": 1.0},
            "beta_fast means nothing for RoPE scaling of type linear",
        ),
        ({"type": "yarn", "factor": 0.5}, "greater than or equal to 1"),
        ({"type": "yarn", "factor": 2.0, "beta_fast": 0.5}, "beta_slow .1.0. is above beta_fast .0.5."),
        ({"type": "llama3", "factor": 2.0, "low_freq_factor": 4.0}, "low_freq_factor .4.0. must be below"),
        ({"type": "dynamic", "factor": 2.0}, "'linear', 'ntk', 'yarn' or 'llama3'"),
    ],
)
def test_scalings_that_mean_nothing_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RopeScaling.model_validate(fields)

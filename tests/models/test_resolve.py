"""A declaration and a file become an identity: what changes its digest, what is kept, what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiltyard.errors import ConfigurationError, ModelRejected
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import DefaultSampling, Deployment
from tiltyard.identity.rope import RopeScaling
from tiltyard.identity.store import IdentityStore
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.models.resolve import ResolvedIdentity, resolve, stored_types
from tiltyard.models.template import PlainTemplate

WEIGHTS = "sha256:" + "ab" * 32
DECLARATION = IdentityDeclaration(model="m")


def resolved(path: Path, base_dir: Path = Path(), **changes: Any) -> ResolvedIdentity:
    with GgufFile.open(path) as gguf:
        return resolve(DECLARATION.model_copy(update=changes), gguf, WEIGHTS, base_dir)


def test_the_default_model_has_the_shape_that_its_authors_published(model_path: Path) -> None:
    """SmolLM2-135M's config.json: 30 layers, 9 heads, 3 key-value heads, width 576, feed-forward 1536."""
    identity = resolved(model_path)
    assert identity.architecture == Architecture(
        n_layers=30,
        n_heads=9,
        n_kv_heads=3,
        head_dim=64,
        dim=576,
        ff_dim=1536,
        vocab_size=49152,
        max_positions=8192,
        norm_eps=float(np.float32(1e-5)),
        rope_base=100000.0,
        rope_dim=64,
        tied_embeddings=True,
    )
    assert identity.behaviour.weights.stored_as == ("Q4_1", "Q8_0", "F32")


def test_one_byte_of_the_chat_template_changes_the_behaviour_digest(model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jinja").write_text("{{ messages[0].content }}")
    (tmp_path / "b.jinja").write_text("{{ messages[0].content }} ")
    a = resolved(model_path, tmp_path, chat_template="a.jinja").behaviour
    b = resolved(model_path, tmp_path, chat_template="b.jinja").behaviour
    assert a.digest != b.digest
    assert a.model_copy(update={"chat_template": b.chat_template}).to_json() == b.to_json()
    assert a.chat_template == "sha256:" + hashlib.sha256(b"{{ messages[0].content }}").hexdigest()


def test_every_default_sampling_value_changes_the_behaviour_digest(model_path: Path) -> None:
    base = resolved(model_path).behaviour.digest
    changed = {
        name: resolved(model_path, sampling=DefaultSampling(**{name: value})).behaviour.digest
        for name, value in {
            "temperature": 0.9,
            "top_p": 0.9,
            "top_k": 1,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.1,
            "max_tokens": 5,
        }.items()
    }
    assert changed.keys() == DefaultSampling.model_fields.keys()
    assert len({base, *changed.values()}) == 1 + len(changed)


def test_what_a_declaration_says_about_people_does_not_change_the_behaviour_digest(model_path: Path) -> None:
    told = resolved(model_path, organization="o", license="l", description="d")
    assert told.behaviour.digest == resolved(model_path).behaviour.digest


def test_threads_change_the_deployment_digest_and_not_the_behaviour_digest(model_path: Path) -> None:
    behaviour = resolved(model_path).behaviour.digest

    def deployment(threads: int) -> Deployment:
        return Deployment(
            behaviour=behaviour,
            engine_build="test",
            isa="scalar",
            threads=threads,
            block_tokens=32,
            kv_blocks=8,
            max_batch_tokens=64,
            hardware="test",
        )

    assert deployment(1).digest != deployment(2).digest
    assert deployment(1).behaviour == deployment(2).behaviour == behaviour


def test_artifacts_are_kept_under_the_digests_that_the_manifest_names(
    model_path: Path, tmp_path: Path
) -> None:
    identity = resolved(model_path, system_prompt="Be kind.")
    store = IdentityStore(tmp_path)
    identity.put_artifacts(store)
    assert store.get_behaviour(identity.behaviour.digest) == identity.behaviour
    assert store.get(identity.behaviour.system_prompt or "") == b"Be kind."
    assert b"<|im_start|>" in store.get(identity.behaviour.chat_template or "")


def test_the_chat_template_can_be_off(model_path: Path) -> None:
    identity = resolved(model_path, chat_template="off")
    assert isinstance(identity.template, PlainTemplate)
    assert identity.behaviour.chat_template is None


def test_templates_that_cannot_be_used_are_configuration_errors(
    model_path: Path, shared_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.jinja").write_text("{% for %}")
    (tmp_path / "latin.jinja").write_bytes(b"\xe4")
    for name, said in (("none.jinja", "No such file"), ("broken.jinja", "line 1"), ("latin.jinja", "UTF-8")):
        with pytest.raises(ConfigurationError, match=said) as refusal:
            resolved(model_path, tmp_path, chat_template=name)
        assert name in refusal.value.message
    with pytest.raises(ConfigurationError, match='set chat_template to "off"'):
        resolved(shared_data / "serving/gguf/stories260K/stories260K.gguf")


# Architectures.

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


# RoPE scaling.


def test_a_declared_scaling_stretches_the_context_and_is_part_of_the_behaviour(model_path: Path) -> None:
    plain = resolved(model_path).behaviour
    assert plain.rope_scaling is None
    yarn = resolved(model_path, rope_scaling=RopeScaling(type="yarn", factor=4.0)).behaviour
    assert yarn.rope_scaling == {
        "type": "yarn", "factor": 4.0, "original_context": 8192, "beta_fast": 32.0, "beta_slow": 1.0,
    }  # fmt: skip
    assert yarn.architecture == plain.architecture | {"max_positions": 32_768}
    linear = resolved(model_path, rope_scaling=RopeScaling(type="linear", factor=4.0)).behaviour
    assert len({plain.digest, yarn.digest, linear.digest}) == 3


@pytest.mark.parametrize("kind", ["linear", "ntk", "yarn", "llama3"])
def test_declaring_what_a_manifest_says_makes_the_same_identity(kind: str, model_path: Path) -> None:
    """So that a replay can: it has the manifest and no settings file."""
    first = resolved(
        model_path, rope_scaling=RopeScaling.model_validate({"type": kind, "factor": 2.5})
    ).behaviour
    again = resolved(model_path, rope_scaling=RopeScaling.model_validate(first.rope_scaling)).behaviour
    assert again.digest == first.digest


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

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
            "architecture 'gemma' is not supported; supported: 'llama', 'qwen2', 'qwen3', 'gemma3'",
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
        ({"llama.expert_count": 8}, "mixture of 8 experts"),
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

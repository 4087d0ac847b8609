"""A declaration and a file become an identity: what changes its digest, what is kept, what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import DefaultSampling, Deployment
from tiltyard.identity.rope import RopeScaling
from tiltyard.identity.store import IdentityStore
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.models.resolve import ResolvedIdentity, resolve
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


TOOLS_TEMPLATE = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}<tool_call></tool_call>{{ messages }}"


def test_the_format_of_calls_is_found_or_declared_and_part_of_the_behaviour(
    model_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "tools.jinja").write_text(TOOLS_TEMPLATE)
    own = resolved(model_path)
    assert own.tool_format is None  # SmolLM2-135M's template does not show tools
    assert "tool_format" not in own.behaviour.to_json()  # type: ignore[operator]
    found = resolved(model_path, tmp_path, chat_template="tools.jinja")
    assert found.behaviour.tool_format == "hermes"
    other = resolved(model_path, tmp_path, chat_template="tools.jinja", tool_format="mistral")
    off = resolved(model_path, tmp_path, chat_template="tools.jinja", tool_format="off")
    assert off.tool_format is None
    assert len({one.behaviour.digest for one in (own, found, other, off)}) == 4
    assert resolved(model_path, tool_format="off").behaviour.digest == own.behaviour.digest
    told = resolved(model_path, tool_format="smollm2")
    assert told.tool_format is not None
    assert told.behaviour.digest != own.behaviour.digest


def test_a_format_that_the_template_does_not_show_is_refused(model_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        resolved(model_path, tool_format="hermes")
    assert refused.value.param == "tool_format"
    assert 'tool_format "smollm2"' in refused.value.message

"""Manifests: a golden one whose digest must never move, what changes a digest, and how two are compared."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from tiltyard.errors import DigestMismatch, NotFound
from tiltyard.identity.difference import Difference, behaviour_differences, deployment_differences
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Deployment
from tiltyard.identity.store import IdentityStore

GOLDEN = Path(__file__).parent / "golden_manifest.json"
GOLDEN_DIGEST = "sha256:0123123b4d496e1500a6640c962dfae4ecb150793f5772483055d9811d78a38f"
"""`sha256sum golden_manifest.json`, in canonical form. If this moves, every published digest moves."""


@pytest.fixture
def golden() -> Behaviour:
    return Behaviour.model_validate_json(GOLDEN.read_bytes())


def test_the_golden_manifest_keeps_its_digest(golden: Behaviour) -> None:
    assert golden.digest == GOLDEN_DIGEST
    # An independent program agrees: the digest is that of the file's bytes.
    hexdigest = subprocess.run(
        ["sha256sum", GOLDEN], capture_output=True, check=True, text=True
    ).stdout.split()[0]
    assert f"sha256:{hexdigest}" == GOLDEN_DIGEST


def test_every_field_of_a_behaviour_changes_its_digest(golden: Behaviour) -> None:
    other = "sha256:" + "9" * 64
    changes: dict[str, object] = {
        "weights": golden.weights.model_copy(update={"digest": other}),
        "architecture": golden.architecture | {"n_layers": 31},
        "tokenizer": other,
        "chat_template": None,
        "tool_format": "hermes",
        "system_prompt": other,
        "kv_precision": "int8",
        "adapters": (other,),
        "rope_scaling": {"type": "linear"},
        "default_sampling": DefaultSampling(temperature=0.7),
        "safety_filter": other,
        "engine": golden.engine.model_copy(update={"numerics": 2}),
        "declared": ("weights",),
    }
    assert changes.keys() | {"schema_version"} == Behaviour.model_fields.keys()
    digests = {golden.model_copy(update={name: value}).digest for name, value in changes.items()}
    assert len(digests | {golden.digest}) == len(changes) + 1


def test_a_manifest_is_a_value(golden: Behaviour) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        golden.kv_precision = "int8"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        Behaviour.model_validate(json.loads(GOLDEN.read_text()) | {"note": "hi"})


def deployment(golden: Behaviour, **changes: object) -> Deployment:
    fields: dict[str, object] = {
        "behaviour": golden.digest,
        "engine_build": "0.1.0",
        "isa": "avx2",
        "threads": 2,
        "block_tokens": 32,
        "kv_blocks": 100,
        "max_batch_tokens": 256,
        "hardware": "x86_64",
    }
    return Deployment.model_validate(fields | changes)


def test_differences_say_which_field_and_whether_it_can_change_a_token(golden: Behaviour) -> None:
    warm = golden.model_copy(
        update={"default_sampling": DefaultSampling(temperature=0.7), "chat_template": None}
    )
    assert behaviour_differences(golden, warm) == [
        Difference("behaviour.chat_template", golden.chat_template, None, can_change_a_token=True),
        Difference("behaviour.default_sampling.temperature", 1.0, 0.7, can_change_a_token=True),
    ]
    assert behaviour_differences(golden, golden) == []
    two, four = deployment(golden), deployment(golden, threads=4, behaviour=warm.digest)
    assert deployment_differences(two, four) == [
        Difference("deployment.threads", 2, 4, can_change_a_token=False)
    ]
    assert two.digest != four.digest


def test_the_store_gives_back_what_was_put_and_notices_a_lying_disk(
    golden: Behaviour, tmp_path: Path
) -> None:
    store = IdentityStore(tmp_path)
    assert store.put_manifest(golden) == store.put_manifest(golden) == GOLDEN_DIGEST
    assert store.get_behaviour(GOLDEN_DIGEST) == golden
    assert store.get(GOLDEN_DIGEST) == GOLDEN.read_bytes()
    deployed = deployment(golden)
    assert store.get_deployment(store.put_manifest(deployed)) == deployed
    path = tmp_path / "sha256" / GOLDEN_DIGEST[7:9] / GOLDEN_DIGEST[9:]
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(DigestMismatch, match=GOLDEN_DIGEST):
        store.get(GOLDEN_DIGEST)


@pytest.mark.parametrize("digest", ["sha256:" + "0" * 64, "sha256:../../etc/passwd", "md5:" + "0" * 64, "x"])
def test_the_store_has_no_other_names(digest: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        IdentityStore(tmp_path).get(digest)

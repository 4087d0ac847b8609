"""LoRA adapters as PEFT writes them: what is read, and what is refused by name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiltyard.errors import ModelRejected
from tiltyard.identity.store import IdentityStore
from tiltyard.models.adapters import WEIGHTS, Adapter
from tiltyard.models.architecture import Architecture
from tiltyard.models.directory_files import ADAPTER_CONFIG
from tiltyard.models.gguf import GgufFile

GOLDENS = Path(__file__).parent / "goldens/lora"


@pytest.fixture
def architecture() -> Architecture:
    with GgufFile.open(GOLDENS / "base.gguf") as gguf:
        return Architecture.from_gguf(gguf)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """An adapter of one's own to spoil."""
    return shutil.copytree(GOLDENS / "all", tmp_path / "adapter")


def with_config(directory: Path, **changes: Any) -> Path:
    config = json.loads((directory / ADAPTER_CONFIG).read_text()) | changes
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config))
    return directory


def safetensors(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def test_scales_are_those_of_peft() -> None:
    assert Adapter.read(GOLDENS / "all").scale == 10 / 4
    assert Adapter.read(GOLDENS / "rslora").scale == pytest.approx(3 / 5**0.5)


def test_matrices_have_the_names_and_the_row_order_of_the_model_file(architecture: Architecture) -> None:
    adapter = Adapter.read(GOLDENS / "rslora")
    matrices = adapter.matrices(architecture)
    assert sorted(matrices) == [f"blk.{i}.attn_{m}.weight" for i in range(2) for m in "qv"]
    assert {m.down.shape for m in matrices.values()} == {(5, 32)}
    assert matrices["blk.0.attn_q.weight"].up.shape == (32, 5)
    # A file for llama.cpp has the rows of a query head as 0, half, 1, half + 1, ...
    in_halves = adapter.matrices(replace(architecture, rope_style="halves"))["blk.0.attn_q.weight"].up
    assert np.array_equal(matrices["blk.0.attn_q.weight"].up[:8], in_halves[[0, 4, 1, 5, 2, 6, 3, 7]])
    assert np.array_equal(
        matrices["blk.0.attn_v.weight"].up,
        adapter.matrices(replace(architecture, rope_style="halves"))["blk.0.attn_v.weight"].up,
    )


def test_the_digest_names_weights_and_scale(copy: Path) -> None:
    plain = Adapter.read(copy).digest
    assert Adapter.read(with_config(copy, lora_dropout=0.5, peft_version="1")).digest == plain
    assert Adapter.read(with_config(copy, lora_alpha=11)).digest != plain
    assert Adapter.read(with_config(copy, lora_alpha=10, use_rslora=True)).digest != plain
    assert Adapter.read(GOLDENS / "rslora").digest != plain


def test_a_store_gives_the_adapter_back(tmp_path: Path) -> None:
    adapter, store = Adapter.read(GOLDENS / "rslora"), IdentityStore(tmp_path / "store")
    store.put(adapter.weights)
    assert store.put(adapter.artifact) == adapter.digest
    again = Adapter.stored(store, adapter.digest)
    assert (again.digest, again.scale) == (adapter.digest, adapter.scale)
    (tmp_path / "written").mkdir()
    again.write(tmp_path / "written")
    assert Adapter.read(tmp_path / "written").digest == adapter.digest


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; only 'LORA' is supported"),
        ({"r": 0}, "r is 0; it must be a whole number from 1 to 512"),
        ({"r": True}, "r is True"),
        ({"lora_alpha": "8"}, "lora_alpha is '8'; it must be a number from -1,000,000 to 1,000,000"),
        ({"lora_alpha": 10**400}, "it must be a number from -1,000,000 to 1,000,000"),
        ({"lora_alpha": 1e300}, "lora_alpha is 1e+300; it must be a number"),
        ({"bias": "all"}, "bias is 'all'; adapters that train biases are not supported"),
        ({"use_dora": True}, "use_dora is True; this is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']; this is not supported"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern is {'q_proj': 8}"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern is {'q_proj': 8}"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
        ({"layer_replication": [[0, 4]]}, "layer_replication is [[0, 4]]"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices is [1]"),
        ({"init_lora_weights": "pissa"}, "adapters that change the base weights are not supported"),
        ({"a_key_of_tomorrow": 1}, "a_key_of_tomorrow is 1; this is not supported"),
    ],
)
def test_what_we_do_not_honour_is_refused_by_name(copy: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelRejected) as refusal:
        Adapter.read(with_config(copy, **changes))
    assert said in refusal.value.message
    assert str(copy) in refusal.value.message


def test_a_rank_that_the_tensors_do_not_have_is_named(copy: Path, architecture: Architecture) -> None:
    with pytest.raises(ModelRejected, match=r"lora_[AB] for blk\.0\..* has shape .*; expected"):
        Adapter.read(with_config(copy, r=8)).matrices(architecture)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "base_model.model.lm_head.lora_A.weight",
            "'base_model.model.lm_head.lora_A.weight' is not supported",
        ),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "is not supported"),
        ("base_model.model.model.layers.0.mlp.experts.lora_A.weight", "is not supported"),
        (
            "base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight",
            "is it an adapter for another model",
        ),
        (
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
            "lora_B for blk.0.attn_q.weight is missing",
        ),
    ],
)
def test_tensors_without_a_place_are_refused(
    copy: Path, architecture: Architecture, name: str, said: str
) -> None:
    header = {name: {"dtype": "F32", "shape": [4, 32], "data_offsets": [0, 512]}}
    (copy / WEIGHTS).write_bytes(safetensors(header, bytes(512)))
    with pytest.raises(ModelRejected) as refusal:
        Adapter.read(copy).matrices(architecture)
    assert said in refusal.value.message


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is too short for a header"),
        ((1 << 62).to_bytes(8, "little") + b"{}", "the header claims 4,611,686,018,427,387,904 bytes"),
        (safetensors("x")[:9], "the header claims 3 bytes"),
        (b"\2\0\0\0\0\0\0\0{]", "the header is no JSON"),
        (safetensors([]), "the header is no JSON object"),
        ((100_000).to_bytes(8, "little") + b"[" * 100_000, "the header is no JSON: maximum recursion depth"),
        (safetensors({"t": 1}), "tensor 't' must have dtype, shape and data_offsets"),
        (
            safetensors({"t": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}),
            "past the end of the file",
        ),
        (
            safetensors({"t": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 4]}}, bytes(4)),
            "tensor 't' has 4 bytes; its shape and dtype need 8",
        ),
        (
            safetensors({"t": {"dtype": "F32", "shape": [True, 1], "data_offsets": [0, 4]}}, bytes(4)),
            "a shape is at most 8 whole numbers",
        ),
        (
            safetensors({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
            "has shape (1,); it must be a matrix",
        ),
        (
            safetensors(
                {n: {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]} for n in "ab"}, bytes(4)
            ),
            "overlaps another tensor",
        ),
        (
            safetensors({"t": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}, bytes(9)),
            "5 bytes behind the last tensor belong to none",
        ),
        (
            safetensors({"t": {"dtype": "I8", "shape": [1, 4], "data_offsets": [0, 4]}}, bytes(4)),
            "stored as I8",
        ),
        (
            safetensors({"t": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}, b"\0\0\xc0\x7f"),
            "tensor 't' has infinite or NaN values",
        ),
    ],
)
def test_damaged_weights_are_refused(copy: Path, data: bytes, said: str) -> None:
    (copy / WEIGHTS).write_bytes(data)
    with pytest.raises(ModelRejected) as refusal:
        Adapter.read(copy)
    assert said in refusal.value.message


def test_a_config_that_is_nested_too_deep_is_refused(copy: Path) -> None:
    (copy / ADAPTER_CONFIG).write_bytes(b"[" * 100_000)
    with pytest.raises(ModelRejected, match="is not JSON"):
        Adapter.read(copy)


def test_a_directory_without_an_adapter_says_what_one_is(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match=r"an adapter is a directory with adapter_config\.json"):
        Adapter.read(tmp_path)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_is_read_exactly(copy: Path, architecture: Architecture, dtype: str) -> None:
    values = np.array([1.0, -0.5, 0.25, 3.0], np.float32)
    raw = (
        values.astype("<f2").tobytes()
        if dtype == "F16"
        else (values.view("<u4") >> 16).astype("<u2").tobytes()
    )
    layer = "base_model.model.model.layers.0.self_attn.v_proj.lora_"
    header = {
        layer + "A.weight": {"dtype": dtype, "shape": [4, 32], "data_offsets": [0, 256]},
        layer + "B.weight": {"dtype": dtype, "shape": [16, 4], "data_offsets": [256, 384]},
    }
    (copy / WEIGHTS).write_bytes(safetensors(header, raw * 48))
    low = Adapter.read(copy).matrices(architecture)["blk.0.attn_v.weight"]
    assert low.up.tolist() == [values.tolist()] * 16
    assert low.down.tolist() == [values.tolist() * 8] * 4

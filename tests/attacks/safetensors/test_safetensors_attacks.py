"""Hostile safetensors files and directories: each is written, opened, and must be refused by what is wrong."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.errors import ModelRejected
from tiltyard.models.directory import ModelDirectory
from tiltyard.models.directory_files import weight_files
from tiltyard.models.safetensors import SafetensorsFile

SOUND: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
}


def encode(header: object, data: bytes = bytes(32), length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def opened(path: Path, content: bytes) -> SafetensorsFile:
    path.write_bytes(content)
    return SafetensorsFile.open(path)


def changed(name: str, **fields: object) -> dict[str, Any]:
    return SOUND | {name: SOUND[name] | fields}


ATTACKS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "seven bytes": (b"1234567", "too short for a header"),
    "a header that is longer than the file": (encode(SOUND, length=10_000), "claims 10,000 bytes"),
    "a header of 2^64 - 1 bytes": (encode(SOUND, length=2**64 - 1), "claims 18,446,744,073,709,551,615 bytes"),
    "no JSON": (encode(b"{nonsense"), "no JSON"),
    "bytes that are no UTF-8": (encode(b'{"\xff\xfe": 1}'), "no JSON"),
    "a list": (encode([]), "no JSON object"),
    "a hundred thousand brackets": (encode(b"[" * 100_000), "no JSON"),
    "a number of 100,000 digits": (encode(b'{"a": ' + b"9" * 100_000 + b"}"), "no JSON"),
    "a name twice": (encode(b'{"a": 1, "a": 2}'), "occurs twice"),
    "a long name": (encode({"n" * 600: SOUND["a"]}), "more than 512 bytes"),
    "no object for a tensor": (encode(SOUND | {"a": 3}), "must have dtype, shape and data_offsets"),
    "an unknown key": (encode(changed("a", extra=1)), "nothing else"),
    "an unknown dtype": (encode(changed("a", dtype="F33")), "unknown dtype 'F33'"),
    "a dtype that is a list": (encode(changed("a", dtype=["F32"])), "unknown dtype"),
    "a negative dimension": (encode(changed("a", shape=[-2, -3])), "whole numbers"),
    "a truth value as dimension": (encode(changed("a", shape=[True, 6])), "whole numbers"),
    "a fraction as dimension": (encode(changed("a", shape=[2.0, 3])), "whole numbers"),
    "nine dimensions": (encode(changed("a", shape=[1] * 7 + [2, 3])), "at most 8"),
    "a shape beyond memory": (encode(changed("a", shape=[2**62, 2**62])), "which no tensor can have"),
    "a shape that is not its bytes": (encode(changed("a", shape=[2, 4])), "has 24 bytes; its shape and dtype need 32"),
    "three offsets": (encode(changed("a", data_offsets=[0, 24, 24])), "two whole numbers"),
    "offsets the wrong way": (encode(changed("a", data_offsets=[24, 0])), "has -24 bytes"),
    "offsets past the end": (encode(changed("b", data_offsets=[2**40, 2**40 + 8])), "past the end of the file"),
    "an overlap": (encode(changed("b", data_offsets=[16, 24])), "overlaps another tensor"),
    "a hole": (encode(changed("b", data_offsets=[32, 40]), bytes(40)), "leaves a hole"),
    "hidden bytes behind": (encode(SOUND, bytes(33)), "1 bytes behind the last tensor"),
    "data that is cut off": (encode(SOUND, bytes(31)), "past the end of the file"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_file_is_refused(tmp_path: Path, name: str) -> None:
    content, problem = ATTACKS[name]
    with pytest.raises(ModelRejected, match=problem) as refused:
        opened(tmp_path / "m.safetensors", content)
    assert "m.safetensors" in refused.value.message
    assert len(refused.value.message) < 600 + len(str(tmp_path))


def test_the_file_that_the_attacks_start_from_is_sound(tmp_path: Path) -> None:
    file = opened(tmp_path / "m.safetensors", encode(SOUND, bytes(range(32))))
    assert file.tensors["b"].shape == (4,)
    assert file.tensor_data("b").tolist() == list(range(24, 32))


def test_an_empty_tensor_takes_no_place(tmp_path: Path) -> None:
    header = SOUND | {"empty": {"dtype": "F32", "shape": [0, 5], "data_offsets": [24, 24]}}
    assert opened(tmp_path / "m.safetensors", encode(header)).tensor_data("empty").size == 0


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.safetensors")
    with pytest.raises(ModelRejected, match="not a regular file"):
        SafetensorsFile.open(tmp_path / "m.safetensors")


@given(content=st.binary(max_size=200), at=st.integers(0, 400), byte=st.integers(0, 255))
def test_any_bytes_open_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, at: int, byte: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    damaged = bytearray(encode(SOUND))
    damaged[at % len(damaged)] = byte
    for attempt in (content, bytes(damaged)):
        try:
            opened(path, attempt).close()
        except ModelRejected:
            continue


def directory(path: Path, config: object, index: object | None = None) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    if index is not None:
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


@pytest.mark.parametrize(
    "file",
    ["../other.safetensors", "/etc/passwd", "sub/m.safetensors", "..", ".safetensors", 7, None, "m.bin"],
)
def test_an_index_cannot_name_files_elsewhere(tmp_path: Path, file: object) -> None:
    folder = directory(tmp_path, {"model_type": "llama"}, {"weight_map": {"a": file}})
    with pytest.raises(ModelRejected, match=r"is no name of a \.safetensors file in the directory"):
        ModelDirectory.open(folder)


@pytest.mark.parametrize("table", [{}, {"weight_map": {}}, {"weight_map": []}, {"weight_map": "m"}])
def test_an_index_without_a_map_is_refused(tmp_path: Path, table: object) -> None:
    with pytest.raises(ModelRejected, match="'weight_map' must be an object"):
        weight_files(directory(tmp_path, {"model_type": "llama"}, table))


def test_an_index_and_its_files_must_agree(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(encode(SOUND))
    names = {"a": "m.safetensors", "b": "m.safetensors"}
    folder = directory(tmp_path, {"model_type": "llama"}, {"weight_map": names | {"c": "m.safetensors"}})
    with pytest.raises(ModelRejected, match=r"tensor 'c' is not in m\.safetensors"):
        ModelDirectory.open(folder)
    directory(tmp_path, {"model_type": "llama"}, {"weight_map": {"a": "m.safetensors"}})
    with pytest.raises(ModelRejected, match="names 1 tensors; its files hold 2"):
        ModelDirectory.open(folder)
    directory(tmp_path, {"model_type": "llama"}, {"weight_map": names | {"a": "gone.safetensors"}})
    with pytest.raises(ModelRejected, match=r"gone\.safetensors cannot be read: No such file"):
        ModelDirectory.open(folder)


LLAMA = {
    "model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "vocab_size": 4,
}  # fmt: skip
HOSTILE_CONFIGS: dict[str, tuple[object, str]] = {
    "no type": ({}, "model_type is None"),
    "a type that is a list": ({"model_type": ["llama"]}, r"model_type is \['llama'\]"),
    "an unknown type": ({"model_type": "gpt2"}, "model_type is 'gpt2'; supported as a directory: llama"),
    "sizes as text": (LLAMA | {"hidden_size": "8"}, "'hidden_size' is '8'; expected a whole number"),
    "sizes as truth": (LLAMA | {"num_hidden_layers": True}, "'num_hidden_layers' is True"),
    "another activation": (LLAMA | {"hidden_act": "relu"}, "the activation is 'relu'"),
    "a rope base of text": (LLAMA | {"rope_theta": "big"}, "'rope_theta' of the rope scaling is 'big'"),
    "rope scaling as a number": (LLAMA | {"rope_scaling": 3}, "'rope_scaling' is 3; expected an object"),
    "dynamic rope scaling": (LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic' is not supported"),
    "llama3 without numbers": (LLAMA | {"rope_scaling": {"rope_type": "llama3"}}, "'factor' of the rope scaling is None"),
    "a rope key that nobody knows": (
        LLAMA | {"rope_scaling": {"type": "yarn", "factor": 2.0, "attention_factor": 3}}, "'attention_factor' of the"
    ),
    "a part of the head": (LLAMA | {"partial_rotary_factor": 0.5}, "only 1 is supported"),
    "weights that were quantized before": (LLAMA | {"quantization_config": {"bits": 4}}, "'quantization_config' is"),
    "experts whose choice is not scaled": (LLAMA | {"model_type": "qwen3_moe"}, "'norm_topk_prob' is None"),
    "windows in some layers": (
        LLAMA | {"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 8, "use_sliding_window": True,
                 "max_window_layers": 2},
        "'max_window_layers' is 2; expected 0, or all layers",
    ),
    "ties that are a word": (LLAMA | {"tie_word_embeddings": "no"}, "expected true or false"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_CONFIGS)
def test_a_hostile_configuration_is_refused(tmp_path: Path, name: str) -> None:
    config, problem = HOSTILE_CONFIGS[name]
    (tmp_path / "model.safetensors").write_bytes(encode({}, b""))
    with pytest.raises(ModelRejected, match=problem):
        ModelDirectory.open(directory(tmp_path, config))


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match=r"holds neither model\.safetensors nor"):
        ModelDirectory.open(directory(tmp_path, LLAMA))
    with pytest.raises(ModelRejected, match="cannot be read"):
        ModelDirectory.open(tmp_path / "absent")


def test_rows_that_are_no_heads_are_refused(tmp_path: Path) -> None:
    header = {
        "model.layers.0.self_attn.q_proj.weight": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}
    }
    (tmp_path / "model.safetensors").write_bytes(encode(header, bytes(24)))
    with pytest.raises(ModelRejected, match=r"has shape \(3, 2\), which is not rows for 2 heads"):
        ModelDirectory.open(directory(tmp_path, LLAMA))


def test_no_heads_at_all_are_refused(tmp_path: Path) -> None:
    header = {
        "model.layers.0.self_attn.q_proj.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    }
    (tmp_path / "model.safetensors").write_bytes(encode(header, bytes(16)))
    with pytest.raises(ModelRejected, match="which is not rows for 0 heads"):
        ModelDirectory.open(directory(tmp_path, LLAMA | {"num_attention_heads": 0}))


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "mistral"}, 8),
        ({"model_type": "llama"}, None),  # knows no windows, whatever its configuration says
        ({"model_type": "qwen2"}, None),  # off unless switched on
        ({"model_type": "qwen3", "use_sliding_window": False}, None),
        ({"model_type": "qwen2", "use_sliding_window": True}, None),  # from layer 28 on, and there are four
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 4}, None),
        ({"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 0}, 8),
    ],
)
def test_a_window_is_where_transformers_has_one(
    tmp_path: Path, changes: dict[str, object], window: int | None
) -> None:
    """Transformers 5.24: `configuration_qwen2.py`, `configuration_mistral.py`."""
    (tmp_path / "model.safetensors").write_bytes(encode({}, b""))
    config = LLAMA | {"num_hidden_layers": 4, "sliding_window": 8} | changes
    with ModelDirectory.open(directory(tmp_path, config)) as opened:
        found = [value for key, value in opened.metadata.items() if key.endswith("sliding_window")]
    assert found == ([] if window is None else [window])


def test_weights_of_whole_numbers_are_refused(tmp_path: Path) -> None:
    header = {"lm_head.weight": {"dtype": "I64", "shape": [3], "data_offsets": [0, 24]}}
    (tmp_path / "model.safetensors").write_bytes(encode(header, bytes(24)))
    with pytest.raises(ModelRejected, match="stored as I64; supported: F32, F16, BF16"):
        ModelDirectory.open(directory(tmp_path, LLAMA))

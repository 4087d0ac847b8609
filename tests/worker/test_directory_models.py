"""A model as a safetensors directory gives the bits of the same weights as a GGUF file, and has its own identity."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from family_models import CASES
from tiltyard.errors import DigestMismatch, FetchFailed, ModelRejected
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.models.architecture import Architecture
from tiltyard.models.cache import digest_of_model
from tiltyard.models.directory import ModelDirectory
from tiltyard.models.progress import SilentProgress
from tiltyard.models.sources import parse_source
from tiltyard.models.stored import open_model
from tiltyard.worker.load import load_native
from tiltyard.worker.local import LocalModel
from tiny_llama import (
    VOCABULARY,
    as_transformers_names,
    encode_safetensors,
    random_weights,
    write_directory,
    write_gguf,
)


def logits(path: Path, quantization: Literal["as-stored", "q4_0", "q8_0"] = "as-stored") -> bytes:
    with open_model(path) as stored:
        model = load_native(
            stored, Architecture.from_gguf(stored), quantization=quantization, threads=2, isa="auto"
        )
    model.allocate_kv(2, "f16")
    tokens = np.arange(40, dtype=np.int32) * 7 % VOCABULARY
    zeros, rows = np.zeros(40, np.int32), np.arange(40, dtype=np.int32)
    out: NDArray[np.float32] = np.zeros((40, VOCABULARY), np.float32)
    model.forward(tokens, rows, zeros, np.array([[0, 1]], np.int32), rows, out)
    return out.tobytes()


@pytest.mark.parametrize(("dtype", "kind"), [("BF16", "BF16"), ("F32", "F32"), ("F16", "F16")])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_directory_gives_the_bits_of_the_same_weights_in_gguf(
    tmp_path: Path, dtype: str, kind: str, shards: int
) -> None:
    weights = random_weights(3)
    directory = write_directory(tmp_path / "model", weights, dtype, shards=shards)
    gguf = write_gguf(tmp_path / "model.gguf", weights, kind)
    assert logits(directory) == logits(gguf)


@pytest.mark.parametrize("quantization", ["q8_0", "q4_0"])
def test_quantizing_at_load_gives_the_bits_of_the_quantized_file(
    tmp_path: Path, quantization: Literal["q4_0", "q8_0"]
) -> None:
    """Oracle: the `gguf` library's own quantizer wrote the file."""
    weights = random_weights(4)
    directory = write_directory(tmp_path / "model", weights, "BF16")
    gguf = write_gguf(tmp_path / "model.gguf", weights, quantization.upper())
    assert logits(directory, quantization) == logits(gguf)


@pytest.mark.parametrize("shards", [1, 5])
def test_a_mixture_gives_the_bits_of_the_same_weights_in_gguf(tmp_path: Path, shards: int) -> None:
    """As Mixtral's repositories have it: a tensor for each expert, spread over the shards."""
    weights = random_weights(10, experts=4)
    changes = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    directory = write_directory(tmp_path / "model", weights, "BF16", shards=shards, **changes)
    gguf = write_gguf(tmp_path / "model.gguf", weights, "BF16")
    assert logits(directory) == logits(gguf)
    assert logits(directory, "q8_0") != logits(directory)


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    tensors = as_transformers_names(random_weights(10, experts=4))
    del tensors["model.layers.1.block_sparse_moe.experts.2.w3.weight"]
    directory = write_directory(tmp_path / "model", {}, model_type="mixtral", num_local_experts=4)
    (directory / "model.safetensors").write_bytes(encode_safetensors(tensors, "BF16"))
    with pytest.raises(ModelRejected, match=r"expert 2 of 'blk\.1\.ffn_up_exps\.weight' is missing"):
        open_model(directory)


def test_tied_embeddings_need_no_head(tmp_path: Path) -> None:
    weights = random_weights(5)
    del weights["output.weight"]
    directory = write_directory(tmp_path / "model", weights, "F32", tie_word_embeddings=True)
    assert logits(directory) == logits(write_gguf(tmp_path / "model.gguf", weights))
    # some writers keep the head although it is tied: it is the embedding, not another matrix
    both = weights | {"output.weight": weights["token_embd.weight"]}
    twice = write_directory(tmp_path / "twice", both, "F32", tie_word_embeddings=True)
    assert logits(twice) == logits(directory)


def test_a_directory_answers_through_its_own_tokenizer_and_template(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model", random_weights(6))
    model = LocalModel.load(directory, {"tiny": IdentityDeclaration(model="tiny")})
    behaviour = model.host.identity("tiny").resolved.behaviour
    assert behaviour.weights.format == "safetensors"
    assert behaviour.weights.stored_as == ("BF16",)
    assert behaviour.weights.digest == digest_of_model(directory)
    assert behaviour.tokenizer == model.host.tokenizer.digest
    messages = [{"role": "user", "content": "the inn"}]
    tokens = model.host.encode_chat(model.host.identity("tiny"), messages)
    assert tokens == [259, model.host.tokenizer.encode(" ", special=False)[0], 261, tokens[-1]]
    answer = model.generate("tiny", messages=messages, seed=1, max_tokens=5)
    assert answer.completion_tokens == 5


def test_a_directory_has_a_digest_over_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILTYARD_CACHE", str(tmp_path / "cache"))
    directory = write_directory(tmp_path / "model", random_weights(7), shards=2)
    source = parse_source(f"file:{directory}")
    assert source.fetch(tmp_path / "cache", None, SilentProgress()) == directory
    model = source.cached(tmp_path / "cache")
    assert model is not None
    assert model.sha256 == digest_of_model(directory)
    copy = write_directory(tmp_path / "copy", random_weights(7), shards=2)
    assert digest_of_model(copy) == model.sha256  # the same files elsewhere are the same model
    shard = directory / "model-00002-of-00002.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(1, 1))
    assert source.cached(tmp_path / "cache") is None
    assert digest_of_model(directory) != model.sha256
    with pytest.raises(DigestMismatch, match="is not the pinned file"):
        source.fetch(tmp_path / "cache", model.sha256, SilentProgress())


def test_a_directory_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="there is no file or directory"):
        parse_source(f"file:{tmp_path / 'absent'}").fetch(tmp_path, None, SilentProgress())
    with pytest.raises(ModelRejected, match=r"config\.json cannot be read"):
        open_model(tmp_path)


def test_tensors_that_the_engine_would_ignore_are_refused(tmp_path: Path) -> None:
    weights = random_weights(8) | {"blk.0.attn_q.bias": np.ones(64, np.float32)}
    weights = {name: values for name, values in weights.items() if name != "blk.0.attn_q.bias"}
    directory = write_directory(tmp_path / "model", weights, "F32", num_hidden_layers=1)
    with ModelDirectory.open(directory) as stored, pytest.raises(ModelRejected, match=r"'blk\.1\."):
        Architecture.from_gguf(stored)


def test_llama_3_scaling_becomes_divisors_of_the_frequencies(tmp_path: Path) -> None:
    """Oracle: Transformers 5 `_compute_llama3_parameters` for these numbers (head of 16, base 10,000)."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    directory = write_directory(tmp_path / "model", random_weights(9), "F32", rope_scaling=scaling)
    with ModelDirectory.open(directory) as stored:
        factors = stored.tensor_data("rope_freqs.weight").view(np.float32)
        assert Architecture.from_gguf(stored).rope_factors
    np.testing.assert_allclose(factors, LLAMA3_FACTORS, rtol=1e-6)


LLAMA3_FACTORS = [1.0, 1.2939759, 7.667385, 8.0, 8.0, 8.0, 8.0, 8.0]


MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3_text",
}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.declared is None])
def test_every_family_as_a_directory_gives_the_bits_of_its_gguf_file(tmp_path: Path, name: str) -> None:
    """`test_families.py` holds the GGUF files of the same weights to what Transformers says."""
    case = CASES[name]
    directory = tmp_path / "model"
    directory.mkdir()
    config = case.sizes | {"model_type": MODEL_TYPES[case.model], "rope_parameters": case.rope}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(encode_safetensors(case.state(), "F32"))
    tokens = np.array(case.prompt, np.int32)
    rows = np.arange(len(tokens), dtype=np.int32)
    found: list[bytes] = []
    for path in (directory, case.write(tmp_path)):
        with open_model(path) as stored:
            architecture = Architecture.from_gguf(stored)
            model = load_native(stored, architecture, quantization="as-stored", threads=1, isa="auto")
        model.allocate_kv(4, "f16")
        out: NDArray[np.float32] = np.zeros((len(tokens), architecture.vocab_size), np.float32)
        model.forward(tokens, rows, np.zeros_like(rows), np.arange(4, dtype=np.int32)[None], rows, out)
        found.append(out.tobytes())
    assert found[0] == found[1]

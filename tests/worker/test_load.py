"""Loading into the real native engine, and the engine's words against llama.cpp's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.models.prompt import prompt_ids
from tiltyard.models.tokenizer import Tokenizer
from tiltyard.worker.load import load_native


def test_stories260k_says_what_llama_cpp_says(shared_data: Path) -> None:
    path = shared_data / "serving/gguf/stories260K/stories260K.gguf"
    reference = json.loads((shared_data / "serving/gguf/reference/stories260K_greedy.json").read_text())[
        "results"
    ][0]
    heard: list[tuple[int, int]] = []
    with GgufFile.open(path) as gguf:
        architecture = Architecture.from_gguf(gguf)
        tokenizer = Tokenizer.from_gguf(gguf)
        model = load_native(
            gguf,
            architecture,
            quantization="as-stored",
            threads=1,
            isa="scalar",
            progress=lambda done, total: heard.append((done, total)),
        )
    # The file is closed: the model keeps its own copy.
    assert len(heard) == len(architecture.tensor_shapes())
    assert heard[-1][0] == heard[-1][1]
    model.allocate_kv(8, "f16")
    table = np.arange(8, dtype=np.int32)[None]
    logits = np.zeros((1, architecture.vocab_size), np.float32)
    tokens, position, said = prompt_ids(tokenizer, reference["prompt"], special=False), 0, []
    while len(said) < 24:
        rows = len(tokens)
        model.forward(
            np.array(tokens, np.int32),
            np.arange(position, position + rows, dtype=np.int32),
            np.zeros(rows, np.int32),
            table,
            np.array([rows - 1], np.int32),
            logits,
        )
        position += rows
        tokens = [int(logits[0].argmax())]
        said += tokens
    assert said == reference["ids"][:24]


@pytest.mark.parametrize("quantization", ["q8_0", "q4_0"])
def test_requantizing_makes_other_weights(model_path: Path, quantization: Literal["q8_0", "q4_0"]) -> None:
    with GgufFile.open(model_path) as gguf:
        architecture = Architecture.from_gguf(gguf)
        logits = []
        for kind in ("as-stored", quantization):
            model = load_native(gguf, architecture, quantization=kind, threads=1, isa="auto")  # type: ignore[arg-type]
            model.allocate_kv(1, "f16")
            row = np.zeros((1, architecture.vocab_size), np.float32)
            zero = np.zeros(1, np.int32)
            model.forward(np.array([504], np.int32), zero, zero, np.zeros((1, 1), np.int32), zero, row)
            logits.append(row)
    assert not np.array_equal(logits[0], logits[1])
    # Near all the same: it is the same model, after one token without context.
    assert np.corrcoef(logits[0][0], logits[1][0])[0, 1] > 0.7


def test_an_instruction_set_that_is_not_here_is_refused(shared_data: Path) -> None:
    with (
        GgufFile.open(shared_data / "serving/gguf/stories260K/stories260K.gguf") as gguf,
        pytest.raises(ConfigurationError, match="scalar"),
    ):
        load_native(gguf, Architecture.from_gguf(gguf), quantization="as-stored", threads=1, isa="avx1024")

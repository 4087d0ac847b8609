"""The real Gemma 3 270M against Transformers, where the file is: set TILTYARD_TEST_GEMMA to it.

`tools/make_gemma_golden.py` says where it comes from and made the golden.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import gguf as gguf_library
import numpy as np
import pytest
from gguf.quants import dequantize
from numpy.typing import NDArray

from tiltyard.kernels import NativeModel, available_isas
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.worker.shape import native_shape

GOLDEN = Path(__file__).parent.parent / "golden" / "gemma3_270m.json"
BLOCKS = 24


@pytest.fixture(scope="module")
def gemma() -> NativeModel:
    """The model with its weights in half precision, so that only the network is compared."""
    if not (name := os.environ.get("TILTYARD_TEST_GEMMA")):
        pytest.skip("TILTYARD_TEST_GEMMA does not name gemma-3-270m-q4_k_m.gguf")
    with GgufFile.open(Path(name)) as file:
        architecture = Architecture.from_gguf(file)
    model = NativeModel(**native_shape(architecture), threads=2, isa=available_isas()[0])
    for tensor in gguf_library.GGUFReader(name).tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        kind, dtype = (0, np.float32) if values.ndim == 1 else (1, np.float16)
        model.set_tensor(
            tensor.name, kind, np.ascontiguousarray(values.astype(dtype)).view(np.uint8).reshape(-1)
        )
    model.finish()
    model.allocate_kv(BLOCKS, "f16")
    return model


def likeliest(model: NativeModel, tokens: list[int], start: int) -> NDArray[np.intp]:
    count = len(tokens)
    logits = np.empty((count, 262_144), np.float32)
    rows = np.arange(count, dtype=np.int32)
    model.forward(
        np.array(tokens, np.int32),
        rows + np.int32(start),
        np.zeros(count, np.int32),
        np.arange(BLOCKS, dtype=np.int32)[None],
        rows,
        logits,
    )
    return logits.argmax(axis=1)


def test_gemma_3_270m_says_what_transformers_says_beyond_its_window(gemma: NativeModel) -> None:
    golden = json.loads(GOLDEN.read_text())
    prompt = golden["prompt"]
    top = [likeliest(gemma, prompt[at : at + 64], at) for at in range(0, len(prompt), 64)]
    agree = np.concatenate(top) == np.array(golden["likeliest"])
    assert agree.mean() > 0.99
    assert agree[512:].mean() > 0.99  # behind the window of its local layers
    said = [int(top[-1][-1])]
    while len(said) < len(golden["greedy"]):
        said.append(int(likeliest(gemma, said[-1:], len(prompt) + len(said) - 1)[0]))
    assert said == golden["greedy"]

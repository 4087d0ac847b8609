"""Every family and every RoPE scaling against Transformers, on tiny random models: logits and greedy tokens.

The goldens come from Transformers in float32 (`tools/make_family_goldens.py`). Prompts are longer than the sliding windows
and greedy answers go on beyond them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from family_models import CASES, GOLDENS, GREEDY_TOKENS, FamilyCase
from tiltyard.kernels import BLOCK_TOKENS, NativeModel
from tiltyard.kernels.reference import Matrix, Shape
from tiltyard.kernels.reference_float import forward_float
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.worker.load import load_native
from tiltyard.worker.shape import native_shape

BLOCKS = 4


@pytest.fixture(scope="module")
def goldens() -> dict[str, NDArray[np.float32]]:
    with np.load(GOLDENS) as file:
        return {name: file[name] for name in file.files}


def architecture_of(case: FamilyCase, gguf: GgufFile) -> Architecture:
    architecture = Architecture.from_gguf(gguf)
    return architecture if case.declared is None else architecture.stretched(case.declared)


def load(case: FamilyCase, folder: Path, isa: str = "auto") -> NativeModel:
    with GgufFile.open(case.write(folder)) as gguf:
        model = load_native(gguf, architecture_of(case, gguf), quantization="as-stored", threads=1, isa=isa)
    model.allocate_kv(BLOCKS, "f16")
    return model


def logits_of(model: NativeModel, case: FamilyCase, tokens: list[int], start: int = 0) -> NDArray[np.float32]:
    count = len(tokens)
    out = np.empty((count, case.sizes["vocab_size"]), np.float32)
    rows = np.arange(count, dtype=np.int32)
    model.forward(
        np.array(tokens, np.int32),
        rows + np.int32(start),
        np.zeros(count, np.int32),
        np.arange(BLOCKS, dtype=np.int32)[None],
        rows,
        out,
    )
    return out


def meant(case: FamilyCase, architecture: Architecture, tokens: list[int]) -> NDArray[np.float64]:
    """The reference's float64 forward, from the same architecture that the engine is loaded with."""
    options = native_shape(architecture)
    shape = Shape(
        **{  # type: ignore[arg-type]
            name: tuple(value) if isinstance(value, list) else value
            for name, value in options.items()
            if name in Shape.__dataclass_fields__
        }
    )
    tensors = case.tensors()
    matrices = {name: Matrix(values) for name, values in tensors.items() if values.ndim == 2}
    vectors = {name: values for name, values in tensors.items() if values.ndim == 1}
    return forward_float(shape, matrices, vectors, tokens)


def relative_error(got: NDArray[np.floating], wanted: NDArray[np.floating]) -> float:
    return float(np.sqrt(((got - wanted) ** 2).mean() / (wanted**2).mean()))


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(
    name: str, tmp_path: Path, goldens: dict[str, NDArray[np.float32]]
) -> None:
    case = CASES[name]
    with GgufFile.open(case.write(tmp_path)) as gguf:
        architecture = architecture_of(case, gguf)
    wanted = goldens[f"{name}/logits"]
    assert relative_error(meant(case, architecture, case.prompt), wanted) < 2e-5  # float32 against float64
    # The engine keeps keys and values in half precision, 2^-11 of each.
    assert relative_error(logits_of(load(case, tmp_path), case, case.prompt), wanted) < 2e-3


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_are_those_of_transformers(
    name: str, tmp_path: Path, goldens: dict[str, NDArray[np.float32]]
) -> None:
    case = CASES[name]
    model = load(case, tmp_path)
    row = logits_of(model, case, case.prompt)[-1]
    said: list[int] = []
    while len(said) < GREEDY_TOKENS:
        said.append(int(row.argmax()))
        row = logits_of(model, case, said[-1:], start=len(case.prompt) + len(said) - 1)[-1]
    assert said == goldens[f"{name}/greedy"].tolist()
    assert len(case.prompt) + len(said) < BLOCKS * BLOCK_TOKENS


def without(architecture: Architecture, **changes: object) -> Architecture:
    return replace(architecture, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama, linear scaling", {"rope_scaling": None}),
        ("llama, NTK-aware scaling declared", {"rope_scaling": None}),
        ("llama 3, declared", {"rope_scaling": None}),
        ("llama, YaRN", {"rope_scaling": None}),
        ("mistral", {"window": 0}),
        ("mistral", {"window": 13}),
        ("qwen2", {"qkv_bias": False}),
        ("qwen2", {"rope_style": "adjacent"}),
        ("qwen3", {"qk_norm": False}),
        ("gemma3", {"activation": "silu"}),
        ("gemma3", {"embedding_scale": 1.0}),
        ("gemma3", {"post_norms": False}),
        ("gemma3", {"window": 11}),
        ("gemma3", {"global_every": 5}),
        ("gemma3", {"local_rope_base": None}),
        ("gemma3, linear scaling, another query scale", {"query_scale": None}),
    ],
)
def test_every_option_shows_in_the_logits(
    name: str, changes: dict[str, object], tmp_path: Path, goldens: dict[str, NDArray[np.float32]]
) -> None:
    """Or the goldens would pass without it."""
    case = CASES[name]
    with GgufFile.open(case.write(tmp_path)) as gguf:
        architecture = without(architecture_of(case, gguf), **changes)
    assert relative_error(meant(case, architecture, case.prompt), goldens[f"{name}/logits"]) > 0.01


def test_transformers_still_says_what_the_goldens_hold(goldens: dict[str, NDArray[np.float32]]) -> None:
    pytest.importorskip("torch", reason="the goldens are compared with Transformers where torch is installed")
    pytest.importorskip(
        "transformers", reason="the goldens are compared with Transformers where it is installed"
    )
    from family_oracle import oracle

    for name, case in CASES.items():
        logits, greedy, _ = oracle(case)
        assert relative_error(logits, goldens[f"{name}/logits"]) < 1e-5, name
        assert greedy == goldens[f"{name}/greedy"].tolist(), name

"""The check values of docs/numerics.md, with which a second implementation can begin, are those of both that we have."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kernel_models import GgufWeights, run

from tiltyard import kernels
from tiltyard.kernels import available_isas
from tiltyard.kernels.reference import quantize, rms_norm
from tiltyard.kernels.reference_math import exp32, exp64, log64, sincos64
from tiltyard.kernels.reference_sampling import random_bits, sample

PAGE = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
BLOCK = np.array([*range(1, 32), -1000], np.float32)
LOGITS = np.arange(64, dtype=np.float32) / np.float32(8)
TOKENS = list(range(100, 140))


def stated() -> dict[str, str]:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Check values\n")[2].partition("\n## ")[0]
    rows = (line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `"))
    return {cells[0].strip(): cells[1].strip().strip("`") for cells in rows}


def hex_of(*values: float | np.float32) -> str:
    return " ".join(float(value).hex() for value in values)


def exp_of(x: float) -> str:
    return hex_of(exp32(np.array([x], np.float32))[0])


def drawn(draw: Callable[[int], int]) -> str:
    return " ".join(str(draw(position)) for position in range(12))


def draw_natively(position: int) -> int:
    row = kernels.sample_rows(
        LOGITS[None].copy(),
        *(np.array([value], np.float32) for value in (0.8,)),
        np.array([40], np.int32),
        np.array([0.95], np.float32),
        np.array([0.05], np.float32),
        np.array([7], np.uint64),
        np.array([position], np.int64),
    )
    return int(row[0])


def draw_by_reference(position: int) -> int:
    return sample(LOGITS, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=7, position=position)


def the_quantized_block() -> str:
    block = quantize(BLOCK[None])
    q = " ".join(map(str, block.q[0][[0, 1, 30, 31]]))
    return f"{hex_of(block.scale[0, 0], block.total[0, 0], block.outlier[0, 0])} {q}"


BY_REFERENCE: dict[str, Callable[[], str]] = {
    "`exp(1)`": lambda: exp_of(1),
    "`exp(-0.7)`": lambda: exp_of(-0.7),
    "`exp(1000)`": lambda: exp_of(1000),
    "`exp64(-9.21)`": lambda: hex_of(exp64(-9.21)),
    "`log64(10000)`": lambda: hex_of(log64(10000.0)),
    "`sincos64(8191)`": lambda: hex_of(*sincos64(8191.0)),
    "`rms`": lambda: hex_of(*rms_norm(BLOCK, np.ones(32, np.float32), 1e-5)[[0, 30, 31]]),
    "`block`": the_quantized_block,
    "`R`": lambda: hex(random_bits(7, 1 << 33)),
    "`draws`": lambda: drawn(draw_by_reference),
}


@pytest.mark.parametrize("name", sorted(BY_REFERENCE))
def test_a_check_value_is_the_references(name: str) -> None:
    assert BY_REFERENCE[name]() == stated()[name]


def test_check_values_of_the_sampler_are_the_kernels() -> None:
    assert drawn(draw_natively) == stated()["`draws`"]
    value = kernels.log_probabilities(LOGITS, np.array([60], np.int32))[0]
    assert hex_of(value) == stated()["`log probability`"]


def test_the_digests_of_logits_are_what_they_were(default_model: GgufWeights, stories: GgufWeights) -> None:
    """Whoever changes a bit of the contract sees it here first, and takes a new version."""
    for name, model, kv in (
        ("`stories260K, f16`", stories, "f16"),
        ("`SmolLM2, f16`", default_model, "f16"),
        ("`SmolLM2, int8`", default_model, "int8"),
    ):
        logits = run(model.native(isa=available_isas()[0], kv=kv), model.vocab, TOKENS)
        assert hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest() == stated()[name], name


def test_every_stated_value_is_checked() -> None:
    checked = {*BY_REFERENCE, "`log probability`"} | {
        name for name in stated() if re.search(r"f16|int8", name)
    }
    assert set(stated()) == checked

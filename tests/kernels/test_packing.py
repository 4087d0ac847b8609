"""Weights: what goes in is what is computed with, and requantizing rounds as ggml does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_models import F16, F32, Q4_0, Q4_1, Q8_0, SMALL, SmallModel, random_bytes, run
from numpy.typing import NDArray

from tiltyard.kernels import available_isas
from tiltyard.kernels.reference import decode

SHAPE = replace(SMALL, n_layers=1)


def test_q4_0_is_q4_1_with_a_minimum_of_minus_eight_scales() -> None:
    small = SmallModel(SHAPE, types=(Q4_0,), seed=1)
    twin = SmallModel(SHAPE, types=(Q4_0,), seed=1)
    for name, (_, raw) in small.raw.items():
        blocks = raw.reshape(-1, 18)
        scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16)
        minimum = (scale * np.float16(-8)).view(np.uint8)
        twin.raw[name] = (Q4_1, np.concatenate([blocks[:, :2], minimum, blocks[:, 2:]], axis=1).reshape(-1))
    tokens = [3, 1, 4, 1, 5]
    for isa in available_isas():
        assert (
            run(small.native(isa=isa), 203, tokens).tobytes()
            == run(twin.native(isa=isa), 203, tokens).tobytes()
        )


def test_a_q4_0_scale_without_a_minimum_in_f16_is_refused() -> None:
    small = SmallModel(SHAPE, types=(Q4_0,), seed=1)
    raw = small.raw["token_embd.weight"][1]
    raw[:2] = np.frombuffer(np.float16(9000).tobytes(), np.uint8)
    with pytest.raises(ValueError, match=r"token_embd.weight: a Q4_0 scale exceeds 8188"):
        small.native()


@pytest.mark.parametrize(
    ("source", "target"), [(s, t) for t in (Q4_0, Q4_1, Q8_0) for s in (F32, F16, Q4_1, Q8_0) if s != t]
)
def test_requantizing_gives_the_bytes_of_ggml(source: int, target: int) -> None:
    """Oracle: the quantizers of the `gguf` package, which are ggml's reference rounding in NumPy."""
    quants = pytest.importorskip("gguf.quants")
    small, twin = SmallModel(SHAPE, types=(source,), seed=5), SmallModel(SHAPE, types=(source,), seed=5)
    for name, (kind, raw) in small.raw.items():
        rows, columns = small.matrices[name].values.shape
        values = decode(kind, raw, rows, columns).values
        encoded = quants.quantize(values, quants.GGMLQuantizationType(target))
        twin.raw[name] = (target, np.ascontiguousarray(encoded).view(np.uint8).reshape(-1))
    tokens = [7, 8, 9, 10]
    expected = run(twin.native(), 203, tokens)
    got = run(small.native(requantize=target), 203, tokens)
    assert got.tobytes() == expected.tobytes()


def test_weight_bytes_are_those_of_the_file_when_nothing_is_padded() -> None:
    shape = replace(
        SHAPE, dim=64, n_heads=4, n_kv_heads=4, head_dim=16, rope_dim=16, ff_dim=64, vocab_size=64
    )
    for kind in (F32, F16, Q4_1, Q8_0):
        small = SmallModel(shape, types=(kind,))
        assert small.native().weight_bytes == sum(raw.size for _, raw in small.raw.values())


def test_every_row_of_the_embedding_comes_back() -> None:
    """With all other matrices zero, the logits are the normed embedding times the head."""
    for kind in (F32, F16, Q4_0, Q4_1, Q8_0):
        small = SmallModel(replace(SHAPE, dim=32, vocab_size=37), types=(kind,), tied=False, seed=kind)
        for name in small.raw:
            if name.startswith("blk"):
                rows, columns = small.matrices[name].values.shape
                small.raw[name] = (F32, np.zeros(rows * columns * 4, np.uint8))
        identity: NDArray[np.float32] = np.zeros((37, 32), np.float32)
        identity[:32] = np.eye(32)
        small.raw["output.weight"] = (F32, identity.view(np.uint8).reshape(-1))
        small.norms["output_norm.weight"] = np.ones(32, np.float32)
        table = small.matrices["token_embd.weight"].values.astype(np.float64)
        expected = table / np.sqrt((table**2).mean(1, keepdims=True) + SHAPE.norm_eps)
        got = run(small.native(), 37, list(range(37)))
        np.testing.assert_allclose(got[:, :32], expected, rtol=2e-6)
        assert (got[:, 32:] == 0).all()


def test_random_bytes_cover_the_most_negative_int8() -> None:
    raw = random_bytes(Q8_0, 64, 64, np.random.default_rng(0)).reshape(-1, 34)[:, 2:]
    assert raw.view(np.int8).min() == -128  # so the contract tests multiply by it

"""bfloat16, five and six bits, and super-blocks: decoded as ggml does, multiplied as the contract says, on every ISA."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_models import (
    BF16,
    BLOCK_BYTES,
    F32,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    SMALL,
    SmallModel,
    random_bytes,
    run,
)
from numpy.typing import NDArray

from tiltyard.kernels import available_isas
from tiltyard.kernels.reference import forward_exact, forward_float
from tiltyard.kernels.reference_formats import decode

SHAPE = replace(SMALL, n_layers=1, dim=256, n_heads=8, n_kv_heads=4, ff_dim=512, vocab_size=70)
TYPES = {"BF16": BF16, "Q5_0": Q5_0, "Q5_1": Q5_1, "Q4_K": Q4_K, "Q5_K": Q5_K, "Q6_K": Q6_K}
TOKENS = np.random.default_rng(1).integers(0, 70, 21).tolist()


def test_decoding_gives_the_floats_of_the_gguf_library() -> None:
    """Oracle: `gguf.quants.dequantize`, ggml's reference in NumPy; even the signs of zeros."""
    quants = pytest.importorskip("gguf.quants")
    for kind in BLOCK_BYTES:
        raw = random_bytes(kind, 24, 512, np.random.default_rng(kind))
        expected = quants.dequantize(raw.reshape(24, -1), quants.GGMLQuantizationType(kind))
        if expected.dtype != np.float32:  # F16 stays what it is
            expected = expected.astype(np.float32)
        got = decode(kind, raw, 24, 512).values
        if kind in (BF16, *TYPES.values()):
            assert got.tobytes() == np.ascontiguousarray(expected).tobytes(), kind


@pytest.mark.parametrize("name", TYPES)
def test_every_isa_gives_the_bits_of_the_reference(name: str) -> None:
    """21 rows at once take the way of opened tiles, single rows the other; the embedding decodes on the way."""
    model = SmallModel(SHAPE, types=(TYPES[name],), seed=5)
    expected = forward_exact(model.shape, model.matrices, model.norms, TOKENS, "f16")
    for isa in available_isas():
        native = model.native(isa=isa)
        assert run(native, 70, TOKENS).tobytes() == expected.tobytes(), isa
        alone = [run(native, 70, [token], start=at) for at, token in enumerate(TOKENS)]
        assert np.concatenate(alone).tobytes() == expected.tobytes(), isa


@pytest.mark.parametrize("name", TYPES)
def test_the_contract_means_the_network(name: str) -> None:
    model = SmallModel(SHAPE, types=(TYPES[name],), seed=6)
    meant = forward_float(model.shape, model.matrices, model.norms, TOKENS)
    got = run(model.native(isa="scalar"), 70, TOKENS)
    tolerance = 0.001 if TYPES[name] == BF16 else 0.03
    assert np.sqrt(((got - meant) ** 2).mean()) <= tolerance * np.sqrt((meant**2).mean())


def test_types_may_be_mixed() -> None:
    """As in a Q4_K_M file: most matrices in one type, some in others, and few rows do not fill a tile."""
    model = SmallModel(replace(SHAPE, vocab_size=67), types=(F32, Q8_0, *TYPES.values()), tied=False, seed=7)
    tokens = [token % 67 for token in TOKENS]
    expected = forward_exact(model.shape, model.matrices, model.norms, tokens, "int8")
    for isa in available_isas():
        assert run(model.native(isa=isa, kv="int8", threads=2), 67, tokens).tobytes() == expected.tobytes(), (
            isa
        )


def extreme(kind: int, raw: NDArray[np.uint8], rng: np.random.Generator) -> None:
    """Quants and small scales of the largest magnitude that the type has; the halves stay."""
    blocks = raw.reshape(-1, BLOCK_BYTES[kind])
    if kind == Q6_K:  # -32 and -128, in half of the blocks against +31 and 127
        blocks[:, :192] = np.where(rng.integers(0, 2, (len(blocks), 1)), 0, 0xFF)
        blocks[:, 192:208] = np.where(rng.integers(0, 2, (len(blocks), 1)), 0x80, 0x7F)
    else:
        blocks[:, 2 if kind == Q5_0 else 4 :] = 0xFF


@pytest.mark.parametrize("name", [name for name in TYPES if name != "BF16"])
def test_extreme_integers_do_not_saturate(name: str) -> None:
    kind, rng = TYPES[name], np.random.default_rng(8)
    model = SmallModel(SHAPE, types=(kind,), seed=8)
    for matrix, (_, raw) in model.raw.items():
        extreme(kind, raw, rng)
        rows, columns = model.matrices[matrix].values.shape
        model.matrices[matrix] = decode(kind, raw, rows, columns)
    expected = forward_exact(model.shape, model.matrices, model.norms, TOKENS, "f16")
    for isa in available_isas():
        assert run(model.native(isa=isa), 70, TOKENS).tobytes() == expected.tobytes(), isa


@pytest.mark.parametrize("name", TYPES)
def test_packed_matrices_come_back_as_they_were(name: str) -> None:
    model = SmallModel(SHAPE, types=(TYPES[name],), seed=9)
    first = model.native(isa="scalar")
    second = SmallModel(SHAPE, types=(TYPES[name],), seed=9)
    kept = {matrix: first.packed_matrix(matrix) for matrix in model.raw}
    expected = run(first, 70, TOKENS)
    again = second.native(isa="scalar", packed=kept)
    assert run(again, 70, TOKENS).tobytes() == expected.tobytes()


def test_a_row_that_fills_no_super_block_is_refused() -> None:
    model = SmallModel(replace(SHAPE, dim=96, n_heads=3, n_kv_heads=3), types=(F32,))
    native = model.native()
    del native
    model.raw["token_embd.weight"] = (Q4_K, np.zeros(70 * 144, np.uint8))
    with pytest.raises(
        ValueError, match=r"token_embd.weight: 96 columns do not fill blocks of 256, which Q4_K"
    ):
        model.native()


def test_a_q5_0_scale_without_a_minimum_in_f16_is_refused() -> None:
    model = SmallModel(SHAPE, types=(Q5_0,), seed=1)
    model.raw["token_embd.weight"][1][:2] = np.frombuffer(np.float16(5000).tobytes(), np.uint8)
    with pytest.raises(ValueError, match=r"token_embd.weight: a Q5_0 scale exceeds 4094"):
        model.native()


MEMORY_BITS = {F32: 32.0, BF16: 16.0, Q8_0: 8.5, Q6_K: 6.5625, Q5_K: 5.625, Q5_0: 6.0, Q5_1: 6.0, Q4_K: 4.625}


@pytest.mark.parametrize("kind", MEMORY_BITS)
def test_weights_take_the_memory_that_the_documentation_promises(kind: int) -> None:
    """docs/models.md, where the figures are rounded to two places."""
    shape = replace(SHAPE, vocab_size=64)
    model = SmallModel(shape, types=(kind,))
    weights = sum(matrix.values.size for matrix in model.matrices.values())
    assert model.native().weight_bytes * 8 / weights == MEMORY_BITS[kind]

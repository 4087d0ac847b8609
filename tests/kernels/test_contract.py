"""The compiled kernels against the numerics contract, written out in NumPy: equal bits, on every ISA."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_models import F16, F32, FAMILIES, Q4_0, Q4_1, Q8_0, SMALL, SmallModel, run

from tiltyard.kernels import available_isas
from tiltyard.kernels.reference import decode, forward_exact
from tiltyard.kernels.reference_float import forward_float

MODELS = {
    "default mix": SmallModel(SMALL),
    "every weight type": SmallModel(SMALL, types=(F32, F16, Q4_0, Q4_1, Q8_0), seed=3),
    "another mix, untied": SmallModel(SMALL, types=(F32, F16, Q4_0, Q4_1, Q8_0), tied=False, seed=4),
    "nothing a multiple of 32": SmallModel(
        replace(SMALL, n_heads=5, n_kv_heads=1, head_dim=8, dim=40, ff_dim=172, vocab_size=33, rope_dim=8),
        types=(F32, F16),
        seed=5,
    ),
    "heads of 8 under int8": SmallModel(
        replace(SMALL, n_heads=8, n_kv_heads=4, head_dim=8, dim=64, rope_dim=6), seed=6
    ),
    "heads of 64, four to a group": SmallModel(
        replace(SMALL, n_layers=1, n_heads=4, n_kv_heads=1, head_dim=64, rope_dim=64, rope_base=1e5), seed=7
    ),
    "heads of 128, seven to a group": SmallModel(
        replace(SMALL, n_layers=1, n_heads=7, n_kv_heads=1, head_dim=128, rope_dim=64), seed=8
    ),
    "heads of 72": SmallModel(
        replace(SMALL, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=72, rope_dim=72), types=(Q4_1,), seed=9
    ),
}
MODELS |= {
    name: SmallModel(shape, types=(F32, F16) if shape.dim % 32 else (F32, Q4_1, Q8_0), seed=40 + i)
    for i, (name, shape) in enumerate(FAMILIES.items())
}


@pytest.mark.parametrize("kv", ["f16", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_every_isa_gives_the_bits_of_the_reference(name: str, kv: str) -> None:
    model = MODELS[name]
    tokens = np.random.default_rng(1).integers(0, model.shape.vocab_size, 37).tolist()
    expected = forward_exact(model.shape, model.matrices, model.norms, tokens, kv)
    for isa in available_isas():
        got = run(model.native(isa=isa, kv=kv), model.shape.vocab_size, tokens)
        assert got.tobytes() == expected.tobytes(), isa


@pytest.mark.parametrize("window", [0, 270])
def test_attention_splits_are_merged_as_the_contract_says(window: int) -> None:
    """With a window of 270 the last rows see parts of two splits, or of three, or the first not at all."""
    shape = replace(
        SMALL, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=8, dim=32, ff_dim=32, rope_dim=8, vocab_size=16
    )
    shape = replace(shape, windows=(window,))
    model = SmallModel(shape, types=(F32,), seed=2)
    tokens = np.random.default_rng(2).integers(0, 16, 521).tolist()  # three splits of 256 positions
    expected = forward_exact(shape, model.matrices, model.norms, tokens, "f16")
    for isa in available_isas():
        got = run(model.native(isa=isa), 16, tokens)
        assert got.tobytes() == expected.tobytes(), isa


@pytest.mark.parametrize("name", MODELS)
def test_the_contract_means_the_network(name: str) -> None:
    model = MODELS[name]
    tokens = np.random.default_rng(3).integers(0, model.shape.vocab_size, 20).tolist()
    meant = forward_float(model.shape, model.matrices, model.norms, tokens)
    got = run(model.native(isa="scalar"), model.shape.vocab_size, tokens)
    # int8 activations carry noise of about 1/400 of a block; float weights leave that of f16 keys and values
    tolerance = 0.001 if set(model.types) <= {F32, F16} else 0.03
    assert np.sqrt(((got - meant) ** 2).mean()) <= tolerance * np.sqrt((meant**2).mean())


def test_extreme_integers_do_not_saturate() -> None:
    """All nibbles 15, all int8 at -128 or 127: the largest sums of products that there can be."""
    shape = replace(SMALL, n_layers=1)
    for kind, fill in ((Q4_1, 0xFF), (Q4_0, 0xFF), (Q8_0, 0x80), (Q8_0, 0x7F)):
        model = SmallModel(shape, types=(kind,), seed=11)
        for name, (_, raw) in model.raw.items():
            size = {Q4_0: 18, Q4_1: 20, Q8_0: 34}[kind]
            raw.reshape(-1, size)[:, (4 if kind == Q4_1 else 2) :] = fill
            rows, columns = model.matrices[name].values.shape
            model.raw[name] = (kind, raw)
            model.matrices[name] = decode(kind, raw, rows, columns)
        expected = forward_exact(model.shape, model.matrices, model.norms, [1, 2, 3], "f16")
        for isa in available_isas():
            assert run(model.native(isa=isa), shape.vocab_size, [1, 2, 3]).tobytes() == expected.tobytes(), (
                kind,
                isa,
            )

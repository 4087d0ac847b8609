"""LoRA adapters: the bits of the reference, chosen by sequence, and nothing for those that have none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from kernel_models import F16, F32, Q4_0, Q4_1, Q8_0, SMALL, SmallModel, run
from numpy.typing import NDArray

from tiltyard.kernels import NativeModel, available_isas
from tiltyard.kernels.reference import LowRank, forward_exact
from tiltyard.kernels.reference_experts import Experts
from tiltyard.kernels.reference_float import forward_float

SHAPE = replace(SMALL, n_heads=4, head_dim=16, rope_dim=16, dim=64, ff_dim=96)
MODELS = {
    "default mix": SmallModel(SHAPE, seed=51),
    "every weight type": SmallModel(SHAPE, (F32, F16, Q4_0, Q4_1, Q8_0), seed=52),
    "nothing a multiple of 32": SmallModel(
        replace(SHAPE, dim=40, head_dim=8, n_heads=5, n_kv_heads=1, rope_dim=8, ff_dim=44),
        (F32, F16),
        seed=53,
    ),
    "heads of 72": SmallModel(replace(SHAPE, head_dim=72, rope_dim=72), (Q4_1,), seed=54),
}
ALL = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

Pairs = dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]


def random_adapter(model: SmallModel, rank: int, seed: int, sites: tuple[str, ...] = ALL) -> Pairs:
    rng = np.random.default_rng(seed)
    pairs: Pairs = {}
    for name, matrix in model.matrices.items():
        if any(f".{site}.weight" in name for site in sites):
            rows, columns = matrix.values.shape
            down = rng.standard_normal((rank, columns)).astype(np.float32) / np.float32(np.sqrt(columns))
            up = rng.standard_normal((rows, rank)).astype(np.float32) / np.float32(np.sqrt(rank))
            pairs[name] = (down, up)
    return pairs


def adapted(model: SmallModel, pairs: Pairs, scale: float) -> Mapping[str, object]:
    low = {name: LowRank(down, up, np.float32(scale)) for name, (down, up) in pairs.items()}
    return {name: replace(matrix, adapter=low.get(name)) for name, matrix in model.matrices.items()}


def run_adapted(model: NativeModel, vocab: int, tokens: list[int], adapter: int) -> NDArray[np.float32]:
    """One sequence under one adapter; all logits."""
    count = len(tokens)
    logits = np.empty((count, vocab), np.float32)
    model.forward(
        np.array(tokens, np.int32),
        np.arange(count, dtype=np.int32),
        np.zeros(count, np.int32),
        np.array([range(-(-count // 32))], np.int32),
        np.arange(count, dtype=np.int32),
        logits,
        adapters=np.array([adapter], np.int32),
    )
    return logits


@pytest.mark.parametrize("rank", [1, 8, 40])
@pytest.mark.parametrize("name", MODELS)
def test_every_isa_gives_the_bits_of_the_reference(name: str, rank: int) -> None:
    model = MODELS[name]
    pairs = random_adapter(model, rank, seed=rank)
    tokens = np.random.default_rng(1).integers(0, model.shape.vocab_size, 11).tolist()
    expected = forward_exact(model.shape, adapted(model, pairs, 0.7), model.norms, tokens, "f16")
    plain = forward_exact(model.shape, model.matrices, model.norms, tokens, "f16")
    assert expected.tobytes() != plain.tobytes()
    for isa in available_isas():
        native = model.native(isa=isa, threads=2)
        assert native.add_adapter(0.7, pairs) == 1
        assert run_adapted(native, model.shape.vocab_size, tokens, 1).tobytes() == expected.tobytes(), isa
        assert run_adapted(native, model.shape.vocab_size, tokens, 0).tobytes() == plain.tobytes(), isa


def test_the_contract_means_the_merged_network() -> None:
    """y = (W + scale B A) x, in float64."""
    model = SmallModel(SHAPE, (F32,), seed=55)
    pairs = random_adapter(model, 8, seed=1)
    merged = {
        name: replace(matrix, values=matrix.values + np.float32(0.5) * pairs[name][1] @ pairs[name][0])
        if name in pairs
        else matrix
        for name, matrix in model.matrices.items()
    }
    tokens = list(range(12))
    meant = forward_float(model.shape, merged, model.norms, tokens)
    got = forward_exact(model.shape, adapted(model, pairs, 0.5), model.norms, tokens, "f16")
    assert np.sqrt(((got - meant) ** 2).mean()) <= 0.001 * np.sqrt((meant**2).mean())


@pytest.mark.parametrize("name", ["every weight type", "a mixture of experts"])
def test_a_mixed_batch_gives_each_sequence_the_bits_of_its_own_run(name: str) -> None:
    """Sequences without an adapter and with three, of different ranks and sites, in random chunks and company."""
    if name == "a mixture of experts":
        model, sites = SmallModel(SHAPE, seed=56, experts=Experts(4, 2)), ALL[:4]
    else:
        model, sites = MODELS[name], ALL
    vocab, rng = model.shape.vocab_size, np.random.default_rng(6)
    adapters = [
        random_adapter(model, 4, 1, sites),
        random_adapter(model, 33, 2, ("attn_q", "attn_v")),
        random_adapter(model, 16, 3, sites[3:]),
    ]
    sequences = [rng.integers(0, vocab, n).tolist() for n in (40, 33, 7, 40, 21)]
    chosen = np.array([0, 1, 2, 3, 1], np.int32)
    expected = []
    for tokens, adapter in zip(sequences, chosen, strict=True):
        alone = model.native(isa="scalar")
        for pairs in adapters[: int(adapter)]:
            number = alone.add_adapter(1.5, pairs)
        expected.append(run_adapted(alone, vocab, tokens, number if adapter else 0))
    for threads in (1, 3):
        native = model.native(isa=available_isas()[0], threads=threads)
        for pairs in adapters:
            native.add_adapter(1.5, pairs)
        tables = np.array([[2 * s, 2 * s + 1] for s in range(5)], np.int32)
        done = [0] * 5
        while any(at < len(tokens) for at, tokens in zip(done, sequences, strict=True)):
            rows: list[tuple[int, int]] = []
            for s, tokens in enumerate(sequences):
                count = min(int(rng.integers(0, 9)), len(tokens) - done[s])
                rows += [(s, done[s] + i) for i in range(count)]
                done[s] += count
            rng.shuffle(rows)
            logits = np.empty((len(rows), vocab), np.float32)
            native.forward(
                np.array([sequences[s][p] for s, p in rows], np.int32),
                np.array([p for _, p in rows], np.int32),
                np.array([s for s, _ in rows], np.int32),
                tables,
                np.arange(len(rows), dtype=np.int32),
                logits,
                adapters=chosen,
            )
            for row, (s, p) in zip(logits, rows, strict=True):
                assert row.tobytes() == expected[s][p].tobytes(), (s, p)


def test_what_does_not_fit_is_refused() -> None:
    model = MODELS["default mix"]
    native = model.native()
    name = "blk.0.attn_q.weight"
    down, up = random_adapter(model, 4, 1)[name]
    for pairs, said in [
        ({name: (down, up[:-1].copy())}, "the adapter is for 63 x 64"),
        ({name: (down[:3].copy(), up)}, "down has rank 3, up 4"),
        ({"blk.9.attn_q.weight": (down, up)}, "cannot be adapted"),
        ({"token_embd.weight": (down, up)}, "cannot be adapted"),
    ]:
        with pytest.raises(ValueError, match=said):
            native.add_adapter(1.0, pairs)
    with pytest.raises(ValueError, match="scale is not finite"):
        native.add_adapter(float("inf"), {name: (down, up)})
    with pytest.raises(ValueError, match=r"adapters\[0\] is 1; it must be at least 0 and below 1"):
        run_adapted(native, SHAPE.vocab_size, [1], 1)
    experts = SmallModel(SHAPE, seed=57, experts=Experts(4, 2)).native()
    with pytest.raises(ValueError, match="cannot be adapted"):
        experts.add_adapter(1.0, {"blk.0.ffn_up_exps.weight": (down, up)})
    assert run(native, SHAPE.vocab_size, [1]).shape == (1, SHAPE.vocab_size)

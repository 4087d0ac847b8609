"""The promise: logits do not depend on company, chunking, threads or where the KV lies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_models import F16, F32, FAMILIES, Q4_0, Q4_1, Q8_0, SMALL, GgufWeights, SmallModel, run
from numpy.typing import NDArray

from tiltyard.kernels import BLOCK_TOKENS, NativeModel, available_isas
from tiltyard.kernels.reference import hidden_exact

SHAPE = replace(SMALL, dim=64, ff_dim=64, head_dim=16, rope_dim=16)
MIXED = SmallModel(SHAPE, types=(F32, F16, Q4_0, Q4_1, Q8_0), seed=21)
LENGTHS = (3, 31, 32, 33, 70, 300, 520)
BLOCKS = 64
CHUNKS = (1, 1, 1, 2, 3, 4, 5, 7, 16, 33, 64, 150)


def alone(model: NativeModel, vocab: int, tokens: list[int]) -> NDArray[np.float32]:
    """Every row computed by itself, one token a step."""
    rows = [run(model, vocab, [token], start=i) for i, token in enumerate(tokens)]
    return np.concatenate(rows)


def together(
    model: NativeModel,
    vocab: int,
    sequences: list[list[int]],
    expected: list[NDArray[np.float32]],
    rng: np.random.Generator,
) -> int:
    """Drive all sequences to their ends in random chunks and company, blocks anywhere; compare bytes."""
    needed = [-(-len(tokens) // BLOCK_TOKENS) for tokens in sequences]
    free = rng.permutation(BLOCKS)[: sum(needed)]
    width = max(needed)
    tables = np.zeros((len(sequences), width), np.int32)
    for table, blocks in zip(tables, np.split(free, np.cumsum(needed)[:-1]), strict=True):
        table[: len(blocks)] = blocks
    done = [0] * len(sequences)
    compared = 0
    while any(at < len(tokens) for at, tokens in zip(done, sequences, strict=True)):
        rows: list[tuple[int, int]] = []
        live = [s for s, tokens in enumerate(sequences) if done[s] < len(tokens)]
        for s in rng.permutation(live)[: rng.integers(1, len(live) + 1)]:
            count = min(int(rng.choice(CHUNKS)), len(sequences[s]) - done[s])
            rows += [(int(s), done[s] + i) for i in range(count)]
            done[s] += count
        rng.shuffle(rows)  # even the rows of one chunk may come in any order
        logits = np.empty((len(rows), vocab), np.float32)
        model.forward(
            np.array([sequences[s][p] for s, p in rows], np.int32),
            np.array([p for _, p in rows], np.int32),
            np.array([s for s, _ in rows], np.int32),
            tables,
            np.arange(len(rows), dtype=np.int32),
            logits,
        )
        for row, (s, p) in zip(logits, rows, strict=True):
            assert row.tobytes() == expected[s][p].tobytes(), (s, p)
            compared += 1
    return compared


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_any_schedule_gives_the_bits_of_one_token_at_a_time(kv: str) -> None:
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, SHAPE.vocab_size, n).tolist() for n in LENGTHS]
    best = available_isas()[0]
    single = MIXED.native(isa=best, threads=1, kv=kv, blocks=BLOCKS)
    expected = [alone(single, SHAPE.vocab_size, tokens) for tokens in sequences]
    for threads in (1, 2, 3):
        model = MIXED.native(isa=best, threads=threads, kv=kv, blocks=BLOCKS)
        for _ in range(3):
            assert together(model, SHAPE.vocab_size, sequences, expected, rng) == sum(LENGTHS)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_invariant(name: str) -> None:
    """Batch, chunks, places of blocks, threads and instruction sets; windows shorter than the prompts."""
    shape = FAMILIES[name]
    small = SmallModel(shape, types=(F32, F16) if shape.dim % 32 else (F32, F16, Q4_1, Q8_0), seed=60)
    rng = np.random.default_rng(11)
    sequences = [rng.integers(0, shape.vocab_size, n).tolist() for n in (3, 37, 70, 290)]
    single = small.native(isa="scalar", blocks=BLOCKS)
    expected = [run(single, shape.vocab_size, tokens) for tokens in sequences]
    assert alone(single, shape.vocab_size, sequences[2]).tobytes() == expected[2].tobytes()
    for isa in available_isas():
        model = small.native(isa=isa, threads=2, blocks=BLOCKS)
        together(model, shape.vocab_size, sequences, expected, rng)


def test_a_window_cannot_see_what_lies_before_it() -> None:
    """With one layer a row depends on its window alone: blocks before it may hold anything, even NaN."""
    shape = FAMILIES["mistral"]
    model = SmallModel(shape, types=(F32, Q8_0), seed=61).native(blocks=4)
    tokens = np.random.default_rng(12).integers(0, shape.vocab_size, 100).tolist()
    expected = run(model, shape.vocab_size, tokens)
    for block in range(2):  # positions 0 to 63; row 90 sees 71 to 90
        model.write_block(block, b"\xff" * model.kv_bytes_per_block)
    again = run(model, shape.vocab_size, tokens[90:], start=90)
    assert again.tobytes() == expected[90:].tobytes()


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_hidden_states_are_those_that_the_head_multiplies(name: str) -> None:
    small = SmallModel(FAMILIES[name], types=(F32, Q8_0), seed=62)
    shape = small.shape
    tokens = np.random.default_rng(13).integers(0, shape.vocab_size, 40).tolist()
    expected = hidden_exact(shape, small.matrices, small.norms, tokens, "f16")
    for isa in available_isas():
        model = small.native(isa=isa, threads=2)
        for rows in ([39], [0, 7, 39, 7]):
            hidden = np.empty((len(rows), shape.dim), np.float32)
            model.embed(
                np.array(tokens, np.int32),
                np.arange(40, dtype=np.int32),
                np.zeros(40, np.int32),
                np.array([[0, 1]], np.int32),
                np.array(rows, np.int32),
                hidden,
            )
            assert hidden.tobytes() == expected[rows].tobytes()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    heads=st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 2), (5, 1), (8, 2)]),
    head_dim=st.sampled_from([8, 16, 24, 64]),
    kinds=st.lists(st.sampled_from([F32, F16, Q4_0, Q4_1, Q8_0]), min_size=1, max_size=3),
    kv=st.sampled_from(["f16", "int8"]),
)
def test_any_small_model_is_invariant(
    seed: int, heads: tuple[int, int], head_dim: int, kinds: list[int], kv: str
) -> None:
    n_heads, n_kv_heads = heads
    if n_heads * head_dim % 32:
        kinds = [F32, F16]
    shape = replace(
        SHAPE, n_layers=1, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, rope_dim=head_dim
    )
    small = SmallModel(shape, types=kinds, seed=seed)
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, shape.vocab_size, n).tolist() for n in (2, 37, 70)]
    scalar = small.native(isa="scalar", kv=kv, blocks=BLOCKS)
    expected = [run(scalar, shape.vocab_size, tokens) for tokens in sequences]
    for isa in available_isas():
        model = small.native(isa=isa, threads=2, kv=kv, blocks=BLOCKS)
        together(model, shape.vocab_size, sequences, expected, rng)


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_what_lies_in_unused_slots_does_not_matter(kv: str) -> None:
    tokens = np.random.default_rng(7).integers(0, SHAPE.vocab_size, 45).tolist()
    for isa in available_isas():
        clean = run(MIXED.native(isa=isa, kv=kv), SHAPE.vocab_size, tokens)
        for poison in (0xFF, 0x7B, 0x7F):  # NaN; large finite values in f16; NaN in the int8 scales
            model = MIXED.native(isa=isa, kv=kv)
            for block in range(2):
                model.write_block(block, bytes([poison]) * model.kv_bytes_per_block)
            assert run(model, SHAPE.vocab_size, tokens).tobytes() == clean.tobytes()


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_a_prefix_survives_copying_and_spilling(kv: str) -> None:
    tokens = np.random.default_rng(8).integers(0, SHAPE.vocab_size, 40).tolist()
    model = MIXED.native(kv=kv, blocks=8)
    expected = run(model, SHAPE.vocab_size, tokens)
    spilled = model.read_block(0)
    model.copy_block(1, 5)
    model.write_block(0, bytes(len(spilled)))
    model.write_block(6, spilled)
    resumed = run(model, SHAPE.vocab_size, tokens[39:], start=39, table=[6, 5])
    assert resumed.tobytes() == expected[39:].tobytes()


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_the_default_model_is_invariant(default_model: GgufWeights, kv: str) -> None:
    rng = np.random.default_rng(9)
    sequences = [rng.integers(17, default_model.vocab, n).tolist() for n in (5, 34, 67, 270)]
    best = available_isas()[0]
    single = default_model.native(isa=best, threads=1, kv=kv, blocks=BLOCKS)
    # of the longest, whole prompts: one at a time is checked on the small models
    expected = [run(single, default_model.vocab, tokens) for tokens in sequences]
    assert run(single, default_model.vocab, sequences[1][:1]).tobytes() == expected[1][:1].tobytes()
    model = default_model.native(isa=best, threads=2, kv=kv, blocks=BLOCKS)
    together(model, default_model.vocab, sequences, expected, rng)


def test_all_isas_agree_on_the_default_model(default_model: GgufWeights) -> None:
    tokens = np.random.default_rng(10).integers(17, default_model.vocab, 9).tolist()
    for kv in ("f16", "int8"):
        results = {
            run(default_model.native(isa=isa, kv=kv), default_model.vocab, tokens).tobytes()
            for isa in available_isas()
        }
        assert len(results) == 1

"""Vectors of texts: made in the same steps as answers, the same bits in any company, and no block stays."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from family_models import CASES
from tiltyard.engine.embedding import unit
from tiltyard.engine.engine import Engine, EngineConfig
from tiltyard.engine.request import EngineRequest, Pooling, SamplingSettings
from tiltyard.errors import InvalidRequest
from tiltyard.kernels import NativeModel
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.worker.embeddings import EmbeddingDesk
from tiltyard.worker.load import load_native
from tiltyard.worker.loop import EngineLoop

WIDTH, VOCABULARY, BLOCKS = 64, 48, 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> NativeModel:
    path = CASES["mistral"].write(tmp_path_factory.mktemp("model"))
    with GgufFile.open(path) as gguf:
        architecture = Architecture.from_gguf(gguf)
        native = load_native(gguf, architecture, quantization="as-stored", threads=1, isa="auto")
    native.allocate_kv(BLOCKS, "f16")
    return native


def engine(model: NativeModel, *, budget: int = 64, blocks: int = BLOCKS) -> Engine:
    return Engine(
        model,
        EngineConfig(
            kv_blocks=blocks,
            max_batch_tokens=budget,
            max_sequences=8,
            vocab_size=VOCABULARY,
            max_context=256,
            width=WIDTH,
        ),
    )


def text(name: str, tokens: list[int], pooling: Pooling | None, most: int = 1) -> EngineRequest:
    settings = SamplingSettings(temperature=0.0)
    return EngineRequest(name, tuple(tokens), settings, most, frozenset(), "space", embed=pooling)


def run(engine: Engine, requests: list[EngineRequest]) -> tuple[dict[str, bytes], dict[str, list[int]]]:
    """To the end; returns vectors and answers."""
    for request in requests:
        engine.submit(request)
    vectors: dict[str, bytes] = {}
    answers: dict[str, list[int]] = {}
    while engine.has_work:
        result = engine.step()
        engine.check_integrity()
        vectors |= {made.request_id: made.vector.tobytes() for made in result.embedded}
        for token in result.emitted:
            answers.setdefault(token.request_id, []).append(token.token)
    return vectors, answers


def tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_vector_is_the_pooled_hidden_state_and_has_length_one(model: NativeModel, pooling: Pooling) -> None:
    prompt = tokens(1, 70)
    hidden = np.empty((70, WIDTH), np.float32)
    rows = np.arange(70, dtype=np.int32)
    model.embed(
        np.array(prompt, np.int32),
        rows,
        np.zeros(70, np.int32),
        np.arange(3, dtype=np.int32)[None],
        rows,
        hidden,
    )
    wanted = hidden[-1].astype(np.float64) if pooling == "last" else hidden.astype(np.float64).mean(axis=0)
    vectors, _ = run(engine(model), [text("a", prompt, pooling)])
    got = np.frombuffer(vectors["a"], np.float32)
    np.testing.assert_allclose(got, wanted / np.linalg.norm(wanted), rtol=1e-5, atol=1e-7)
    assert abs(float(np.linalg.norm(got)) - 1) < 1e-6


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_chunks_company_and_cached_prefixes_do_not_change_a_bit(model: NativeModel, pooling: Pooling) -> None:
    prompts = {f"t{i}": tokens(10 + i, n) for i, n in enumerate((1, 31, 32, 33, 100))}
    alone = {
        name: run(engine(model, budget=256), [text(name, prompt, pooling)])[0][name]
        for name, prompt in prompts.items()
    }
    answers = {f"a{i}": tokens(30 + i, n) for i, n in enumerate((40, 90))}
    said = {name: run(engine(model), [text(name, p, None, 30)])[1][name] for name, p in answers.items()}
    for budget in (8, 17, 64):
        busy = engine(model, budget=budget)
        run(busy, [text("before", prompts["t4"], None, 3)])  # leaves the prefix of t4 in the tree
        mixed = [text(n, p, pooling) for n, p in prompts.items()]
        mixed[2:2] = [text(n, p, None, 30) for n, p in answers.items()]
        vectors, heard = run(busy, mixed)
        assert vectors == alone
        assert heard == said
        assert busy.counters.embedded_tokens >= sum(map(len, prompts.values()))


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_text_that_gave_way_starts_again_and_ends_in_the_same_bits(
    model: NativeModel, pooling: Pooling
) -> None:
    patient = replace(text("a", tokens(4, 200), pooling), priority="batch")
    alone, _ = run(engine(model), [patient])
    busy = engine(model, budget=16)
    busy.submit(patient)
    for _ in range(5):
        busy.step()
    vectors, answers = run(busy, [text("urgent", tokens(5, 230), None, 4)])
    assert vectors == alone
    assert len(answers["urgent"]) == 4
    assert busy.counters.preemptions == 1
    assert busy.counters.embedded_tokens > 200  # some of it twice


def test_no_block_stays_and_no_other_text_can_find_one(model: NativeModel) -> None:
    used = engine(model)
    run(used, [text("a", tokens(2, 200), "mean")])
    assert (used.blocks_used, used.blocks_cached) == (0, 0)
    run(used, [text("b", tokens(2, 200), None, 1)])
    assert used.counters.prefix_hit_tokens == 0


def test_a_text_can_be_cancelled_in_the_middle(model: NativeModel) -> None:
    half = engine(model, budget=16)
    half.submit(text("a", tokens(3, 100), "mean"))
    half.step()
    assert half.blocks_used > 0
    assert half.cancel("a")
    half.check_integrity()
    assert (half.blocks_used, half.has_work) == (0, False)


def test_an_engine_without_hidden_states_refuses(model: NativeModel) -> None:
    config = EngineConfig(
        kv_blocks=2, max_batch_tokens=8, max_sequences=1, vocab_size=VOCABULARY, max_context=64
    )
    with pytest.raises(InvalidRequest, match="no hidden states"):
        Engine(model, config).submit(text("a", [1], "last"))


def test_a_vector_of_zeros_stays() -> None:
    assert unit(np.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert unit(np.array([0.0, -2.0])).tolist() == [0.0, -1.0]


# The worker's desk between the event loop and the engine's thread.


async def test_a_reader_who_leaves_cancels_every_text(model: NativeModel) -> None:
    slow = engine(model, budget=8)
    loop = EngineLoop(slow, deliver=lambda report: None, failed=lambda: None)
    desk = EmbeddingDesk(loop, at_once=2)
    work = asyncio.ensure_future(desk.embed([text(f"t{i}", tokens(i, 200), "mean") for i in range(6)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert desk.open_requests == 1
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await asyncio.sleep(0)
    loop.start()
    loop.stop()  # it obeys what was asked before: two texts in, two out
    assert desk.open_requests == 0
    assert not slow.has_work
    assert slow.blocks_used == 0

"""The numerics contract, held against the real model: equal tokens and equal bits of logits on every path.

Each test also shows, by a counter, that the path it names was taken.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from tiltyard.engine.draft_model import DraftModel
from tiltyard.engine.engine import Engine, EngineConfig
from tiltyard.engine.request import EngineCounters, EngineRequest, SamplingSettings
from tiltyard.engine.speculation import Speculation
from tiltyard.kernels import NativeModel, available_isas
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.models.tokenizer import Tokenizer
from tiltyard.worker.load import load_native
from tiltyard.worker.spill_file import SpillFile
from toy_model import FREE_ROWS

BLOCKS = 256
ANSWER_TOKENS = 10
TEXTS = (
    "Once upon a time",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\n用中文写一首关于月亮的诗。🌙<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return " + "fibonacci(n - 1) + " * 12,
    "The quick brown fox jumps over the lazy dog. " * 14,
)
SETTINGS = (
    SamplingSettings(temperature=0.0),
    SamplingSettings(temperature=0.8, top_p=0.9, seed=7),
    SamplingSettings(temperature=1.2, top_k=40, min_p=0.02, repetition_penalty=1.1, seed=8),
)
Loader = Callable[..., NativeModel]


@dataclass
class Answers:
    """Tokens by request, and the digest of each row of logits by request and position."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    logits: dict[tuple[str, int], str] = field(default_factory=dict)
    counters: EngineCounters = field(default_factory=EngineCounters)

    def observe(self, request_id: str, position: int, row: NDArray[np.float32]) -> None:
        self.logits[request_id, position] = hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest()

    def only(self, names: set[str]) -> tuple[dict[str, list[int]], dict[tuple[str, int], str]]:
        return (
            {name: tokens for name, tokens in self.tokens.items() if name in names},
            {key: digest for key, digest in self.logits.items() if key[0] in names},
        )


@pytest.fixture(scope="module")
def gguf(model_path: Path) -> Iterator[GgufFile]:
    with GgufFile.open(model_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def load(gguf: GgufFile) -> Loader:
    @cache
    def loaded(
        threads: int = 1,
        isa: str = available_isas()[0],
        precision: str = "f16",
        quantization: Literal["as-stored", "q4_0", "q8_0"] = "as-stored",
    ) -> NativeModel:
        model = load_native(
            gguf, Architecture.from_gguf(gguf), quantization=quantization, threads=threads, isa=isa
        )
        model.allocate_kv(BLOCKS, precision)
        return model

    return loaded


@pytest.fixture(scope="module")
def requests(gguf: GgufFile) -> list[EngineRequest]:
    tokenizer = Tokenizer.from_gguf(gguf)
    return [
        EngineRequest(
            request_id=f"{t}-{s}",
            prompt=tuple(tokenizer.encode(text, special=True)),
            sampling=settings,
            max_tokens=ANSWER_TOKENS,
            stop_ids=frozenset(),
            namespace="bits",
        )
        for t, text in enumerate(TEXTS)
        for s, settings in enumerate(SETTINGS)
    ]


@pytest.fixture(scope="module")
def alone(load: Loader, requests: list[EngineRequest]) -> Answers:
    """The reference: each request in an engine of its own, one thread, the whole prompt at once."""
    answers = Answers()
    for one in requests:
        answer(load(), [one], answers, max_batch_tokens=1024)
    assert answers.counters.peak_batch_sequences == 1
    return answers


def answer(
    model: NativeModel,
    requests: list[EngineRequest],
    into: Answers | None = None,
    *,
    max_batch_tokens: int = 256,
    blocks: int = BLOCKS,
    engine: Engine | None = None,
    speculation: Speculation | None = None,
) -> Answers:
    """Submit all, run until done; integrity after each step."""
    answers = into or Answers()
    if engine is None:
        engine = make_engine(
            model, answers, max_batch_tokens=max_batch_tokens, blocks=blocks, speculation=speculation
        )
    for one in requests:
        engine.submit(one)
    while engine.has_work:
        for token in engine.step().emitted:
            answers.tokens.setdefault(token.request_id, []).append(token.token)
        engine.check_integrity()
    answers.counters = engine.counters
    return answers


def make_engine(
    model: NativeModel,
    answers: Answers,
    *,
    max_batch_tokens: int = 256,
    blocks: int = BLOCKS,
    speculation: Speculation | None = None,
    spill: SpillFile | None = None,
) -> Engine:
    config = EngineConfig(
        kv_blocks=blocks,
        max_batch_tokens=max_batch_tokens,
        max_sequences=min(32, max_batch_tokens),
        vocab_size=49152,
        max_context=8192,
        observe=answers.observe,
        speculation=speculation,
    )
    return Engine(model, config, spill)


def assert_same(some: Answers, reference: Answers) -> None:
    tokens, logits = reference.only(set(some.tokens))
    assert some.tokens == tokens
    assert some.logits == logits
    assert len(some.logits) == ANSWER_TOKENS * len(some.tokens)


def test_together(load: Loader, requests: list[EngineRequest], alone: Answers) -> None:
    """vLLM #5898, #9567, #23138, #966: temperature 0 depended on who else was in the batch."""
    batched = answer(load(), requests)
    assert_same(batched, alone)
    assert batched.counters.peak_batch_sequences == len(requests)
    assert batched.counters.mixed_steps > 0


@pytest.mark.parametrize("max_batch_tokens", [3, 17, 50])
def test_in_chunks(
    load: Loader, requests: list[EngineRequest], alone: Answers, max_batch_tokens: int
) -> None:
    one = requests[-1]
    chunked = answer(load(), [one], max_batch_tokens=max_batch_tokens)
    assert_same(chunked, alone)
    assert chunked.counters.prefill_chunks == -(-len(one.prompt) // max_batch_tokens) > 2


def test_with_a_warm_cache(load: Loader, requests: list[EngineRequest], alone: Answers) -> None:
    """A cache hit changed the answer.

    SGLang #34683, vLLM #5543, PR #52701, #27433, OpenVINO #4367, llama.cpp PR #22224.
    """
    cold, warm = Answers(), Answers()
    engine = make_engine(load(), cold)
    answer(load(), requests[-3:], cold, engine=engine)
    hits_cold = engine.counters.prefix_hit_tokens
    second = Answers()
    again = [replace(one, request_id=f"again-{one.request_id}") for one in requests[-3:]]
    answer(load(), again, second, engine=engine)
    # The engine's observer is `cold`: what it saw of the second round carries the new names.
    warm.tokens = {name.removeprefix("again-"): tokens for name, tokens in second.tokens.items()}
    warm.logits = {
        (name.removeprefix("again-"), position): digest
        for (name, position), digest in cold.logits.items()
        if name.startswith("again-")
    }
    assert_same(warm, alone)
    full_blocks = 32 * ((len(requests[-1].prompt) - 1) // 32)
    assert engine.counters.prefix_hit_tokens - hits_cold == 3 * full_blocks > 0


def test_in_a_copy_of_a_partial_block(load: Loader, requests: list[EngineRequest], alone: Answers) -> None:
    choices = [one for one in requests if (len(one.prompt) - 1) % 32 > 0][-3:]
    assert len({one.prompt for one in choices}) == 1
    copied = answer(load(), choices)
    assert_same(copied, alone)
    size = len(choices[0].prompt)
    assert copied.counters.prompt_tokens == size + 2  # once for all, and the last token for the other two
    assert copied.counters.copied_tokens == 2 * ((size - 1) % 32)


@pytest.mark.parametrize("precision", ["f16", "int8"])
def test_brought_back_from_the_second_tier(
    load: Loader, requests: list[EngineRequest], tmp_path: Path, precision: str
) -> None:
    model, reference, returned = load(precision=precision), Answers(), Answers()
    long, other, again = requests[-3], requests[-6], requests[-2]
    for one in (long, other, again):
        answer(model, [one], reference)
    size = model.kv_bytes_per_block
    spill = SpillFile(tmp_path, block_bytes=size, budget_bytes=32 * size)
    blocks = -(-(len(long.prompt) + ANSWER_TOKENS) // 32)
    engine = make_engine(model, returned, blocks=blocks, spill=spill)
    for one in (long, other, again):
        answer(model, [one], returned, engine=engine)
    spill.close()
    assert_same(returned, reference)
    assert engine.counters.restored_blocks > 0


def test_after_a_preemption(load: Loader, requests: list[EngineRequest]) -> None:
    # Three prompts of 28 tokens in 5 blocks: all start with one block, but not all can have their second.
    crowd = [replace(one, prompt=one.prompt[:28]) for one in requests[-3:]]
    reference = Answers()
    for one in crowd:
        answer(load(), [one], reference)
    assert reference.counters.preemptions == 0
    squeezed = answer(load(), crowd, blocks=5)
    assert_same(squeezed, reference)
    assert squeezed.counters.preemptions > 0


@pytest.mark.parametrize(("blocks", "budget"), [(BLOCKS, 256), (9, 40)])
def test_with_guesses_from_the_prompt(
    load: Loader, requests: list[EngineRequest], alone: Answers, blocks: int, budget: int
) -> None:
    """Alone and guessed ahead, in company and in short memory: vLLM #41758, mlx-lm #1423."""
    guessed = answer(
        load(), requests, blocks=blocks, max_batch_tokens=budget, speculation=Speculation(costs=FREE_ROWS)
    )
    assert_same(guessed, alone)
    counters = guessed.counters
    assert 5 < counters.accepted_tokens < counters.draft_tokens
    assert (counters.evicted_blocks > 0) == (blocks < BLOCKS)


def test_with_a_draft_model_of_int4(load: Loader, requests: list[EngineRequest], alone: Answers) -> None:
    draft = DraftModel(
        load(quantization="q4_0"), blocks=BLOCKS, vocab_size=49152, max_context=8192, token_cost=0.0
    )
    some = requests[:9]
    guessed = answer(load(), some, speculation=Speculation(draft, FREE_ROWS))
    assert_same(guessed, alone)
    assert 20 < guessed.counters.accepted_tokens < guessed.counters.draft_tokens


def test_on_two_threads(load: Loader, requests: list[EngineRequest], alone: Answers) -> None:
    model = load(threads=2)
    assert model.threads == 2
    assert_same(answer(model, requests), alone)


@pytest.mark.skipif(len(available_isas()) < 2, reason="this CPU has only the scalar kernels")
def test_on_the_scalar_kernels(load: Loader, requests: list[EngineRequest], alone: Answers) -> None:
    fast, scalar = load(), load(isa="scalar", threads=2)
    assert (fast.isa, scalar.isa) == (available_isas()[0], "scalar")
    assert fast.isa != "scalar"
    assert_same(answer(scalar, requests[4:5]), alone)  # one is enough: a token takes a fifth of a second


def test_int8_kv_is_as_invariant_as_f16(load: Loader, requests: list[EngineRequest], alone: Answers) -> None:
    model = load(precision="int8")
    some = requests[1::4]
    reference = Answers()
    for one in some:
        answer(model, [one], reference, max_batch_tokens=1024)
    assert_same(answer(model, some, max_batch_tokens=40), reference)
    assert reference.logits.items().isdisjoint(alone.logits.items())  # it was another arithmetic


def test_thirty_two_at_once(load: Loader, requests: list[EngineRequest], alone: Answers) -> None:
    """llama.cpp #7052, PR #6950: 8 slots gave 5 to 8 different greedy answers to one prompt."""
    many = [
        replace(one, request_id=f"{one.request_id}/{copy}", namespace=f"tenant-{copy}")
        for copy in range(3)
        for one in requests
    ][:32]
    answers = answer(load(threads=2), many)
    assert answers.counters.peak_batch_sequences == 32
    for one in many:
        assert answers.tokens[one.request_id] == alone.tokens[one.request_id.partition("/")[0]]


@pytest.mark.parametrize("seed", range(4))
def test_in_random_company(load: Loader, requests: list[EngineRequest], alone: Answers, seed: int) -> None:
    """Random arrivals, cancels of others, chunk sizes and pool sizes."""
    rng = random.Random(seed)
    chosen = rng.sample(requests, 6)
    company = [
        replace(one, request_id=f"company-{i}", sampling=replace(one.sampling, seed=99))
        for i, one in enumerate(rng.sample(requests, 3))
    ]
    answers = Answers()
    budget = rng.choice((16, 40, 100))
    engine = make_engine(load(threads=2), answers, max_batch_tokens=budget, blocks=rng.randrange(14, 24))
    arrivals = sorted(((rng.randrange(20), one) for one in chosen + company), key=lambda a: a[0])
    now = 0
    while arrivals or engine.has_work:
        while arrivals and arrivals[0][0] <= now:
            engine.submit(arrivals.pop(0)[1])
        if now % 5 == 4 and company:
            engine.cancel(company.pop().request_id)
        for token in engine.step().emitted:
            answers.tokens.setdefault(token.request_id, []).append(token.token)
        engine.check_integrity()
        now += 1
    names = {one.request_id for one in chosen}
    mine = Answers(*answers.only(names))
    assert_same(mine, alone)
    assert set(mine.tokens) == names
    assert engine.counters.peak_batch_sequences > 1
    assert engine.counters.partial_prefill_chunks > 0

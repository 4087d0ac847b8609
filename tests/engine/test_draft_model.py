"""A second model guesses; its KV keeps step with the answers through everything that happens to blocks."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from tiltyard.engine.draft_model import FIRST_PROBE, DraftModel
from tiltyard.engine.engine import Engine
from tiltyard.engine.request import EngineRequest
from tiltyard.engine.speculation import Speculation, StepCosts
from toy_model import FREE_ROWS, VOCABULARY, ToyModel, request, run, solo, toy_engine


class OffModel(ToyModel):
    """The toy model, wrong wherever the position is divisible by five; or everywhere, while told so."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.lost = False

    def forward(  # noqa: PLR0917
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        sequences: NDArray[np.int32],
        tables: NDArray[np.int32],
        output_rows: NDArray[np.int32],
        logits: NDArray[np.float32],
        *,
        adapters: NDArray[np.int32] | None = None,
    ) -> None:
        super().forward(tokens, positions, sequences, tables, output_rows, logits)
        for row, index in enumerate(output_rows.tolist()):
            if self.lost or positions[index] % 5 == 0:
                logits[row] = np.roll(logits[row], 1)


def drafted(
    draft: ToyModel,
    *,
    blocks: int = 64,
    draft_context: int = 1024,
    token_cost: float = 0.0,
    costs: StepCosts = FREE_ROWS,
    **sizes: int,
) -> tuple[Engine, DraftModel]:
    drafter = DraftModel(
        draft, blocks=blocks, vocab_size=VOCABULARY, max_context=draft_context, token_cost=token_cost
    )
    return toy_engine(blocks=blocks, speculation=Speculation(drafter, costs), **sizes), drafter


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 1.5, "top_p": 0.9},
        {"temperature": 0.7, "logit_bias": ((3, 2.0),)},
    ],
    ids=str,
)
def test_a_model_that_drafts_for_itself_is_always_right(sampling: dict[str, object]) -> None:
    """It draws with the request's own random numbers, so it is right at any temperature."""
    one = request("a", range(40), 100, seed=3, **sampling)
    engine, _ = drafted(ToyModel(64))
    engine.submit(one)
    assert run(engine)["a"] == solo(one)
    counters = engine.counters
    assert counters.accepted_tokens == counters.draft_tokens > 80
    assert counters.steps < 12


def test_the_draft_model_reads_each_token_once() -> None:
    draft = ToyModel(64)
    engine, _ = drafted(draft)
    engine.submit(request("a", range(40), 100))
    run(engine)
    assert 130 <= sum(draft.calls) <= 139


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_wrong_guesses_change_nothing_and_are_forgotten(temperature: float) -> None:
    one = request("a", range(40), 100, temperature=temperature, seed=1)
    engine, _ = drafted(OffModel(64))
    engine.submit(one)
    assert run(engine)["a"] == solo(one)
    counters = engine.counters
    # Four of five positions are right: were the KV of a refused guess kept, nothing behind it would be.
    assert counters.draft_tokens > counters.accepted_tokens >= 70


def test_a_cached_prefix_is_cached_for_the_draft_model_too() -> None:
    draft = ToyModel(64)
    engine, _ = drafted(draft)
    engine.submit(request("first", range(60), 40))
    answer = run(engine)["first"]
    read = sum(draft.calls)
    engine.submit(request("second", [*range(60), *answer, 5], 10))
    second = run(engine)["second"]
    assert second == solo(request("second", [*range(60), *answer, 5], 10))
    assert engine.counters.prefix_hit_tokens == 96
    assert sum(draft.calls) - read < 5 + 10
    assert engine.counters.accepted_tokens == engine.counters.draft_tokens


def test_a_long_prompt_is_read_over_several_steps() -> None:
    draft = ToyModel(64)
    engine, _ = drafted(draft, max_batch_tokens=512)
    engine.submit(request("a", range(300), 60))
    assert run(engine)["a"] == solo(request("a", range(300), 60))
    assert max(draft.calls) == 64
    assert engine.counters.accepted_tokens == engine.counters.draft_tokens > 30


def test_the_draft_model_survives_preemption_and_company() -> None:
    rng = random.Random(5)
    preemptions = 0
    for _ in range(6):
        crowd: list[EngineRequest] = []
        shared = [rng.randrange(VOCABULARY) for _ in range(40)]
        for i in range(8):
            tail = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 30))]
            prompt = [*shared[: rng.choice((0, 32, 40))], *tail]
            crowd.append(
                request(f"r{i}", prompt, rng.randrange(5, 150), temperature=rng.choice((0.0, 1.0)), seed=i)
            )
        engine, _ = drafted(ToyModel(9), blocks=9, max_batch_tokens=rng.choice((16, 64)))
        for one in crowd:
            engine.submit(one)
        begun = [(t.request_id, t.token) for t in engine.step().emitted]
        if rng.random() < 0.5 and engine.cancel("r3"):
            crowd.pop(3)
        answers = run(engine)
        for one in crowd:
            first = [token for name, token in begun if name == one.request_id]
            assert first + answers.get(one.request_id, []) == solo(one)
        # The draft model is the model itself: a wrong guess would be KV that it took for another's.
        assert engine.counters.accepted_tokens == engine.counters.draft_tokens > 0
        preemptions += engine.counters.preemptions
    assert preemptions > 0


def test_a_draft_model_with_a_shorter_context_guesses_as_far_as_it_reaches() -> None:
    draft = ToyModel(64)
    engine, _ = drafted(draft, draft_context=80)
    engine.submit(request("a", range(40), 100))
    assert run(engine)["a"] == solo(request("a", range(40), 100))
    assert 20 < engine.counters.accepted_tokens < 40


def test_a_draft_model_that_does_not_pay_is_never_run() -> None:
    engine, drafter = drafted(ToyModel(64), token_cost=1.0)  # as dear as the step that a guess saves
    engine.submit(request("a", range(40), 60))
    run(engine)
    assert drafter.passes == 0
    assert engine.counters.steps == 60


def test_guessing_stops_where_it_is_wrong_and_comes_back() -> None:
    draft = OffModel(64)
    costs = StepCosts((1, 2, 4), (1.0, 1.2, 1.6))
    engine, drafter = drafted(draft, token_cost=0.2, costs=costs)
    draft.lost = True
    engine.submit(request("a", range(40), 600))
    for _ in range(40):
        engine.step()
    passes = drafter.passes
    for _ in range(4 * FIRST_PROBE):
        engine.step()
    assert 1 <= drafter.passes - passes <= 4  # a probe now and then
    draft.lost = False
    before = engine.counters.accepted_tokens
    answer = run(engine)
    assert engine.counters.accepted_tokens - before > 50
    assert answer["a"] == solo(request("a", range(40), 600))[-len(answer["a"]) :]


def test_cancelled_in_the_middle_of_guessing() -> None:
    engine, _ = drafted(ToyModel(64))
    both = [request("a", range(40), 60), request("b", range(5, 45), 60)]
    for one in both:
        engine.submit(one)
    begun = [token.token for token in engine.step().emitted if token.request_id == "b"]
    engine.cancel("a")
    engine.check_integrity()
    assert begun + run(engine)["b"] == solo(both[1])
    assert engine.blocks_used == 0

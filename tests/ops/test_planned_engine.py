"""The planner's engine: times worked out by hand, and the real engine's own, request by request."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from tiltyard.engine.engine import Engine, EngineConfig
from tiltyard.engine.request import EngineRequest, RequestClass, SamplingSettings
from tiltyard.engine.scheduler import Scheduler
from tiltyard.kernels import choose_rows
from tiltyard.ops.plan.engine import EngineLimits, PlannedEngine
from tiltyard.ops.plan.fleet import simulate
from tiltyard.ops.plan.prediction import Prediction, Tally
from tiltyard.ops.plan.setup import Arrival, Fleet, Guessing
from tiltyard.ops.plan.steps import StepCosts
from tiltyard.ops.plan.text import Text
from tiltyard.router.router import Router

# A step takes a second, and each token of a prompt a tenth, of an answer half a second.
BY_HAND = StepCosts(1.0, 0.1, 0.5, 0.0)
LIKE_A_CPU = StepCosts(4e-3, 1e-3, 1e-3, 3.5e-7)
SEVERAL: tuple[RequestClass, ...] = ("interactive", "batch", "agent")


def arrival(at_s: float, prompt: int, answer: int, own: int = 0) -> Arrival:
    return Arrival(at_s, Text(own), prompt, answer)


def run(
    arrivals: Sequence[Arrival], fleet: Fleet, *, sharing: bool = True
) -> tuple[dict[int, tuple[float, float]], Prediction]:
    """When each request had its first token and its last, by the id of its text; and all together."""
    found: dict[int, tuple[float, float]] = {}
    ids = {a.at_s: a.text.own for a in arrivals}

    class Noting(Tally):
        def answered(self, arrived_s: float, first_s: float, end_s: float, prompt: int, answer: int) -> None:
            found[ids[arrived_s]] = first_s, end_s
            super().answered(arrived_s, first_s, end_s, prompt, answer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiltyard.ops.plan.fleet.Tally", Noting)
        predicted = simulate(arrivals, fleet, sharing=sharing)
    return found, predicted


def times(arrivals: Sequence[Arrival], fleet: Fleet) -> dict[int, tuple[float, float]]:
    return run(arrivals, fleet)[0]


def test_two_requests_in_a_queue_take_the_times_worked_out_by_hand() -> None:
    fleet = Fleet(EngineLimits(kv_blocks=100, max_sequences=1), BY_HAND)
    # The first: one step of 10 tokens (1 + 1.0 s), two more tokens of 1.5 s. The second waits for its place until 5.0.
    found = times([arrival(0.0, 10, 3, 1), arrival(1.0, 20, 2, 2)], fleet)
    assert found == {1: (2.0, 5.0), 2: (8.0, 9.5)}
    predicted = simulate([arrival(0.0, 10, 3, 1), arrival(1.0, 20, 2, 2)], fleet)
    assert (predicted.time_to_first_s.p50, predicted.time_to_first_s.most) == (2.0, 7.0)
    assert (predicted.answer_tokens, predicted.window_s, predicted.answer_tokens_per_s) == (5, 9.5, 5 / 9.5)
    assert predicted.utilisation == 1.0


def test_two_requests_at_once_share_the_steps_as_worked_out_by_hand() -> None:
    fleet = Fleet(EngineLimits(kv_blocks=100), BY_HAND)
    # The second comes in the middle of a token of the first (2.0 to 3.5) and runs from 3.5 on: 1 + 0.5 + 2.0 s, both get a
    # token at 7.0; then one more of each, 1 + 2 * 0.5, which is the first one's fourth and last; the second's third takes 1.5.
    found = times([arrival(0.0, 10, 4, 1), arrival(2.5, 20, 3, 2)], fleet)
    assert found == {1: (2.0, 9.0), 2: (7.0, 10.5)}


def test_the_queue_is_left_at_its_deadline_and_a_full_one_refuses() -> None:
    fleet = Fleet(EngineLimits(kv_blocks=100, max_sequences=1), BY_HAND, max_queue=1, queue_deadline_s=3.0)
    asked = [arrival(0.0, 10, 9, 1), arrival(0.5, 10, 2, 2), arrival(0.6, 10, 2, 3), arrival(0.7, 5000, 2, 4)]
    predicted = simulate(asked, fleet)
    assert predicted.errors == {"queue deadline": 1, "refused": 1, "too long": 1}
    assert (predicted.requests, predicted.answered) == (4, 1)


def test_what_passes_outside_the_engine_is_added_before_it() -> None:
    fleet = Fleet(EngineLimits(kv_blocks=100), BY_HAND, outside_s=(0.25,))
    assert times([arrival(0.0, 10, 1, 1)], fleet) == {1: (2.25, 2.25)}


def test_tokens_that_were_guessed_take_no_step_of_their_own() -> None:
    fleet = Fleet(EngineLimits(kv_blocks=100), BY_HAND, guessing=Guessing(saved=0.5, rows=2.0))
    # Ten tokens in five steps: the prompt's, then four of two rows each.
    assert times([arrival(0.0, 10, 10, 1)], fleet) == {1: (2.0, 2.0 + 4 * 2.0)}
    assert simulate([arrival(0.0, 10, 10, 1)], fleet).answer_tokens == 10


def test_scheduler_and_router_are_those_that_serve() -> None:
    engine = PlannedEngine(EngineLimits(kv_blocks=10), BY_HAND)
    assert type(engine.scheduler) is Scheduler
    chosen = []
    with pytest.MonkeyPatch.context() as patch:
        choose = Router.choose
        patch.setattr(
            Router, "choose", lambda self, *a, **k: chosen.append(route := choose(self, *a, **k)) or route
        )
        simulate(
            [arrival(0.0, 10, 50, 1), arrival(0.1, 10, 1, 2)],
            Fleet(EngineLimits(kv_blocks=10), BY_HAND, replicas=2),
        )
    assert [route.worker.name for route in chosen] == ["replica-0", "replica-1"]


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("routing", ["tiltyard", "round-robin", "random", "least-requests"])
def test_the_tokens_that_come_out_are_those_of_the_trace(replicas: int, routing: str) -> None:
    for seed in range(2):
        asked = traffic(seed, 30, gap_s=0.1)
        fleet = Fleet(
            EngineLimits(kv_blocks=80, max_sequences=8), LIKE_A_CPU, replicas=replicas, routing=routing
        )  # type: ignore[arg-type]
        predicted = simulate(asked, fleet, sharing=bool(seed % 2))
        assert (predicted.requests, predicted.answered, predicted.errors) == (30, 30, {})
        assert predicted.prompt_tokens == sum(a.prompt_tokens for a in asked)
        assert predicted.answer_tokens == sum(a.answer_tokens for a in asked)


def traffic(
    seed: int,
    count: int,
    *,
    gap_s: float,
    shared: bool = False,
    classes: tuple[RequestClass, ...] = ("interactive",),
) -> list[Arrival]:
    rng = random.Random(seed)
    at_s, found = 0.0, []
    for number in range(count):
        at_s += rng.expovariate(1 / gap_s)
        names = (-2, -4, -4) if shared and rng.random() < 0.5 else ()
        found.append(
            Arrival(
                at_s,
                Text(number + 1, names, 50),
                rng.randint(160, 600),
                rng.randint(1, 300),
                rng.choice("ab"),
                rng.choice(classes),
            )
        )
    return found


class CostOnly:
    """A model that computes nothing and knows what its last step would have cost."""

    def __init__(self) -> None:
        self.seconds = 0.0

    choose_rows = staticmethod(choose_rows)

    def forward(  # noqa: PLR0917
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        sequences: NDArray[np.int32],
        tables: NDArray[np.int32],
        output_rows: NDArray[np.int32],
        logits: NDArray[np.float32],
        adapters: NDArray[np.int32] | None = None,
    ) -> None:
        del sequences, tables, output_rows, adapters
        logits[:] = 0.0
        costs = LIKE_A_CPU
        self.seconds = (
            costs.per_step
            + costs.per_prompt_token * len(tokens)
            + costs.per_context_token * int(positions.sum())
        )

    def copy_block(self, source: int, target: int) -> None:
        pass

    def read_block(self, block: int) -> bytes:
        raise NotImplementedError

    def write_block(self, block: int, data: bytes) -> None:
        raise NotImplementedError

    def embed(self, *_: object, **__: object) -> None:
        raise NotImplementedError


class Replayed(NamedTuple):
    times: dict[int, tuple[float, float]]
    steps: int
    preemptions: int
    cached_tokens: int


def really(asked: Sequence[Arrival], limits: EngineLimits) -> Replayed:
    """The same through `Engine` itself, step by step."""
    model = CostOnly()
    engine = Engine(
        model,  # type: ignore[arg-type]
        EngineConfig(
            kv_blocks=limits.kv_blocks,
            max_batch_tokens=limits.max_batch_tokens,
            max_sequences=limits.max_sequences,
            vocab_size=1024,
            max_context=1 << 20,
        ),
    )
    first, last = dict[int, float](), dict[int, float]()
    now, coming = 0.0, list(asked)
    while coming or engine.has_work:
        if not engine.has_work:
            now = max(now, coming[0].at_s)
        while coming and coming[0].at_s <= now:
            one = coming.pop(0)
            # Names are below 0 and own ids above: here the ones stand at the end of the vocabulary, token 0 is what is said.
            prompt = tuple(
                token if token > 0 else 1024 + token for token in one.text.ids(0, one.prompt_tokens)
            )
            engine.submit(
                EngineRequest(
                    str(one.text.own), prompt, SamplingSettings(temperature=0.0), one.answer_tokens, frozenset(),
                    f"b/{one.tenant}", tenant=one.tenant, priority=one.service_class,
                )
            )  # fmt: skip
        model.seconds = 0.0
        result = engine.step(now)
        now += model.seconds
        for token in result.emitted:
            first.setdefault(int(token.request_id), now)
            last[int(token.request_id)] = now
    counters = engine.counters
    return Replayed(
        {name: (first[name], last[name]) for name in first},
        counters.steps,
        counters.preemptions,
        counters.prefix_hit_tokens,
    )


@pytest.mark.parametrize(
    ("limits", "gap_s", "shared", "classes"),
    [
        (EngineLimits(1000), 0.4, False, ("interactive",)),
        (EngineLimits(100), 0.1, False, ("interactive",)),  # memory is tight: some give way
        (EngineLimits(200), 0.3, False, ("interactive",)),
        (EngineLimits(1000, max_sequences=4), 0.3, False, ("interactive",)),  # places are tight
        (EngineLimits(60), 0.2, False, SEVERAL),
        (EngineLimits(150), 0.2, True, ("interactive",)),  # half begin alike
    ],
)
def test_steps_taken_together_end_when_the_real_engine_ends_them_one_by_one(
    limits: EngineLimits, gap_s: float, shared: bool, classes: tuple[RequestClass, ...]
) -> None:
    asked = traffic(1, 30, gap_s=gap_s, shared=shared, classes=classes)
    real = really(asked, limits)
    fleet = Fleet(limits, LIKE_A_CPU, max_queue=1000)
    for sharing in (True,) if shared else (True, False):
        found, predicted = run(asked, fleet, sharing=sharing)
        assert found.keys() == real.times.keys()
        for name, (first, last) in real.times.items():
            assert found[name] == pytest.approx((first, last), abs=1e-9), name
        assert (predicted.steps, predicted.preemptions, predicted.cached_tokens) == real[1:]

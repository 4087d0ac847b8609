"""Random arrivals, cancels, shared prefixes and small pools: every answer equals the one given alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.engine.request import EngineCounters, EngineRequest
from toy_model import VOCABULARY, prophecy, request, solo, toy_engine

LAST_ARRIVAL = 40
PREFIXES = [[(7 * i + k) % VOCABULARY for i in range(length)] for k, length in enumerate((0, 31, 32, 64, 90))]


@dataclass(frozen=True)
class Arrival:
    step: int
    request: EngineRequest
    cancel_step: int | None


@dataclass(frozen=True)
class Sizes:
    blocks: int
    batch_tokens: int
    sequences: int
    guesses: bool = False
    """Ahead, three of four of them right."""


def play(schedule: Sequence[Arrival], sizes: Sizes) -> EngineCounters:
    """Run a schedule, checking the accounts around every step and every answer at the end."""
    engine = toy_engine(
        blocks=sizes.blocks,
        max_batch_tokens=sizes.batch_tokens,
        max_sequences=sizes.sequences,
        speculation=prophecy(lambda _, position: position % 4 == 3) if sizes.guesses else None,
    )
    answers: dict[str, list[int]] = {}
    finished: set[str] = set()
    cancelled: set[str] = set()
    for now in range(5000):
        for arrival in schedule:
            if arrival.step == now:
                engine.submit(arrival.request)
            if arrival.cancel_step == now and engine.cancel(arrival.request.request_id):
                cancelled.add(arrival.request.request_id)
        engine.check_integrity()
        if now > LAST_ARRIVAL and not engine.has_work:
            break
        result = engine.step()
        engine.check_integrity()
        assert result.batch_tokens <= sizes.batch_tokens
        assert result.batch_sequences <= sizes.sequences
        assert not (result.preempted and result.admitted)
        for token in result.emitted:
            assert token.request_id not in cancelled | finished
            answers.setdefault(token.request_id, []).append(token.token)
            if token.finish:
                finished.add(token.request_id)
    assert finished | cancelled == {a.request.request_id for a in schedule}
    assert engine.blocks_used == 0
    for arrival in schedule:
        if arrival.request.request_id in finished:
            assert answers[arrival.request.request_id] == solo(arrival.request)
    return engine.counters


@st.composite
def arrivals(draw: st.DrawFn, index: int) -> Arrival:
    tail = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40))
    one = request(
        f"r{index}",
        [*draw(st.sampled_from(PREFIXES)), *tail],
        draw(st.integers(1, 60)),
        namespace=draw(st.sampled_from("aab")),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 3)),
        stop_ids=frozenset(draw(st.sets(st.integers(0, VOCABULARY - 1), max_size=2))),
        presence_penalty=draw(st.sampled_from([0.0, 0.5])),
    )
    step = draw(st.integers(0, LAST_ARRIVAL))
    patience = draw(st.none() | st.none() | st.integers(0, 30))
    return Arrival(step, one, None if patience is None else step + patience)


@st.composite
def schedules(draw: st.DrawFn) -> list[Arrival]:
    return [draw(arrivals(i)) for i in range(draw(st.integers(1, 10)))]


@settings(max_examples=60, deadline=None)
@given(
    schedules(),
    st.builds(
        Sizes,
        st.integers(6, 20),
        st.sampled_from([8, 33, 64, 256]),
        st.sampled_from([1, 3, 8]),
        st.booleans(),
    ),
)
def test_whatever_happens_around_it_an_answer_stays_the_same(schedule: list[Arrival], sizes: Sizes) -> None:
    play(schedule, sizes)


def test_crowded_schedules_take_every_path_and_change_no_answer() -> None:
    rng = random.Random(20)
    totals: Counter[str] = Counter()
    for _ in range(30):
        schedule = []
        for index in range(14):
            step = rng.randrange(LAST_ARRIVAL)
            tail = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 40))]
            one = request(
                f"r{index}",
                [*rng.choice(PREFIXES), *tail[: rng.choice((2, 40))]],
                rng.randrange(20, 60),
                temperature=rng.choice((0.0, 1.0)),
                seed=rng.randrange(2),
            )
            schedule.append(Arrival(step, one, rng.choice((None, None, None, step + rng.randrange(30)))))
        totals.update(
            asdict(
                play(schedule, Sizes(rng.randrange(6, 12), rng.choice((8, 33, 64)), 8, rng.random() < 0.5))
            )
        )
    for path in (
        "preemptions",
        "prefix_hit_tokens",
        "evicted_blocks",
        "cancelled",
        "partial_prefill_chunks",
        "mixed_steps",
        "accepted_tokens",
    ):
        assert totals[path] > 10, path
    assert totals["draft_tokens"] - totals["accepted_tokens"] > 10
    assert totals["peak_batch_sequences"] > 30 * 3

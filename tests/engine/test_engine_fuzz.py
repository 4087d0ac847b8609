"""Random arrivals, classes, tenants, deadlines, cancels, forks, spills, guesses and small pools: every answer equals
the one given alone, and the accounts are right after each step."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.engine.fairness import CLASSES, RANK
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
    spilled_blocks: int = 0
    guesses: bool = False


class Store:
    """A second tier that damages a block now and then."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.load_s = 1.0
        self.kept: dict[int, bytes] = {}
        self.calls = 0

    def save(self, slot: int, data: bytes) -> bool:
        self.calls += 1
        self.kept[slot] = data
        return self.calls % 7 != 0

    def load(self, slot: int) -> bytes | None:
        self.calls += 1
        data = self.kept[slot]
        return bytes(len(data)) if self.calls % 3 == 0 else data


def play(schedule: Sequence[Arrival], sizes: Sizes) -> EngineCounters:
    """Run a schedule, checking the accounts around every step and every answer at the end."""
    engine = toy_engine(
        blocks=sizes.blocks,
        max_batch_tokens=sizes.batch_tokens,
        max_sequences=sizes.sequences,
        spill=Store(sizes.spilled_blocks) if sizes.spilled_blocks else None,
        speculation=prophecy(lambda _, at: at % 3 == 1) if sizes.guesses else None,
    )
    answers: dict[str, list[int]] = {}
    finished: set[str] = set()
    cancelled: set[str] = set()
    expired: set[str] = set()
    by_name = {arrival.request.request_id: arrival.request for arrival in schedule}
    for now in range(5000):
        for arrival in schedule:
            if arrival.step == now:
                engine.submit(arrival.request)
            if arrival.cancel_step == now and engine.cancel(arrival.request.request_id):
                cancelled.add(arrival.request.request_id)
        engine.check_integrity()
        if now > LAST_ARRIVAL and not engine.has_work:
            break
        dry = engine.counters.preemptions - engine.counters.class_preemptions
        engine.learn_speed(32.0 + now % 2)  # now loading a block pays, now it does not
        result = engine.step(float(now))
        engine.check_integrity()
        assert result.batch_tokens <= sizes.batch_tokens
        assert result.batch_sequences <= sizes.sequences
        if engine.counters.preemptions - engine.counters.class_preemptions > dry:
            assert not result.admitted  # memory ran dry
        elif result.preempted:  # for the sake of somebody more urgent
            urgent = min(RANK[by_name[name].priority] for name in result.admitted)
            assert all(RANK[by_name[name].priority] > urgent for name in result.preempted)
        assert not set(result.admitted) & set(result.preempted)
        for name, deadline in result.expired:
            one = by_name[name]
            assert now == max(
                _step_of(one.deadline_s if deadline == "total" else one.queue_deadline_s),
                _arrived(schedule, name),
            )
            assert deadline == "total" or name not in answers
            expired.add(name)
        for token in result.emitted:
            assert token.request_id not in cancelled | finished | expired
            answers.setdefault(token.request_id, []).append(token.token)
            if token.finish:
                finished.add(token.request_id)
    assert finished | cancelled | expired == set(by_name)
    assert engine.blocks_used == 0
    served = engine.usage.values()
    assert sum(u.decode_tokens for u in served) == sum(map(len, answers.values()))
    assert sum(u.prefill_tokens + u.recomputed_tokens for u in served) == engine.counters.prompt_tokens
    for arrival in schedule:
        if arrival.request.request_id in finished:
            assert answers[arrival.request.request_id] == solo(arrival.request)
    return engine.counters


def _step_of(deadline_s: float | None) -> int:
    assert deadline_s is not None
    return math.ceil(deadline_s)


def _arrived(schedule: Sequence[Arrival], name: str) -> int:
    return next(a.step for a in schedule if a.request.request_id == name)


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
        tenant=draw(st.sampled_from("xyz")),
        priority=draw(st.sampled_from(CLASSES)),
        queue_deadline_s=draw(st.none() | st.floats(0, 80)),
        deadline_s=draw(st.none() | st.none() | st.floats(0, 120)),
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
        st.sampled_from([0, 0, 1, 5, 40]),
        st.sampled_from([False, False, True]),
    ),
)
def test_whatever_happens_around_it_an_answer_stays_the_same(schedule: list[Arrival], sizes: Sizes) -> None:
    play(schedule, sizes)


def test_crowded_schedules_take_every_path_and_change_no_answer() -> None:
    """SGLang #6888, #11970, #20010: blocks that nobody accounts for; here they are counted after each step."""
    rng = random.Random(20)
    totals: Counter[str] = Counter()
    for _ in range(24):
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
                tenant=rng.choice("xyz"),
                priority=rng.choice(CLASSES),
                queue_deadline_s=rng.choice((None, None, step + 40.0)),
                deadline_s=rng.choice((None, None, None, step + 60.0)),
            )
            schedule.append(Arrival(step, one, rng.choice((None, None, None, step + rng.randrange(30)))))
        totals.update(
            asdict(
                play(
                    schedule,
                    Sizes(
                        rng.randrange(6, 12),
                        rng.choice((8, 33, 64)),
                        8,
                        rng.choice((0, 12, 12)),
                        rng.random() < 0.15,
                    ),
                )
            )
        )
    for path in (
        "preemptions",
        "class_preemptions",
        "passed",
        "expired",
        "expired_in_queue",
        "copied_blocks",
        "spilled_blocks",
        "restored_blocks",
        "spill_skipped_blocks",
        "spill_damaged",
        "spill_failures",
        "draft_tokens",
        "accepted_tokens",
        "prefix_hit_tokens",
        "evicted_blocks",
        "cancelled",
        "partial_prefill_chunks",
        "mixed_steps",
        "accepted_tokens",
    ):
        assert totals[path] > 3, path
    assert totals["draft_tokens"] - totals["accepted_tokens"] > 10
    assert totals["peak_batch_sequences"] > 24 * 3

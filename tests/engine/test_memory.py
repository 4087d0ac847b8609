"""Blocks that are shared, copied on write, spilled and brought back: the same answers, less work."""

from __future__ import annotations

import pytest

from tiltyard.engine.engine import Engine
from tiltyard.engine.request import EngineRequest, StepResult
from toy_model import request, run, solo, toy_engine


class MemoryStore:
    """A spill store in a dictionary; damages and fails on demand."""

    def __init__(self, capacity: int, load_s: float = 0.0) -> None:
        self.capacity = capacity
        self.load_s = load_s
        self.kept: dict[int, bytes] = {}
        self.failing = False

    def save(self, slot: int, data: bytes) -> bool:
        assert 0 <= slot < self.capacity
        if not self.failing:
            self.kept[slot] = data
        return not self.failing

    def load(self, slot: int) -> bytes | None:
        return self.kept.get(slot)


def step(engine: Engine) -> StepResult:
    result = engine.step()
    engine.check_integrity()
    return result


def finish(engine: Engine, *requests: EngineRequest) -> None:
    """Run them and compare with their answers alone."""
    for one in requests:
        engine.submit(one)
    answers = run(engine)
    assert answers == {one.request_id: solo(one) for one in requests}


def test_choices_share_the_partial_last_block_by_copying_it_before_they_write() -> None:
    engine = toy_engine(blocks=64, max_batch_tokens=512)
    choices = [request(f"c{i}", range(50), 40, temperature=1.0, seed=i) for i in range(5)]
    finish(engine, *choices)
    assert engine.counters.prompt_tokens == 50 + 4  # once for the group, and each one's last token
    assert (engine.counters.copied_blocks, engine.counters.copied_tokens) == (4, 4 * 17)


def test_choices_of_a_prompt_shorter_than_a_block_share_it_too() -> None:
    engine = toy_engine()
    finish(engine, *(request(f"c{i}", range(20), 6, temperature=1.0, seed=i) for i in range(3)))
    assert engine.counters.prompt_tokens == 20 + 2
    assert engine.counters.prefix_hit_tokens == 2 * 19


def test_a_fork_in_mid_answer_continues_from_the_blocks_of_its_parent() -> None:
    engine = toy_engine()
    parent = request("parent", range(45), 60)
    engine.submit(parent)
    said: list[int] = []
    for _ in range(10):
        said += [token.token for token in step(engine).emitted]
    fork = request("fork", [*range(45), *said], 30, temperature=1.0, seed=5)
    before = engine.counters.prompt_tokens
    engine.submit(fork)
    assert dict(step(engine).batch) == {"parent": 1, "fork": 1}
    assert engine.counters.prompt_tokens == before + 1
    assert engine.counters.copied_tokens == 45 + 10 - 1 - 32
    answers = run(engine)
    assert answers["fork"] == solo(fork)[1:]
    assert solo(parent)[11:] == answers["parent"]


def test_prompts_that_part_within_a_block_share_it_up_to_there() -> None:
    engine = toy_engine()
    finish(engine, request("a", range(64), 2))
    finish(engine, request("b", [*range(50), 1, 2, 3, *range(40)], 2))
    assert (engine.counters.copied_blocks, engine.counters.copied_tokens) == (1, 50 - 32)


def test_another_tenants_partial_block_is_not_touched() -> None:
    """vLLM RFC #16016, CVE-2025-46570: a prefix must be neither read nor timed across tenants."""
    engine = toy_engine()
    for name in ("a", "b"):
        engine.submit(request(name, range(50), 20, namespace=f"behaviour/{name}", tenant=name))
    assert dict(step(engine).batch) == {"a": 50, "b": 14}
    run(engine)
    engine.submit(request("c", range(50), 20, namespace="behaviour/c", tenant="c"))
    assert step(engine).batch == (("c", 50),)
    assert engine.counters.prefix_hit_tokens == 0


def test_a_copy_is_not_made_of_the_block_that_must_make_room_for_it() -> None:
    engine = toy_engine(blocks=2)
    finish(engine, request("a", range(64), 1))
    finish(engine, request("b", [*range(50), *range(7, 21)], 1))
    assert engine.counters.copied_blocks == 0
    assert engine.counters.evicted_blocks == 1


def spilling(store: MemoryStore, blocks: int = 6) -> Engine:
    return toy_engine(blocks=blocks, max_batch_tokens=256, spill=store)


def two_sessions(engine: Engine) -> None:
    """The first one's three full blocks are pushed out by the second one."""
    finish(engine, request("first", range(97), 2))
    finish(engine, request("second", range(5, 175), 2))


def test_a_cold_session_is_spilled_and_comes_back_bit_identical() -> None:
    store = MemoryStore(8)
    engine = spilling(store)
    two_sessions(engine)
    assert (engine.counters.spilled_blocks, engine.blocks_spilled) == (3, 3)
    before = engine.counters.prompt_tokens
    finish(engine, request("again", [*range(97), 3, 4], 5))
    assert engine.counters.restored_blocks == 3
    assert engine.counters.prompt_tokens == before + 3  # what follows the three blocks


def test_without_a_second_tier_nothing_is_spilled() -> None:
    engine = toy_engine(blocks=6, max_batch_tokens=256)
    two_sessions(engine)
    assert engine.counters.evicted_blocks == 3
    assert (engine.counters.spilled_blocks, engine.blocks_spilled) == (0, 0)


def test_a_damaged_block_is_computed_again_and_counted() -> None:
    store = MemoryStore(8)
    engine = spilling(store)
    two_sessions(engine)
    for slot, data in store.kept.items():
        store.kept[slot] = data[:-1] + bytes([data[-1] ^ 1])
    finish(engine, request("again", [*range(97), 3, 4], 5))
    assert (engine.counters.restored_blocks, engine.counters.spill_damaged) == (0, 1)
    # The damaged one was the first of the path: what hung below it is gone too.
    assert engine.blocks_spilled == engine.counters.spilled_blocks - 3


def test_a_block_that_the_store_lost_is_computed_again() -> None:
    store = MemoryStore(8)
    engine = spilling(store)
    two_sessions(engine)
    del store.kept[min(store.kept)]
    finish(engine, request("again", [*range(97), 3, 4], 5))
    assert engine.counters.spill_damaged == 1


def test_a_store_that_fails_costs_only_the_cache() -> None:
    store = MemoryStore(8)
    store.failing = True
    engine = spilling(store)
    two_sessions(engine)
    finish(engine, request("again", [*range(97), 3, 4], 5))
    assert engine.counters.spill_failures > 0
    assert engine.blocks_spilled == 0


def test_the_byte_budget_holds_and_the_coldest_block_goes_first() -> None:
    store = MemoryStore(2)
    engine = spilling(store)
    two_sessions(engine)
    assert engine.blocks_spilled == 2
    assert set(store.kept) == {0, 1}
    before = engine.counters.prompt_tokens
    finish(engine, request("again", [*range(97), 3, 4], 5))
    # The deepest of the three went first out of memory, and first out of the store.
    assert engine.counters.restored_blocks == 2
    assert engine.counters.prompt_tokens == before + 99 - 64


@pytest.mark.parametrize(("tokens_per_s", "restored"), [(0.0, 3), (100.0, 3), (2_000.0, 0)])
def test_restoring_or_computing_is_chosen_by_what_was_measured(tokens_per_s: float, restored: int) -> None:
    # A block of 32 tokens takes 0.02 s to load: worth it while computing it takes longer than that.
    engine = spilling(MemoryStore(8, load_s=0.02))
    engine.learn_speed(tokens_per_s)
    two_sessions(engine)
    finish(engine, request("again", [*range(97), 3, 4], 5))
    assert engine.counters.restored_blocks == restored
    assert engine.counters.spill_skipped_blocks == (0 if restored else 1)


def test_a_computed_block_takes_the_place_of_its_spilled_copy() -> None:
    engine = spilling(MemoryStore(8, load_s=1e9))
    engine.learn_speed(1.0)
    two_sessions(engine)
    assert engine.blocks_spilled == 3
    spilled = engine.counters.spilled_blocks
    finish(engine, request("again", [*range(97), 3, 4], 5))
    assert engine.blocks_spilled == engine.counters.spilled_blocks - spilled  # only what made room for it


def test_another_tenant_gets_nothing_out_of_the_second_tier() -> None:
    engine = spilling(MemoryStore(8))
    two_sessions(engine)
    engine.submit(request("spy", [*range(97), 3, 4], 5, namespace="spy"))
    step(engine)
    assert (engine.counters.restored_blocks, engine.counters.prefix_hit_tokens) == (0, 0)

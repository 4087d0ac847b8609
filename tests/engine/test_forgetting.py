"""A tenant's blocks go on demand: in memory, in the second tier, and what lies there of blocks that are over."""

from __future__ import annotations

from dataclasses import replace

from test_memory import MemoryStore, finish, spilling, step

from tiltyard.engine.engine import Engine
from toy_model import request, run, toy_engine


class WipedStore(MemoryStore):
    def wipe(self, slot: int) -> None:
        self.kept[slot] = b""


def of_tenant(tenant: str, name: str, prompt: range, tokens: int = 2) -> object:
    return replace(request(name, prompt, tokens), namespace=f"behaviour/{tenant}", tenant=tenant)


def cached(engine: Engine, tenant: str) -> int:
    return sum(node.namespace == f"behaviour/{tenant}" for node in engine._paging.tree._all())


def test_a_tenants_blocks_are_forgotten_and_no_others() -> None:
    engine = toy_engine()
    finish(engine, of_tenant("acme", "a", range(70)), of_tenant("acmes", "b", range(70)))
    assert (cached(engine, "acme"), cached(engine, "acmes")) == (2, 2)
    assert engine.forget("acme") == (2, 0)
    assert (cached(engine, "acme"), cached(engine, "acmes")) == (0, 2)
    engine.check_integrity()
    finish(engine, of_tenant("acme", "again", range(70)))  # and is computed anew, to the same tokens


def test_blocks_in_use_are_left_and_go_when_the_answer_has_ended() -> None:
    engine = toy_engine()
    engine.submit(of_tenant("acme", "a", range(70), 8))
    step(engine), step(engine)
    taken, left = engine.forget("acme")
    assert (taken, left > 0) == (0, True)
    engine.check_integrity()
    late = of_tenant(
        "acme", "late", range(70), 200
    )  # a new one finds nothing of it, and keeps nothing of it alive
    before = engine.counters.prefix_hit_tokens
    engine.submit(late)
    while "a" in {name for name, _ in step(engine).batch}:
        engine.check_integrity()
    assert engine.counters.prefix_hit_tokens == before
    assert engine.sweep_forgotten() == (left, 0)
    assert cached(engine, "acme") == 2  # the new one's own
    run(engine)
    engine.check_integrity()


def test_spilled_blocks_are_overwritten_those_that_were_over_too() -> None:
    store = WipedStore(capacity=4)
    engine = spilling(store)
    for number in range(6):  # more than the memory and the store hold
        finish(engine, of_tenant("acme", f"a{number}", range(number * 5, number * 5 + 70)))
    assert engine.blocks_spilled > 0
    finish(engine, of_tenant("other", "b", range(90, 160)))
    engine.forget("acme")
    engine.check_integrity()
    kept = {slot for slot, data in store.kept.items() if data}
    spill = engine._paging.tree._spill
    assert spill is not None
    assert kept == set(spill.slots)  # nothing but blocks of others
    assert cached(engine, "acme") == 0

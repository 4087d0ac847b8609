"""Requests that go on from one prefix: what they share is computed once, and groups come in together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiltyard.engine.engine import Engine
from tiltyard.engine.request import EngineRequest
from toy_model import VOCABULARY, request, run, solo, toy_engine


def branch(
    name: str, shared: int, own: int, salt: int, *, group: str = "", max_tokens: int = 4
) -> EngineRequest:
    """A prompt of `shared` tokens that all branches have, and `own` ones of which the first is its own."""
    prompt = [(i * 7) % VOCABULARY for i in range(shared)] + [
        (salt * 5 + i + 1) % VOCABULARY for i in range(own)
    ]
    return replace(request(name, prompt, max_tokens), group=group)


@pytest.mark.parametrize("shared", [16, 31, 32, 50, 63, 100, 500])
@pytest.mark.parametrize(("budget", "max_tokens"), [(40, 4), (512, 4), (512, 1)])
def test_eight_branches_that_arrive_in_one_step_compute_their_prefix_once(
    shared: int, budget: int, max_tokens: int
) -> None:
    """llama.cpp computes a prefix once a slot; vLLM shares at once. Here who comes second waits, or copies.

    Also where the first one's answer has ended by then: it lingers for the step in which it is copied from.
    """
    engine = toy_engine(blocks=256, max_batch_tokens=budget)
    branches = [branch(f"b{i}", shared, 10, i, max_tokens=max_tokens) for i in range(8)]
    for one in branches:
        engine.submit(one)
    answers = run(engine)
    assert engine.blocks_used == 0
    assert engine.counters.prompt_tokens == shared + 8 * 10
    assert engine.counters.prefix_hit_tokens == 7 * shared
    assert answers == {one.request_id: solo(one) for one in branches}


def test_whoever_lingers_is_let_go_when_nobody_comes_for_it() -> None:
    engine = toy_engine(blocks=256, max_batch_tokens=512)
    engine.submit(branch("first", 50, 10, 0, max_tokens=1))
    engine.submit(branch("second", 50, 10, 1, max_tokens=1))
    assert [token.finish for token in engine.step().emitted] == ["length"]
    engine.check_integrity()
    assert (engine.running, engine.waiting) == (0, 1)
    assert engine.cancel("second")
    engine.check_integrity()
    assert (engine.blocks_used, engine.has_work) == (0, False)


def test_for_fewer_tokens_than_are_worth_it_nobody_waits() -> None:
    engine = toy_engine(blocks=256, max_batch_tokens=512)
    for i in range(8):
        engine.submit(branch(f"b{i}", 15, 10, i))
    assert len(engine.step().batch) == 8


def interleaved(grouped: bool) -> Engine:
    """Four documents of 96 tokens with four questions each, asked in turns; memory holds two documents."""
    engine = toy_engine(blocks=8, max_batch_tokens=256, max_sequences=1)
    for question in range(4):
        for document in range(4):
            name = f"{document}.{question}"
            prompt = [(i * 7 + document) % VOCABULARY for i in range(96)] + [
                (question * 5 + i) % VOCABULARY for i in range(10)
            ]
            engine.submit(replace(request(name, prompt, 3), group=f"document {document}" if grouped else ""))
    run(engine)
    return engine


def test_a_group_comes_in_together_while_its_prefix_is_in_memory() -> None:
    hinted, plain = interleaved(grouped=True).counters, interleaved(grouped=False).counters
    assert hinted.prompt_tokens == 4 * 96 + 16 * 10
    assert plain.prompt_tokens == 16 * (96 + 10)  # each document was gone when its turn came again


def test_a_group_that_never_ends_holds_up_nobody_else_of_its_tenant() -> None:
    """SGLang #31954: with the longest prefix first, 5% of the requests had 75% of all waiting."""
    engine = toy_engine(blocks=64, max_batch_tokens=64, max_sequences=1)
    engine.submit(branch("g0", 40, 10, 0, group="g"))
    engine.step()
    engine.submit(request("lone", range(3, 63), 2))
    began: list[str] = []
    for i in range(1, 40):
        while engine.waiting < 3:
            engine.submit(branch(f"g{i}.{engine.waiting}", 40, 10, i, group="g"))
        began += engine.step().admitted
    # It is passed until as much was run before it as it would have run itself: 60 tokens, by 18 a turn that no cache
    # has (32 of the common 40 are a block).
    assert began.index("lone") == 4

"""Classes, tenants, ageing and deadlines: who is served when the machine is too small for all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tiltyard.engine import fairness
from tiltyard.engine.engine import Engine
from tiltyard.engine.fairness import CLASSES, FairnessConfig, VirtualCounters
from tiltyard.engine.request import Expired, RequestClass, StepResult
from tiltyard.errors import ConfigurationError
from toy_model import request, run, solo, toy_engine

WEIGHTS = FairnessConfig({"interactive": 8.0, "agent": 4.0, "batch": 1.0})


def step(engine: Engine, now_s: float = 0.0) -> StepResult:
    result = engine.step(now_s)
    engine.check_integrity()
    return result


def test_a_long_batch_prompt_takes_its_weighted_share_of_a_step_and_no_more() -> None:
    engine = toy_engine(blocks=256, max_batch_tokens=130, max_context=4096, fairness=WEIGHTS)
    for name, priority in (("talk", "interactive"), ("mail", "agent"), ("book", "batch")):
        engine.submit(request(name, range(2000), 2, priority=priority, namespace=name))  # type: ignore[arg-type]
    tokens: Counter[str] = Counter()
    for _ in range(20):
        tokens.update(dict(step(engine).batch))
    # Weights 8, 4 and 1.
    assert tokens["talk"] == pytest.approx(20 * 80, abs=20)
    assert tokens["mail"] == pytest.approx(20 * 40, abs=20)
    assert tokens["book"] == pytest.approx(20 * 10, abs=20)


def test_a_batch_prompt_hardly_slows_the_steps_of_a_conversation() -> None:
    """vLLM #54919: decodes that share their steps with a long prompt."""
    engine = toy_engine(blocks=128, max_batch_tokens=96, max_context=4096)
    engine.submit(request("talk", range(5), 30))
    step(engine)
    engine.submit(request("book", range(900), 2, priority="batch"))
    for _ in range(20):
        assert dict(step(engine).batch) == {"talk": 1, "book": 95 // 64}


def test_a_batch_prompt_alone_has_the_whole_step() -> None:
    engine = toy_engine(blocks=128, max_batch_tokens=90, max_context=4096)
    engine.submit(request("book", range(900), 2, priority="batch"))
    assert dict(step(engine).batch) == {"book": 90}


def test_a_small_share_of_a_tiny_budget_still_comes() -> None:
    engine = toy_engine(blocks=64, max_batch_tokens=2, max_sequences=2, fairness=WEIGHTS)
    engine.submit(request("book", range(20), 2, priority="batch"))
    step(engine)
    engine.submit(request("talk", range(3), 200))
    steps = 0
    while "book" not in {t.request_id for t in step(engine).emitted}:
        steps += 1
    # 18 tokens are left, and one for each eight of the answer is batch's.
    assert steps == pytest.approx(18 * 8, abs=10)


def test_an_interactive_request_takes_the_place_of_the_latest_least_urgent_one() -> None:
    engine = toy_engine(blocks=64, max_sequences=3)
    for name, priority in (("b1", "batch"), ("b2", "batch"), ("a", "agent")):
        engine.submit(request(name, range(40), 60, priority=priority, namespace=name))  # type: ignore[arg-type]
        step(engine)
    assert engine.running == 3
    engine.submit(request("now", range(5), 5))
    result = step(engine)
    assert (result.preempted, result.admitted) == (("b2",), ("now",))
    assert engine.counters.class_preemptions == 1
    answers = run(engine)
    assert len(answers["now"]) == 4
    assert len(answers["b2"]) > 10  # it came back


def test_nobody_waits_for_a_prefix_that_a_less_urgent_request_is_computing() -> None:
    engine = toy_engine(blocks=64, max_batch_tokens=64)
    engine.submit(request("book", range(500), 2, priority="batch"))
    step(engine)
    engine.submit(request("talk", range(120), 2))
    assert step(engine).admitted == ("talk",)


def test_a_class_never_takes_the_place_of_its_equal_or_better() -> None:
    engine = toy_engine(blocks=64, max_sequences=1)
    engine.submit(request("a", range(5), 20))
    step(engine)
    for priority in CLASSES:
        engine.submit(request(priority, range(7), 2, priority=priority))
        for _ in range(3):
            assert step(engine).preempted == ()
    assert engine.running == 1


def test_where_memory_runs_dry_the_least_urgent_gives_way_even_if_it_came_first() -> None:
    engine = toy_engine(blocks=6, max_batch_tokens=64)
    batch = request("batch", range(30), 100, priority="batch")
    talk = request("talk", range(9, 39), 100)
    engine.submit(batch)
    answers = {"batch": [token.token for token in step(engine).emitted]}
    engine.submit(talk)
    preempted: set[str] = set()
    while engine.has_work:
        result = step(engine)
        preempted |= set(result.preempted)
        for token in result.emitted:
            answers.setdefault(token.request_id, []).append(token.token)
    assert preempted == {"batch"}
    assert answers == {"batch": solo(batch), "talk": solo(talk)}


def test_batch_is_not_starved_by_an_endless_stream_of_urgent_requests() -> None:
    engine = toy_engine(blocks=64, max_batch_tokens=16, max_sequences=2)
    engine.submit(request("batch", range(40), 4, priority="batch"))
    done = False
    for now in range(2000):
        if engine.waiting < 3:
            engine.submit(request(f"i{now}", range(now, now + 12), 3))
        done |= any(t.request_id == "batch" and t.finish for t in step(engine).emitted)
        if done:
            break
    assert done


def test_a_short_prompt_overtakes_a_long_one_of_its_tenant() -> None:
    """vLLM #10774, #21495; llama.cpp #29175: a long prefill holds up everybody behind it."""
    engine = toy_engine(blocks=128, max_batch_tokens=32, max_context=4096)
    engine.submit(request("long", range(3000), 2))
    step(engine)
    engine.submit(request("short", range(7, 47), 2))
    steps = 0
    while "short" not in {t.request_id for t in step(engine).emitted}:
        steps += 1
    assert steps == 1  # 40 tokens at three quarters of 32 a step
    assert engine.counters.partial_prefill_chunks > 1


def test_short_prompts_cannot_starve_a_long_one() -> None:
    """SGLang #31954: longest prefix first left 5% of the requests with 75% of all waiting."""
    engine = toy_engine(blocks=128, max_batch_tokens=32, max_context=4096)
    engine.submit(request("long", range(640), 1))
    finished_at = None
    for now in range(500):
        engine.submit(request(f"s{now}", range(now, now + 40), 1))  # more than the machine can do
        if any(t.request_id == "long" for t in step(engine).emitted):
            finished_at = now
            break
    assert finished_at is not None
    assert finished_at <= 1.25 * 640 / (32 / 4)  # it has a quarter of each step


def test_a_waiting_long_prompt_is_passed_by_no_more_work_than_its_own() -> None:
    engine = toy_engine(blocks=8, max_batch_tokens=256, max_sequences=8)
    engine.submit(request("running", range(100), 100))
    step(engine)
    engine.submit(request("long", range(11, 139), 2))  # 4 blocks: not while the first runs
    passed = 0
    for now in range(300):
        if engine.waiting < 3:
            engine.submit(request(f"s{now}", range(now, now + 16), 2))
        for name in step(engine).admitted:
            if name == "long":
                assert 128 <= passed <= 128 + 16
                return
            passed += 16
    pytest.fail("the long prompt never came in")


def test_between_tenants_the_one_that_was_served_less_goes_first() -> None:
    engine = toy_engine(blocks=64, max_sequences=1)
    for i in range(4):
        engine.submit(request(f"greedy{i}", range(30), 4, tenant="greedy"))
    engine.submit(request("modest", range(30), 4, tenant="modest"))
    order: list[str] = []
    while engine.has_work:
        order += step(engine).admitted
    assert order == ["greedy0", "modest", "greedy1", "greedy2", "greedy3"]


def test_a_tenant_that_asks_ten_times_as_much_gets_its_share_and_no_more() -> None:
    """vLLM #7123 and PR #31909 asked for fairness between tenants and were refused."""
    engine = toy_engine(blocks=64, max_batch_tokens=32, max_sequences=4)
    waiting: Counter[str] = Counter()
    served: Counter[str] = Counter()
    for now in range(600):
        for tenant, rate in (("loud", 10), ("soft", 1)):
            while waiting[tenant] < 2 * rate:  # both always have work
                engine.submit(
                    request(f"{tenant}/{now}/{waiting[tenant]}", range(now, now + 20), 6, tenant=tenant)
                )
                waiting[tenant] += 1
        result = step(engine)
        for name in result.admitted:
            waiting[name.partition("/")[0]] -= 1
        for token in result.emitted:
            served[token.request_id.partition("/")[0]] += 1
    assert served["loud"] / served.total() == pytest.approx(0.5, abs=0.02)


def test_an_idle_hour_saves_up_no_credit() -> None:
    engine = toy_engine(blocks=64, max_sequences=1)
    for i in range(6):
        engine.submit(request(f"busy{i}", range(30), 4, tenant="busy"))
    for _ in range(9):
        step(engine)
    for i in range(3):
        engine.submit(request(f"late{i}", range(30), 4, tenant="late"))
    order: list[str] = []
    while engine.has_work:
        order += [name[:4] for name in step(engine).admitted]
    # Without the lift all three would go first: the other had been served for nine steps.
    assert order[:4] in (["late", "busy", "late", "busy"], ["busy", "late", "busy", "late"])


def test_counters_are_lifted_to_the_smallest_of_those_that_wait() -> None:
    """Algorithm 2 of Sheng et al. 2024, lines 7 to 14."""
    counters = VirtualCounters()
    counters.charge("a", 50.0)
    counters.charge("b", 30.0)
    counters.arrive("c", waiting=["a", "b"])
    assert counters["c"] == 30.0
    counters.arrive("b", waiting=["a"])
    assert counters["b"] == 50.0
    counters.left("a")
    counters.charge("a", 5.0)
    counters.arrive("d", waiting=[])
    assert counters["d"] == 50.0  # what the last one to leave the queue had then
    counters.arrive("a", waiting=["d"])
    assert counters["a"] == 55.0  # never lowered
    counters.forget(keep=["d"])
    assert (len(counters), counters["a"]) == (2, 55.0)  # b's 50 are what a lift gives anyway


def test_a_queue_deadline_takes_a_request_out_of_the_queue() -> None:
    """vLLM #2901, #18826, #16391: no deadline, the queue only grows."""
    engine = toy_engine(max_sequences=1)
    engine.submit(request("first", range(5), 50))
    step(engine, 10.0)
    engine.submit(request("second", range(5), 50, queue_deadline_s=12.0))
    assert step(engine, 11.9).expired == ()
    assert step(engine, 12.0).expired == (Expired("second", "queue"),)
    assert (engine.waiting, engine.counters.expired_in_queue) == (0, 1)
    assert not engine.cancel("second")


def test_a_queue_deadline_means_nothing_once_the_request_runs() -> None:
    engine = toy_engine(blocks=6, max_batch_tokens=64)
    engine.submit(request("old", range(30), 100))
    new = request("new", range(9, 39), 100, queue_deadline_s=1.0)
    engine.submit(new)
    answers: dict[str, list[int]] = {}
    now = 0.0
    while engine.has_work:
        result = step(engine, now)
        assert result.expired == ()
        for token in result.emitted:
            answers.setdefault(token.request_id, []).append(token.token)
        now += 1.0
    assert engine.counters.preemptions > 0  # it waited again, after its deadline
    assert answers["new"] == solo(new)


def test_a_total_deadline_frees_the_blocks_within_one_step() -> None:
    engine = toy_engine()
    engine.submit(request("a", range(70), 50, deadline_s=5.0))
    for now in range(5):
        step(engine, float(now))
    assert engine.blocks_used == 3
    result = step(engine, 5.0)
    assert result.expired == (Expired("a", "total"),)
    assert result.batch == ()
    assert (engine.blocks_used, engine.has_work, engine.counters.expired) == (0, False, 1)


def test_a_deadline_that_passed_before_the_first_step_runs_nothing() -> None:
    engine = toy_engine()
    engine.submit(request("a", range(70), 50, deadline_s=1.0))
    assert step(engine, 2.0).expired == (Expired("a", "total"),)
    assert engine.counters.prompt_tokens == 0


def test_prefill_and_decode_are_metered_apart_by_tenant_and_class() -> None:
    engine = toy_engine(blocks=64)
    engine.submit(request("a", range(70), 5, tenant="alice", namespace="alice"))
    engine.submit(request("b", range(70), 3, tenant="bob", priority="batch", namespace="bob"))
    run(engine)
    engine.submit(request("a2", range(70), 5, tenant="alice", namespace="alice"))
    run(engine)
    alice, bob = engine.usage["alice", "interactive"], engine.usage["bob", "batch"]
    assert (alice.requests, alice.prefill_tokens + alice.cached_tokens, alice.decode_tokens) == (2, 140, 10)
    assert alice.cached_tokens >= 64
    assert (bob.requests, bob.prefill_tokens, bob.cached_tokens, bob.decode_tokens) == (1, 70, 0, 3)


def test_work_done_twice_is_not_charged_twice() -> None:
    engine = toy_engine(blocks=6, max_batch_tokens=64)
    for name, shift in (("old", 0), ("new", 9)):
        engine.submit(request(name, range(shift, shift + 30), 100, tenant=name))
    run(engine)
    new = engine.usage["new", "interactive"]
    assert engine.counters.preemptions > 0
    assert new.recomputed_tokens > 0
    assert (new.prefill_tokens, new.decode_tokens) == (30, 100)


def test_tenants_beyond_the_metered_ones_share_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "METERED_TENANTS", 4)
    engine = toy_engine()
    for i in range(4 * 3 + 5):
        engine.submit(request(f"r{i}", range(3), 1, tenant=f"t{i}"))
        run(engine)
    assert len(engine.usage) == 4 * 3 + 1
    assert engine.usage["(other)", "interactive"].requests == 5


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_would_starve_a_class_is_refused(weight: float) -> None:
    weights: dict[RequestClass, float] = {"interactive": 8.0, "agent": 4.0, "batch": weight}
    with pytest.raises(ConfigurationError, match="weight of class batch"):
        FairnessConfig(weights=weights)


def test_growing_answers_that_do_not_fit_together_do_not_take_turns_in_throwing_each_other_out() -> None:
    """vLLM #15996, #18115: preemption storms; the work done over again stays small."""
    engine = toy_engine(blocks=24, max_batch_tokens=64, max_sequences=8)
    requests = [request(f"r{i}", range(i, i + 20), 180) for i in range(8)]  # 7 blocks each in the end: 3 fit
    for one in requests:
        engine.submit(one)
    answers = run(engine)
    assert answers == {one.request_id: solo(one) for one in requests}
    run_in_all = sum(len(one.prompt) + one.max_tokens for one in requests)
    assert 0 < engine.counters.preemptions <= 3 * len(requests)
    assert sum(u.recomputed_tokens for u in engine.usage.values()) < run_in_all


def test_memory_that_is_short_for_a_moment_is_waited_for() -> None:
    """SGLang #26265: a scheduler that gave up on a passing shortage; vllm-ascend #16315: no token a second."""
    engine = toy_engine(blocks=7, max_batch_tokens=32, max_sequences=8)
    requests = [
        request(f"r{i}", range(i, i + 60), 100, priority=CLASSES[i % 3], tenant=f"t{i % 2}") for i in range(9)
    ]
    for one in requests:
        engine.submit(one)
    steps, last = 0, 0
    answers: dict[str, list[int]] = {}
    while engine.has_work:
        result = step(engine)
        steps += 1
        for token in result.emitted:
            answers.setdefault(token.request_id, []).append(token.token)
            last = steps
        assert steps - last <= 20  # somebody always gets on
    assert answers == {one.request_id: solo(replace(one)) for one in requests}

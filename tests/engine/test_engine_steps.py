from __future__ import annotations

import numpy as np
import pytest

from tiltyard import kernels
from tiltyard.engine.engine import Engine, EngineConfig
from tiltyard.engine.request import EngineRequest, StepResult
from tiltyard.errors import ConfigurationError, Conflict, ContextTooLong, InvalidRequest
from toy_model import VOCABULARY, ToyModel, request, run, solo, toy_engine


def step(engine: Engine) -> StepResult:
    result = engine.step()
    engine.check_integrity()
    return result


def test_a_request_gets_max_tokens_tokens_and_ends_with_length() -> None:
    engine = toy_engine()
    engine.submit(request("a", range(5), 3))
    finishes = [token.finish for _ in range(3) for token in step(engine).emitted]
    assert finishes == [None, None, "length"]
    assert not engine.has_work
    assert engine.blocks_used == 0


def test_a_stop_token_is_emitted_and_ends_the_answer() -> None:
    free = solo(request("a", range(5), 8))
    stop = free[4]
    engine = toy_engine()
    engine.submit(request("a", range(5), 8, stop_ids=frozenset({stop})))
    tokens = [token for _ in range(8) if engine.has_work for token in step(engine).emitted]
    assert [t.token for t in tokens] == free[: free.index(stop) + 1]
    assert tokens[-1].finish == "stop"


def test_a_long_prefill_never_stalls_a_decode() -> None:
    """vLLM #10774, #21495, llama.cpp #29175: everybody waited for the longest prompt."""
    engine = toy_engine(blocks=64, max_batch_tokens=16)
    engine.submit(request("talker", range(4), 30))
    step(engine)
    engine.submit(request("reader", range(7, 207), 2))
    steps_until_read = 0
    while True:
        result = step(engine)
        assert dict(result.batch)["talker"] == 1
        assert "talker" in {t.request_id for t in result.emitted}
        steps_until_read += 1
        if "reader" in {t.request_id for t in result.emitted}:
            break
    assert steps_until_read == 14  # 200 tokens in chunks of 15: the talker takes one token of each step's 16
    assert engine.counters.mixed_steps == 14


def test_no_step_exceeds_the_token_budget() -> None:
    engine = toy_engine(blocks=64, max_batch_tokens=10, max_sequences=4)
    for i in range(6):
        engine.submit(request(f"r{i}", range(i, i + 40), 5))
    while engine.has_work:
        result = step(engine)
        assert result.batch_tokens <= 10
        assert result.batch_sequences <= 4
    assert engine.counters.peak_batch_tokens == 10


def test_a_second_identical_prompt_reuses_everything_but_one_token() -> None:
    engine = toy_engine()
    engine.submit(request("first", range(64), 2))
    run(engine)
    engine.submit(request("second", range(64), 2))
    tokens = [t for _ in range(2) for t in step(engine).emitted]
    # 64 tokens are two full blocks; the second is copied, since one token of the prompt must run and be written.
    assert [t.cached_tokens for t in tokens] == [63, 63]
    assert (engine.counters.prefix_hit_tokens, engine.counters.copied_tokens) == (63, 31)
    assert [t.token for t in tokens] == solo(request("second", range(64), 2))


def test_generated_tokens_are_reused_in_the_next_turn() -> None:
    engine = toy_engine()
    engine.submit(request("turn-1", range(20), 50))
    answer = run(engine)["turn-1"]
    conversation = [*range(20), *answer, 7, 8, 9]
    engine.submit(request("turn-2", conversation, 4))
    tokens = [t for _ in range(4) for t in step(engine).emitted]
    assert (
        tokens[0].cached_tokens == 64
    )  # of 73: 69 have KV (all but the last generated one and the new ones)
    assert [t.token for t in tokens] == solo(request("turn-2", conversation, 4))


def test_another_namespace_reuses_nothing() -> None:
    """vLLM RFC #16016, CVE-2025-46570: a prefix cache for all tells who asked what."""
    engine = toy_engine()
    engine.submit(request("alice", range(100), 2, namespace="b/alice"))
    run(engine)
    engine.submit(request("bob", range(100), 2, namespace="b/bob"))
    assert step(engine).batch_tokens == 64
    assert engine.counters.prefix_hit_tokens == 0


def test_choices_of_one_prompt_compute_it_once() -> None:
    engine = toy_engine(blocks=64, max_batch_tokens=512)
    for i in range(4):
        engine.submit(request(f"c{i}", range(100), 4, temperature=1.0, seed=i))
    first = step(engine)
    assert [name for name, _ in first.batch] == ["c0"]  # the others wait for its blocks
    second = step(engine)
    assert dict(second.batch) == {"c0": 1, "c1": 1, "c2": 1, "c3": 1}
    run(engine)
    assert engine.counters.prefix_hit_tokens == 3 * 99
    assert engine.counters.prompt_tokens == 100 + 3


def test_waiting_for_a_shared_prefix_does_not_hold_up_others() -> None:
    engine = toy_engine(blocks=64, max_batch_tokens=512)
    engine.submit(request("a", range(100), 4))
    engine.submit(request("same", range(100), 4))
    engine.submit(request("other", range(50, 90), 4))
    assert {name for name, _ in step(engine).batch} == {"a", "other"}
    assert {name for name, _ in step(engine).batch} == {"a", "other", "same"}


def test_blocks_computed_twice_at_the_same_time_are_kept_once() -> None:
    engine = toy_engine()
    # Neither prompt fills a block, so nothing is shared at admission; the answers are equal and do.
    for name in ("a", "b"):
        engine.submit(request(name, range(10), 60))
    answers = run(engine)
    assert answers["a"] == answers["b"] == solo(request("a", range(10), 60))
    assert engine.counters.shared_blocks == 2  # (10 + 59) tokens with KV: two full blocks
    assert engine.blocks_cached == 2


def test_when_memory_runs_dry_the_latest_admitted_is_recomputed_to_the_same_answer() -> None:
    """SGLang #26265: a passing shortage of memory costs work, not answers and not the scheduler."""
    engine = toy_engine(blocks=6, max_batch_tokens=64)
    requests = [request("old", range(30), 100), request("new", range(9, 39), 100)]
    for one in requests:
        engine.submit(one)
    preempted: list[str] = []
    answers: dict[str, list[int]] = {}
    while engine.has_work:
        result = step(engine)
        preempted += result.preempted
        if result.preempted:
            assert not result.admitted
        for token in result.emitted:
            answers.setdefault(token.request_id, []).append(token.token)
    assert set(preempted) == {"new"}
    assert engine.counters.preemptions == len(preempted)
    assert answers == {r.request_id: solo(r) for r in requests}


def test_cached_blocks_are_evicted_before_anybody_is_preempted() -> None:
    engine = toy_engine(blocks=6)
    engine.submit(request("old", range(96), 1))
    run(engine)
    assert engine.blocks_cached == 3
    engine.submit(request("new", range(50, 150), 60))
    run(engine)
    assert engine.counters.evicted_blocks > 0
    assert engine.counters.preemptions == 0


def test_a_request_waits_until_its_prompt_fits() -> None:
    engine = toy_engine(blocks=6, max_batch_tokens=256)
    engine.submit(request("a", range(100), 20))
    engine.submit(request("b", range(5, 105), 2))
    step(engine)
    assert (engine.running, engine.waiting) == (1, 1)
    answers = run(engine)
    assert answers["b"] == solo(request("b", range(5, 105), 2))
    assert engine.counters.preemptions == 0


def test_cancelling_a_running_request_frees_its_blocks_at_once() -> None:
    """SGLang #36475, llama.cpp #13262: what nobody reads any more was computed to its end."""
    engine = toy_engine()
    engine.submit(request("a", range(70), 50))
    step(engine)
    step(engine)
    assert engine.blocks_used == 3
    assert engine.cancel("a")
    assert (engine.blocks_used, engine.has_work) == (0, False)
    assert engine.blocks_cached == 2  # what is computed stays useful
    engine.check_integrity()


def test_cancelling_a_waiting_request_takes_it_out_of_the_queue() -> None:
    engine = toy_engine(max_sequences=1)
    engine.submit(request("a", range(5), 5))
    engine.submit(request("b", range(5, 9), 5))
    step(engine)
    assert engine.cancel("b")
    assert set(run(engine)) == {"a"}


def test_cancelling_what_is_not_there_says_so() -> None:
    assert not toy_engine().cancel("ghost")


def test_cancelling_one_leaves_the_others_answer_alone() -> None:
    """OVMS #4428: one disconnect ended the whole batch."""
    engine = toy_engine()
    kept = request("kept", range(40), 20)
    engine.submit(kept)
    engine.submit(request("dropped", range(40), 20, temperature=1.0, seed=3))
    answer = [t.token for _ in range(4) for t in step(engine).emitted if t.request_id == "kept"]
    engine.cancel("dropped")
    assert answer + run(engine)["kept"] == solo(kept)


def test_unfinished_tokens_count_uncached_prompt_and_remaining_output() -> None:
    engine = toy_engine(max_batch_tokens=64)
    engine.submit(request("a", range(100), 10))
    assert engine.unfinished_tokens == 110
    step(engine)  # 64 of the prompt
    assert engine.unfinished_tokens == 46
    step(engine)  # the rest, and the first token
    assert engine.unfinished_tokens == 10  # that token has yet to run, nine are to come
    engine.cancel("a")
    assert engine.unfinished_tokens == 0


def test_a_seed_decides_a_sampled_answer() -> None:
    answers = {seed: solo(request("a", range(9), 20, temperature=1.5, seed=seed)) for seed in (1, 2)}
    assert answers[1] != answers[2]
    assert answers[1] == solo(request("b", range(9), 20, temperature=1.5, seed=1))
    assert answers[1] == solo(request("b", range(9), 20, temperature=1.5, seed=1 + 2**64))


def test_a_bias_forces_and_forbids_tokens() -> None:
    free = solo(request("a", range(9), 6))
    assert solo(request("a", range(9), 6, logit_bias=((17, 100.0),))) == [17] * 6
    forbidden = solo(request("a", range(9), 1, logit_bias=((free[0], -100.0),)))
    assert forbidden != free[:1]


def test_penalties_look_at_what_was_said() -> None:
    # The toy's logits lie in [0, 4): a bias of 100 always wins, and of two such the larger by more than 4.
    both = ((3, 110.0), (4, 100.0))
    prompt = range(10, 19)  # says neither 3 nor 4
    assert solo(request("a", prompt, 4, logit_bias=both)) == [3, 3, 3, 3]
    assert solo(request("a", prompt, 4, logit_bias=both, presence_penalty=20.0)) == [3, 4, 3, 3]
    assert solo(request("a", prompt, 4, logit_bias=both, frequency_penalty=20.0)) == [3, 4, 3, 4]
    assert solo(request("a", [*prompt, 3], 1, logit_bias=both, presence_penalty=20.0)) == [3]


def test_logprobs_are_of_the_models_own_logits() -> None:
    biased = request("b", range(9), 1, logit_bias=((17, 100.0),), top_logprobs=2)
    plain = request("p", range(9), 1, top_logprobs=2)
    tokens = {}
    for one in (biased, plain):
        engine = toy_engine()
        engine.submit(one)
        (tokens[one.request_id],) = step(engine).emitted
    assert tokens["b"].top == tokens["p"].top
    assert tokens["p"].top is not None
    assert tokens["p"].logprob == tokens["p"].top[0][1]
    assert tokens["b"].logprob is not None
    assert tokens["b"].logprob < tokens["p"].top[0][1]


def test_logprobs_are_not_computed_unless_asked_for() -> None:
    engine = toy_engine()
    engine.submit(request("a", range(9), 1))
    (token,) = step(engine).emitted
    assert (token.logprob, token.top) == (None, None)


def test_an_idle_step_does_nothing() -> None:
    engine = toy_engine()
    assert step(engine) == StepResult()


@pytest.mark.parametrize(
    ("bad", "error", "param"),
    [
        (request("x", [], 5), InvalidRequest, "prompt"),
        (request("x", range(5), 0), InvalidRequest, "max_tokens"),
        (request("x", range(5), 5, logit_bias=((VOCABULARY, 1.0),)), InvalidRequest, "logit_bias"),
        (request("x", range(5), 5, logit_bias=((1, float("nan")),)), InvalidRequest, "logit_bias"),
        (request("x", range(5), 5, temperature=-0.1), InvalidRequest, "temperature"),
        (request("x", range(5), 5, temperature=float("nan")), InvalidRequest, "temperature"),
        (request("x", range(5), 5, top_p=0.0), InvalidRequest, "top_p"),
        (request("x", range(5), 5, top_k=2**31), InvalidRequest, "top_k"),
        (request("x", range(5), 5, repetition_penalty=1e-38), InvalidRequest, "repetition_penalty"),
        (request("x", range(5), 5, top_logprobs=VOCABULARY + 1), InvalidRequest, "top_logprobs"),
        (request("x", range(100), 1000), ContextTooLong, "max_tokens"),
        (request("x", range(2000), 1), ContextTooLong, "prompt"),
    ],
)
def test_what_can_never_run_is_refused_at_the_door(
    bad: EngineRequest, error: type[InvalidRequest], param: str
) -> None:
    engine = toy_engine()
    with pytest.raises(error) as caught:
        engine.submit(bad)
    assert caught.value.param == param
    assert not engine.has_work


def test_a_request_larger_than_the_memory_is_refused_with_both_numbers() -> None:
    """vllm-ascend #16315: what can never fit was preempted for ever."""
    engine = toy_engine(blocks=4)
    engine.submit(request("fits", range(100), 29))  # 128 tokens of KV: the last one needs none
    with pytest.raises(ContextTooLong, match=r"KV for 129 tokens; this worker has memory for 128"):
        engine.submit(request("too large", range(100), 30))
    run(engine)


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    engine = toy_engine()
    with pytest.raises(InvalidRequest, match="prompt has token 61; the model knows 0 to 60"):
        engine.submit(EngineRequest("x", (VOCABULARY,), request("x", [1]).sampling, 1, frozenset(), "n"))


def test_an_id_in_use_is_refused() -> None:
    engine = toy_engine()
    engine.submit(request("a", range(5)))
    with pytest.raises(Conflict):
        engine.submit(request("a", range(5)))


def test_a_preempted_request_goes_before_later_arrivals() -> None:
    engine = toy_engine(blocks=6, max_batch_tokens=64)
    for name, shift in (("old", 0), ("new", 9)):
        engine.submit(request(name, range(shift, shift + 30), 100))
    order: list[str] = []
    while engine.has_work:
        result = step(engine)
        order += result.admitted
        if result.preempted:
            engine.submit(request("later", range(40, 50), 5))
    assert order == ["old", "new", "new", "later"]


def test_requests_that_wait_for_a_prefix_keep_their_place() -> None:
    engine = toy_engine(blocks=64, max_batch_tokens=64, max_sequences=2)
    engine.submit(request("leader", range(100), 2))
    engine.submit(request("follower", range(100), 2))
    step(engine)  # the leader takes the whole budget
    engine.submit(request("late", range(30, 40), 2))
    assert step(engine).admitted == ("late",)  # the follower still waits; there is room for one more
    order: list[str] = []
    engine.submit(request("latest", range(50, 160), 2))
    while engine.has_work:
        order += step(engine).admitted
    assert order == ["follower", "latest"]


def test_the_random_number_of_a_token_comes_from_seed_and_absolute_position() -> None:
    seen: list[tuple[int, np.ndarray[tuple[int], np.dtype[np.float32]]]] = []
    config = EngineConfig(
        kv_blocks=64,
        max_batch_tokens=64,
        max_sequences=8,
        vocab_size=VOCABULARY,
        max_context=1024,
        observe=lambda _, position, row: seen.append((position, row.copy())),
    )
    engine = Engine(ToyModel(64), config)
    engine.submit(request("a", range(9), 12, temperature=1.5, top_k=40, seed=77))
    answer = run(engine)["a"]
    assert [position for position, _ in seen] == list(range(9, 21))
    expected = kernels.sample_rows(
        np.stack([row for _, row in seen]),
        np.full(12, 1.5, np.float32),
        np.full(12, 40, np.int32),
        np.ones(12, np.float32),
        np.zeros(12, np.float32),
        np.full(12, 77, np.uint64),
        np.arange(9, 21, dtype=np.int64),
    )
    assert answer == expected.tolist()


def test_a_configuration_that_could_starve_a_sequence_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_sequences"):
        toy_engine(max_batch_tokens=4, max_sequences=5)
    with pytest.raises(ConfigurationError, match="kv_blocks is 0"):
        EngineConfig(kv_blocks=0, max_batch_tokens=1, max_sequences=1, vocab_size=1, max_context=1)


def test_the_toy_notices_a_wrong_block() -> None:
    """The other tests mean something only if a wrong table changes the answer."""
    model = ToyModel(64)
    config = EngineConfig(
        kv_blocks=64, max_batch_tokens=64, max_sequences=8, vocab_size=VOCABULARY, max_context=1024
    )
    engine = Engine(model, config)
    engine.submit(request("a", range(40), 8))
    step(engine)
    model.kv[0, 3, 1] += 1  # as if another sequence had written into the first block
    assert run(engine)["a"] != solo(request("a", range(40), 8))[1:]


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 1e6},
        {"temperature": 1e-45},
        {"temperature": 1.0, "top_p": 1e-6},
        {"temperature": 1.0, "min_p": 1.0, "top_k": 2**31 - 1},
        {"temperature": 1.0, "repetition_penalty": 0.01, "presence_penalty": -1000.0},
        {"temperature": 1.0, "frequency_penalty": 1000.0, "logit_bias": ((3, 10_000.0), (4, -10_000.0))},
    ],
)
def test_settings_at_the_limits_cannot_make_the_sampler_fail(extreme: dict[str, object]) -> None:
    assert len(solo(request("a", range(9), 50, **extreme))) == 50

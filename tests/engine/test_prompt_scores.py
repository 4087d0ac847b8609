"""Log-probabilities of the prompt: the same bits cold and warm, and from the cache where it has them.

vLLM PR #42245: with the prefix cache on, prompt log-probabilities were missing or shifted. Here a cached block keeps
the scores of its tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.engine.engine import Engine
from tiltyard.engine.request import EngineRequest, PromptScores
from tiltyard.kernels import reference_sampling
from toy_model import VOCABULARY, request, toy_engine


def ask(engine: Engine, one: EngineRequest) -> PromptScores:
    """Run a request to its end; what it says of its prompt."""
    engine.submit(one)
    found = []
    while engine.has_work:
        found += [t.prompt_scores for t in engine.step().emitted if t.request_id == one.request_id]
        engine.check_integrity()
    assert found[0] is not None
    assert found[1:] == [None] * (len(found) - 1)
    return found[0]


def scored(name: str, prompt: range | list[int], top: int = 3, max_tokens: int = 2) -> EngineRequest:
    return replace(request(name, prompt, max_tokens), prompt_logprobs=top)


def cold(one: EngineRequest) -> PromptScores:
    return ask(toy_engine(), one)


def same(a: PromptScores, b: PromptScores) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def test_the_scores_are_those_of_the_logits() -> None:
    rows: dict[int, np.ndarray] = {}
    prompt = list(range(3, 43))
    for end in range(1, len(prompt)):  # the logits after each prefix, one request each
        engine = toy_engine()
        engine.config = replace(engine.config, observe=lambda _, at, row: rows.__setitem__(at, row.copy()))
        engine.submit(request("r", prompt[:end], 1))
        engine.step()
    scores = cold(scored("a", prompt))
    assert scores.logprobs[0] == 0.0
    for at, row in rows.items():
        expected = reference_sampling.log_probabilities(row)
        assert scores.logprobs[at] == pytest.approx(expected[prompt[at]], abs=1e-5)
        ranked = sorted(range(VOCABULARY), key=lambda i: (-row[i], i))
        assert scores.ranks[at] == ranked.index(prompt[at]) + 1
        assert scores.top_ids[at].tolist() == ranked[:3]
        assert scores.top_logprobs[at].tolist() == pytest.approx([expected[i] for i in ranked[:3]], abs=1e-5)


def test_a_warm_cache_gives_the_same_bits_and_spares_the_work() -> None:
    one = scored("a", range(200))
    engine = toy_engine()
    first = ask(engine, one)
    ran = engine.counters.prompt_tokens
    again = ask(engine, replace(one, request_id="again"))
    assert same(first, cold(one))
    assert same(again, first)
    # 6 full blocks are cached with their scores; the last token of them runs again, and the 8 behind it.
    assert engine.counters.prompt_tokens - ran == 1 + 8
    assert engine.counters.prefix_hit_tokens == 191


def test_a_cache_without_scores_is_not_read() -> None:
    engine = toy_engine()
    engine.submit(request("talk", range(200), 1))
    engine.step()
    while engine.has_work:
        engine.step()
    assert same(ask(engine, scored("a", range(200))), cold(scored("a", range(200))))
    assert engine.counters.prefix_hit_tokens == 0
    # Now it has them; a request that wants more of each position works again, one that wants fewer does not.
    assert same(ask(engine, scored("b", range(200), top=5)), cold(scored("b", range(200), top=5)))
    assert engine.counters.prefix_hit_tokens == 0
    assert same(ask(engine, scored("c", range(200), top=1)), cold(scored("c", range(200), top=1)))
    assert engine.counters.prefix_hit_tokens == 191


def test_the_end_of_a_prompt_is_scored_behind_a_prefix_that_nobody_has_scored() -> None:
    engine = toy_engine(blocks=64)
    engine.submit(request("talk", range(200), 1))
    while engine.has_work:
        engine.step()
    whole = cold(scored("whole", range(220)))
    found = ask(engine, replace(scored("end", range(220)), prompt_logprobs_from=205))
    assert same(PromptScores(*(x[205:] for x in found)), PromptScores(*(x[205:] for x in whole)))
    assert engine.counters.prefix_hit_tokens == 192  # 6 full blocks, none of them scored
    assert engine.counters.prompt_tokens == 200 + 28


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_answers_that_are_scored_behind_one_prefix_compute_it_once(max_tokens: int) -> None:
    """Eight choices of a select, sent at once: who is first computes what they share."""
    engine = toy_engine(blocks=128, max_batch_tokens=512)
    prefix = list(range(100))
    choices = [[*prefix, *range(i, i + 20)] for i in range(0, 40, 5)]
    wanted = [
        replace(scored(f"c{i}", one, max_tokens=max_tokens), prompt_logprobs_from=100)
        for i, one in enumerate(choices)
    ]
    for one in wanted:
        engine.submit(one)
    found = {}
    while engine.has_work:
        for token in engine.step().emitted:
            if token.prompt_scores is not None:
                found[token.request_id] = token.prompt_scores
        engine.check_integrity()
    for one in wanted:
        whole = cold(replace(one, prompt_logprobs_from=0))
        assert same(
            PromptScores(*(x[100:] for x in found[one.request_id])), PromptScores(*(x[100:] for x in whole))
        )
    # The first runs its 120 tokens; the others their own 20, and position 99 that says how likely the first of them is.
    assert engine.counters.prompt_tokens == 120 + 7 * 21


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    forks=st.lists(st.integers(0, 150), min_size=5, max_size=5),
    tops=st.lists(st.integers(0, 4), min_size=5, max_size=5),
    budget=st.sampled_from([8, 33, 64]),
    blocks=st.sampled_from([6, 9, 64]),
    starts=st.lists(st.integers(0, 160), min_size=5, max_size=5),
)
def test_scores_do_not_depend_on_cache_chunks_company_or_preemption(
    *, lengths: list[int], forks: list[int], tops: list[int], budget: int, blocks: int, starts: list[int]
) -> None:
    engine = toy_engine(blocks=blocks, max_batch_tokens=budget)
    wanted = []
    for i, (length, fork, top) in enumerate(zip(lengths, forks, tops, strict=False)):
        prompt = [t if t < fork else t + 11 * i for t in range(length)]
        wanted.append(replace(scored(f"r{i}", prompt, top, max_tokens=6), prompt_logprobs_from=starts[i]))
    for one in wanted:
        engine.submit(one)
    found = {}
    while engine.has_work:
        for token in engine.step().emitted:
            if token.prompt_scores is not None:
                found[token.request_id] = token.prompt_scores
        engine.check_integrity()
    for one in wanted:
        whole, start = cold(replace(one, max_tokens=1, prompt_logprobs_from=0)), one.prompt_logprobs_from
        assert same(
            PromptScores(*(x[start:] for x in found[one.request_id])),
            PromptScores(*(x[start:] for x in whole)),
        )

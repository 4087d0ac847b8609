"""Guessing ahead changes how many steps an answer takes, and nothing else.

Elsewhere it does change answers: vLLM #41758, mlx-lm #1423 (greedy output differs with speculation on).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.engine.engine import Engine
from tiltyard.engine.fairness import FairnessConfig, FairShares
from tiltyard.engine.prompt_lookup import PromptLookup
from tiltyard.engine.request import EmittedToken, EngineRequest
from tiltyard.engine.sequence import RunningSequence
from tiltyard.engine.speculation import Speculation, StepCosts, share_rows
from tiltyard.errors import ConfigurationError
from toy_model import FREE_ROWS, VOCABULARY, Prophet, prophecy, request, run, solo, toy_engine


def every_third(_: str, position: int) -> bool:
    return position % 3 == 2


def never(_: str, __: int) -> bool:
    return False


def always(_: str, __: int) -> bool:
    return True


def emitted(engine: Engine, *requests: EngineRequest) -> dict[str, list[EmittedToken]]:
    """Every token of every request, as it came out, with the accounts checked after each step."""
    tokens: dict[str, list[EmittedToken]] = {one.request_id: [] for one in requests}
    for one in requests:
        engine.submit(one)
    while engine.has_work:
        for token in engine.step().emitted:
            tokens[token.request_id].append(token)
        engine.check_integrity()
    return tokens


def plain(token: EmittedToken) -> tuple[object, ...]:
    """What a client can see of a token: all but how it came about."""
    return token.token, token.logprob, token.top, token.finish, token.first


SETTINGS: tuple[dict[str, object], ...] = (
    {},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"temperature": 0.7, "logit_bias": ((3, 2.0), (5, -3.0)), "top_k": 20},
)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_guesses_change_neither_tokens_nor_log_probabilities(sampling: dict[str, object]) -> None:
    """vLLM #41758, mlx-lm #1423."""
    one = request("a", range(40), 30, top_logprobs=3, seed=5, **sampling)
    engine = toy_engine(speculation=prophecy(every_third))
    with_guesses = emitted(engine, one)["a"]
    without = emitted(toy_engine(), one)["a"]
    assert list(map(plain, with_guesses)) == list(map(plain, without))
    counters = engine.counters
    assert counters.drafts > 3
    assert 0 < counters.accepted_tokens < counters.draft_tokens
    assert counters.steps == 30 - counters.accepted_tokens


def test_right_guesses_save_a_step_each() -> None:
    engine = toy_engine(speculation=prophecy(never))
    tokens = emitted(engine, request("a", range(10), 31))["a"]
    # The prompt's step guesses 5 and gets 6 tokens, and so does each one after it: 6 * 5 + 1.
    assert engine.counters.steps == 6
    assert engine.counters.accepted_tokens == engine.counters.draft_tokens == 25
    assert (tokens[-1].drafted_tokens, tokens[-1].accepted_tokens) == (25, 25)


def test_wrong_guesses_cost_rows_and_no_step() -> None:
    engine = toy_engine(speculation=prophecy(always))
    assert run_one(engine, request("a", range(10), 20)) == solo(request("a", range(10), 20))
    assert engine.counters.steps == 20
    assert engine.counters.accepted_tokens == 0
    assert engine.counters.draft_tokens > 50


def test_an_answer_is_never_guessed_beyond_its_length() -> None:
    engine = toy_engine(speculation=prophecy(never))
    engine.submit(request("a", range(10), 3))
    result = engine.step()
    assert len(result.emitted) == 3
    assert result.batch_tokens == 12  # 10 of the prompt and 2 guesses
    assert result.emitted[-1].finish == "length"


def test_what_is_guessed_behind_a_stop_token_is_dropped() -> None:
    free = solo(request("a", range(5), 12))
    stop = next(token for token in free[2:] if token not in free[:2])
    one = request("a", range(5), 12, stop_ids=frozenset({stop}))
    engine = toy_engine(speculation=prophecy(never))
    tokens = emitted(engine, one)["a"]
    assert [t.token for t in tokens] == free[: free.index(stop) + 1]
    assert tokens[-1].finish == "stop"
    assert [t.finish for t in tokens[:-1]] == [None] * (len(tokens) - 1)
    assert engine.blocks_used == 0


def test_a_refused_guess_never_reaches_the_prefix_tree() -> None:
    """The tokens in the tree are those of the answer, and a warm answer is the cold one (SGLang #34683)."""
    one = request("a", range(20), 50)
    engine = toy_engine(speculation=prophecy(always))
    answer = run_one(engine, one)
    conversation = [*range(20), *answer, 1, 2, 3]
    engine.submit(request("b", conversation, 10))
    tokens = [token for token in run_tokens(engine) if token.request_id == "b"]
    assert tokens[0].cached_tokens == 64
    assert [t.token for t in tokens] == solo(request("b", conversation, 10))


def test_guesses_use_only_what_the_budget_leaves() -> None:
    engine = toy_engine(max_batch_tokens=16, speculation=prophecy(never))
    engine.submit(request("talker", range(4), 40))
    engine.step()
    engine.submit(request("reader", range(7, 107), 2))
    steps = []
    while not steps or "reader" not in {token.request_id for token in steps[-1].emitted}:
        steps.append(engine.step())
    assert all(step.batch_tokens <= 16 for step in steps)
    chunks = [dict(step.batch)["reader"] for step in steps]
    assert chunks == [15] * 6 + [10]  # as without guesses
    assert steps[-1].batch_tokens > 11  # the last one left room


def test_guesses_preempt_nobody() -> None:
    # Two answers of 60 tokens need 4 blocks; with 4 there is never one to spare for a guess across a boundary.
    both = [request("a", range(30), 30), request("b", range(30, 60), 30)]
    engine = toy_engine(blocks=4, speculation=prophecy(never))
    answers = {name: [t.token for t in tokens] for name, tokens in emitted(engine, *both).items()}
    assert answers == {one.request_id: solo(one) for one in both}
    assert engine.counters.preemptions == 0
    assert engine.counters.accepted_tokens > 20


def test_a_preempted_answer_goes_on_being_guessed() -> None:
    crowd = [request(f"r{i}", range(i, i + 28), 40, temperature=1.0, seed=i) for i in range(4)]
    engine = toy_engine(blocks=7, speculation=prophecy(every_third))
    answers = {name: [t.token for t in tokens] for name, tokens in emitted(engine, *crowd).items()}
    assert answers == {one.request_id: solo(one) for one in crowd}
    assert engine.counters.preemptions > 0
    assert 0 < engine.counters.accepted_tokens < engine.counters.draft_tokens


def test_a_request_may_refuse_to_be_guessed() -> None:
    engine = toy_engine(speculation=prophecy(never))
    run_one(engine, replace(request("a", range(10), 20), speculate=False))
    assert engine.counters.draft_tokens == 0
    assert engine.counters.steps == 20


def test_a_drafter_forgets_who_has_gone() -> None:
    prophet = Prophet(never)
    engine = toy_engine(speculation=Speculation(prophet, FREE_ROWS))
    engine.submit(request("cancelled", range(10), 20))
    engine.submit(request("finished", range(10, 20), 8))
    engine.step()
    assert {s.request.request_id for s in prophet.known} == {"cancelled", "finished"}
    engine.cancel("cancelled")
    run(engine)
    assert not prophet.known


def test_the_drafter_learns_how_many_of_its_guesses_were_kept() -> None:
    prophet = Prophet(lambda _, position: position == 3)
    engine = toy_engine(speculation=Speculation(prophet, FREE_ROWS))
    run_one(engine, request("a", range(10), 10))
    # Guesses for 0 to 4, of which 3 is wrong; then for 4 to 8; the last token needs no guess.
    assert prophet.lessons == [("a", 5, 3), ("a", 5, 5)]


prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=70)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(prompts, st.integers(1, 40), st.sampled_from(SETTINGS)), min_size=1, max_size=6),
    st.integers(5, 24),
    st.sampled_from([8, 33, 64]),
    st.sets(st.integers(0, 40)),
)
def test_whatever_is_guessed_answers_stay_the_same(
    crowd: list[tuple[list[int], int, dict[str, object]]], blocks: int, budget: int, flaws: set[int]
) -> None:
    requests = [
        request(f"r{i}", prompt, tokens, seed=i, top_logprobs=1, **sampling)
        for i, (prompt, tokens, sampling) in enumerate(crowd)
    ]
    engine = toy_engine(
        blocks=blocks, max_batch_tokens=budget, speculation=prophecy(lambda _, position: position in flaws)
    )
    tokens = emitted(engine, *requests)
    for one in requests:
        assert [t.token for t in tokens[one.request_id]] == solo(one)
    assert engine.blocks_used == 0


def test_prompt_lookup_guesses_what_followed_the_longest_match() -> None:
    # The end, 1 2 3, was there twice; the longer match, 9 1 2 3, was followed by 5.
    sequence = sequence_of([9, 1, 2, 3, 5, 6, 0, 1, 2, 3, 7, 8, 9, 1, 2, 3])
    lookup = PromptLookup()
    assert len(lookup.chances(sequence, 4, 0.0)) == 4
    assert lookup.draft({sequence: 4}) == {sequence: [5, 6, 0, 1]}


def test_prompt_lookup_takes_the_latest_of_equal_matches() -> None:
    sequence = sequence_of([0, 1, 2, 5, 9, 1, 2, 6, 8, 1, 2])
    lookup = PromptLookup()
    lookup.chances(sequence, 1, 0.0)
    assert lookup.draft({sequence: 1}) == {sequence: [6]}


def test_prompt_lookup_has_no_guess_where_nothing_repeats() -> None:
    assert PromptLookup().chances(sequence_of(list(range(50))), 8, 0.0) == []
    assert PromptLookup().chances(sequence_of([1]), 8, 0.0) == []


def test_prompt_lookup_goes_round_a_loop() -> None:
    sequence = sequence_of([4, 5, 6, 4, 5, 6])
    lookup = PromptLookup()
    lookup.chances(sequence, 8, 0.0)
    assert lookup.draft({sequence: 8}) == {sequence: [4, 5, 6, 4, 5, 6, 4, 5]}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 30))
def test_prompt_lookup_finds_what_a_search_of_the_whole_text_finds(text: list[int], start: int) -> None:
    """Taken token by token, as the engine does; compared with all pairs of places."""
    sequence = sequence_of(text[:start])
    lookup = PromptLookup()
    found = lookup.chances(sequence, 1, 0.0)
    for token in text[start:]:
        sequence.append(token)
        found = lookup.chances(sequence, 1, 0.0)
    tokens, best = sequence.tokens, 1
    for place in range(1, len(tokens)):
        length = 0
        while length < place and tokens[place - 1 - length] == tokens[len(tokens) - 1 - length]:
            length += 1
        best = max(best, length)
    assert bool(found) == (best >= 2)
    if found:
        (guess,) = lookup.draft({sequence: 1})[sequence]
        assert any(
            tokens[place - 2 : place] == tokens[-2:] and tokens[place] == guess
            for place in range(2, len(tokens))
        )


def test_prompt_lookup_learns_from_answers_that_do_not_repeat() -> None:
    # After each "1 2" comes something new: the chance of a match of two falls below its prior.
    sequence = sequence_of([1, 2, 3, 1, 2])
    lookup = PromptLookup()
    (first,) = lookup.chances(sequence, 1, 0.0)
    for token in (10, 1, 2, 11, 1, 2, 12, 1, 2):
        sequence.append(token)
        (last,) = lookup.chances(sequence, 1, 0.0) or [0.0]
    assert last < first / 1.5


def sequence_of(tokens: list[int]) -> RunningSequence:
    one = request("s", tokens, 60)
    return RunningSequence(one, 32, FairShares(FairnessConfig()).account(one))


COSTS = StepCosts((1, 2, 4, 8, 16), (1.0, 1.2, 1.6, 3.2, 6.4))


def test_step_costs_lie_on_lines_between_and_beyond_what_was_measured() -> None:
    costs = [COSTS.of(rows) for rows in (1, 2, 3, 4, 6, 16, 32)]
    assert costs == pytest.approx([1.0, 1.2, 1.4, 1.6, 2.4, 6.4, 12.8])


@pytest.mark.parametrize(
    ("rows", "costs"), [((1,), (1.0,)), ((2, 4), (1.0, 2.0)), ((1, 4), (1.0, 0.0)), ((1, 1), (1.0, 1.0))]
)
def test_step_costs_that_say_nothing_are_refused(rows: tuple[int, ...], costs: tuple[float, ...]) -> None:
    with pytest.raises(ConfigurationError):
        StepCosts(rows, costs)


def lengths(*rows: list[float], ready: int = 1, room: int = 100, token_cost: float = 0.0) -> list[int]:
    sequences = [sequence_of([1]) for _ in rows]
    chosen = share_rows(
        dict(zip(sequences, rows, strict=True)),
        COSTS,
        rows=ready,
        ready=ready,
        room=room,
        token_cost=token_cost,
    )
    return [chosen.get(sequence, 0) for sequence in sequences]


def test_likely_guesses_are_taken_while_they_raise_the_speed() -> None:
    # Tokens over cost, 1 / 1.0 without: 1.9/1.2, 2.7/1.4, 3.4/1.6, 3.9/2.0: the third is the last that helps.
    assert lengths([0.9, 0.8, 0.7, 0.5, 0.4]) == [3]


def test_unlikely_guesses_are_not_taken() -> None:
    assert lengths([0.2, 0.04]) == [0]  # 1.2 tokens for 1.2: nothing gained


def test_a_batch_that_keeps_the_machine_busy_guesses_nothing() -> None:
    assert lengths(*[[0.9, 0.8]] * 8, ready=8) == [0] * 8  # a row more costs as much as a row less saves


def test_rows_go_to_whose_guesses_are_likely() -> None:
    assert lengths([0.3, 0.1], [0.99, 0.98, 0.97], ready=2, room=2) == [0, 2]


def test_a_drafter_that_is_dear_is_asked_for_less() -> None:
    # 1.9/1.7, 2.7/2.4: the first guess pays best when each costs half a step to make.
    assert lengths([0.9, 0.8, 0.7, 0.5], token_cost=0.5) == [2]
    assert lengths([0.9, 0.8, 0.7, 0.5], token_cost=0.8) == [0]


def run_one(engine: Engine, one: EngineRequest) -> list[int]:
    engine.submit(one)
    return run(engine)[one.request_id]


def run_tokens(engine: Engine) -> list[EmittedToken]:
    tokens: list[EmittedToken] = []
    while engine.has_work:
        tokens.extend(engine.step().emitted)
        engine.check_integrity()
    return tokens

"""What may not be chosen: bad words, allowed ids, `min_tokens` and grammars, on toy arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiltyard.engine.constraint import Constraint
from tiltyard.engine.masks import TokenMask, mask_words
from tiltyard.engine.request import EngineRequest
from tiltyard.engine.speculation import Speculation, StepCosts
from tiltyard.errors import InvalidRequest
from toy_model import VOCABULARY, request, run, solo, toy_engine


def allowed(mask: TokenMask | None, tokens: Sequence[int], outputs: int) -> set[int]:
    words = np.empty(mask_words(VOCABULARY), np.uint32)
    if mask is None or not mask.fill(words, tokens, outputs):
        return set(range(VOCABULARY))
    return {t for t in range(VOCABULARY) if words[t // 32] >> np.uint32(t % 32) & np.uint32(1)}


@dataclass
class Script:
    """A grammar of one sentence; `END` may follow it."""

    tokens: tuple[int, ...]
    end: int
    at: int = 0
    works: int = 10**9
    accepted: list[int] = field(default_factory=list)

    def start(self) -> Constraint:
        return replace(self, accepted=[])

    def fill(self, mask: NDArray[np.uint32]) -> None:
        if self.at >= self.works:
            raise InvalidRequest("the grammar takes too long")
        mask.fill(0)
        token = self.tokens[self.at] if self.at < len(self.tokens) else self.end
        mask[token // 32] = 1 << token % 32

    def accept(self, token: int) -> None:
        assert token == self.tokens[self.at]
        self.at += 1

    def allowed(self, draft: Sequence[int]) -> int:
        rest = (*self.tokens[self.at :], self.end)
        return next((i for i, (a, b) in enumerate(zip(draft, rest, strict=False)) if a != b), len(rest))

    @property
    def ready(self) -> bool:
        return True

    @property
    def complete(self) -> bool:
        return self.at == len(self.tokens)


@dataclass
class SlowScript(Script):
    """Each of its masks is asked for so many times before it is ready."""

    asks: int = 5
    asked: int = 0

    @property
    def ready(self) -> bool:
        self.asked += 1
        return self.asked % self.asks == 0


@settings(max_examples=200, deadline=None)
@given(
    words=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), max_size=4),
    ids=st.none() | st.sets(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
    least=st.integers(0, 4),
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    said=st.lists(st.integers(0, 5), max_size=6),
)
def test_the_mask_is_what_the_specification_says(
    words: list[tuple[int, ...]],
    ids: set[int] | None,
    least: int,
    prompt: list[int],
    said: list[int],
) -> None:
    one = request("a", prompt, stop_ids=frozenset({7, 9}), bad_words=tuple(words),
                  allowed_token_ids=None if ids is None else tuple(ids), min_tokens=least)  # fmt: skip
    expected = set(range(VOCABULARY)) if ids is None else set(ids)
    for *before, last in words:  # a word is completed by its last token, after the others in the answer
        if said[len(said) - len(before) :] == before and len(said) >= len(before):
            expected.discard(last)
    if len(said) < least:
        expected -= {7, 9}
    assert allowed(TokenMask.of(one, None), [*prompt, *said], len(said)) == expected


def test_a_bad_word_never_comes_and_the_rest_of_the_answer_is_not_touched() -> None:
    plain = solo(request("a", range(5), 8))
    word = tuple(plain[2:4])
    answer = solo(request("a", range(5), 8, bad_words=(word,)))
    assert answer[:3] == plain[:3]
    assert answer[3] != plain[3]
    assert all(tuple(answer[i : i + 2]) != word for i in range(7))


def test_allowed_token_ids_are_the_only_ones() -> None:
    assert set(solo(request("a", range(5), 30, allowed_token_ids=(3, 17, 41)))) <= {3, 17, 41}


def test_no_stop_token_comes_before_min_tokens() -> None:
    plain = solo(request("a", range(5), 12))
    stop = frozenset({plain[1]})
    assert len(solo(request("a", range(5), 12, stop_ids=stop))) == 2
    answer = solo(request("a", range(5), 12, stop_ids=stop, min_tokens=5))
    assert answer[0] == plain[0]
    assert not stop & set(answer[:5])


def test_a_grammar_decides_every_token_and_ends_the_answer() -> None:
    engine = toy_engine()
    engine.submit(replace(request("a", range(5), 10), grammar=Script((4, 8, 15), end=7)))
    tokens = [token for _ in range(3) for token in engine.step().emitted]
    assert [(t.token, t.finish) for t in tokens] == [(4, None), (8, None), (15, "stop")]
    assert not engine.has_work


def test_each_answer_walks_its_own_way_through_a_shared_grammar() -> None:
    engine = toy_engine()
    grammar = Script((4, 8, 15, 16), end=7)
    for name in ("a", "b"):
        engine.submit(replace(request(name, range(5), 10), grammar=grammar))
    assert run(engine) == {"a": [4, 8, 15, 16], "b": [4, 8, 15, 16]}
    assert grammar.at == 0


def test_a_preempted_answer_goes_on_where_its_grammar_was() -> None:
    """And its masks: preemption drops KV, never what was said."""
    script = tuple(i % 50 for i in range(60))
    engine = toy_engine(blocks=4, max_batch_tokens=64)
    for start, name in enumerate(("a", "b")):
        engine.submit(replace(request(name, range(start, start + 10), 80), grammar=Script(script, end=7)))
    assert run(engine) == {"a": list(script), "b": list(script)}
    assert engine.counters.preemptions > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"grammar": Script((4, 8), end=7), "bad": ((8,),)}, "exclude each other"),
        ({"grammar": Script((4, 8), end=7, works=1), "bad": ()}, "takes too long"),
    ],
    ids=["masks exclude each other", "the grammar gives up"],
)
def test_a_request_that_cannot_go_on_fails_alone_and_frees_its_blocks(
    change: dict[str, object], reason: str
) -> None:
    engine = toy_engine()
    other = request("other", range(9), 6)
    engine.submit(replace(request("a", range(5), 10, bad_words=change["bad"]), grammar=change["grammar"]))  # type: ignore[arg-type]
    engine.submit(other)
    first = engine.step()
    assert {t.request_id for t in first.emitted} == {"a", "other"}
    second = engine.step()
    assert [(f.request_id, reason in f.error.message) for f in second.failed] == [("a", True)]
    engine.check_integrity()
    tokens = [t.token for r in (first, second) for t in r.emitted if t.request_id == "other"]
    assert tokens + run(engine)["other"] == solo(other)


def rejected(one: EngineRequest) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        toy_engine().check(one)
    return caught.value.param


def test_what_can_never_work_is_refused_by_name() -> None:
    assert rejected(request("a", range(3), 4, min_tokens=5)) == "min_tokens"
    assert rejected(request("a", range(3), 4, bad_words=((VOCABULARY,),))) == "bad_words"
    assert rejected(request("a", range(3), 4, bad_words=((),))) == "bad_words"
    assert rejected(request("a", range(3), 4, allowed_token_ids=(-1,))) == "allowed_token_ids"
    assert rejected(request("a", range(3), 4, allowed_token_ids=())) == "allowed_token_ids"
    assert (
        rejected(request("a", range(3), 4, allowed_token_ids=(5,), bad_words=((5,),))) == "allowed_token_ids"
    )
    assert rejected(request("a", range(3), 4, stop_ids=frozenset({VOCABULARY}))) == "stop_token_ids"


def test_guesses_are_cut_by_the_grammar_and_change_nothing() -> None:
    script = tuple(i % 7 for i in range(60))
    one = replace(request("a", [*range(7), *range(7)], 80), grammar=Script(script, end=7))
    engine = toy_engine(speculation=Speculation(costs=StepCosts((1, 2, 64), (1.0, 1.01, 1.1))))
    engine.submit(one)
    assert run(engine) == {"a": list(script)}
    assert engine.counters.accepted_tokens > 30
    # None was against the grammar; one came behind the end of the answer.
    assert engine.counters.draft_tokens <= engine.counters.accepted_tokens + 1


def test_a_mask_that_takes_long_keeps_nobody_else_waiting() -> None:
    """vLLM #54003, in mid-answer: whose mask is not there is left out of the step, and gets the same tokens later."""
    sentence = Script((5, 6, 7, 8), end=0)
    slow = SlowScript((5, 6, 7, 8), end=0)
    others = [request("a", [1, 2, 3], 20), request("b", [4, 5], 20)]
    engine = toy_engine()
    for one in (replace(request("slow", [9], 8), grammar=slow), *others):
        engine.submit(one)
    steps: dict[str, list[int]] = {}
    answers: dict[str, list[int]] = {}
    while engine.has_work:
        result = engine.step()
        engine.check_integrity()
        for token in result.emitted:
            answers.setdefault(token.request_id, []).append(token.token)
            steps.setdefault(token.request_id, []).append(engine.counters.steps)
    assert answers["slow"] == [5, 6, 7, 8]
    assert {one.request_id: answers[one.request_id] for one in others} == {
        one.request_id: solo(one) for one in others
    }
    for one in others:  # a token in each step
        assert steps[one.request_id] == list(range(1, 21))
    assert steps["slow"] == [1, 6, 11, 16]
    # Alone it has nobody to keep waiting, and the step waits for it.
    alone = toy_engine()
    alone.submit(replace(request("slow", [9], 8), grammar=SlowScript((5, 6, 7, 8), end=0)))
    assert run(alone) == run_of(replace(request("slow", [9], 8), grammar=sentence))
    assert alone.counters.steps == 4


def run_of(one: EngineRequest) -> dict[str, list[int]]:
    engine = toy_engine()
    engine.submit(one)
    return run(engine)

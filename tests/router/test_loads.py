"""What is counted against workers, over whatever happens to requests."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tiltyard.router.load import AnswerLengths, Entry, Loads, Queue

WORKERS = ("one", "two")


class Requests(RuleBasedStateMachine):
    """Any history of requests that begin, go on, end, fail, are cancelled or move, beside a count kept by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.loads = Loads(lambda: self.now)
        self.live: list[tuple[str, Entry, ExitStack]] = []

    @rule(
        worker=st.sampled_from(WORKERS),
        prompt=st.integers(0, 9000),
        answer=st.integers(0, 4000),
        blind=st.booleans(),
    )
    def send(self, worker: str, prompt: int, answer: int, blind: bool) -> None:
        stack = ExitStack()
        entry = stack.enter_context(self.loads.entry(worker, prompt, answer, blind=blind))
        assert entry.tokens == prompt + answer
        self.live.append((worker, entry, stack))

    @rule(place=st.integers(0, 50), tokens=st.integers(1, 5000))
    def answer(self, place: int, tokens: int) -> None:
        if self.live:
            _, entry, _ = self.live[place % len(self.live)]
            before = entry.tokens
            entry.answered(tokens)
            assert 0 <= entry.tokens <= before

    @rule(place=st.integers(0, 50))
    def end(self, place: int) -> None:
        if self.live:
            self.live.pop(place % len(self.live))[2].close()

    @rule(place=st.integers(0, 50), error=st.sampled_from([ValueError, GeneratorExit, KeyboardInterrupt]))
    def fail(self, place: int, error: type[BaseException]) -> None:
        if self.live:
            stack = self.live.pop(place % len(self.live))[2]
            with pytest.raises(error), stack:
                raise error

    @rule(place=st.integers(0, 50), seconds=st.floats(0, 1e5))
    def move(self, place: int, seconds: float) -> None:
        self.now += seconds  # however old a request is, it counts while it lives
        if self.live:
            worker, entry, stack = self.live.pop(place % len(self.live))
            stack.close()
            self.send(WORKERS[1 - WORKERS.index(worker)], entry.tokens, 0, entry.blind)

    @invariant()
    def counted_are_exactly_the_live_requests(self) -> None:
        """llm-d-router #2295: live entries were reaped by age; Ray #61551: dead ones stayed."""
        assert self.loads.requests == len(self.live)
        for worker in WORKERS:
            entries = [entry for at, entry, _ in self.live if at == worker]
            assert self.loads.of(worker) == frozenset(entries)
            assert self.loads.unfinished(worker) == sum(e.tokens for e in entries)
            assert self.loads.shown(worker) == sum(e.tokens for e in entries if not e.blind)

    def teardown(self) -> None:
        for _, _, stack in self.live:
            stack.close()
        assert self.loads.requests == 0


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_a_prompt_is_released_at_the_first_token_and_the_answer_as_it_comes() -> None:
    loads = Loads(lambda: 0.0)
    with loads.entry("one", 1000, 100, queue=Queue("acme", "interactive")) as entry:
        entry.answered(1)
        assert (entry.tokens, entry.queue) == (99, None)
        entry.answered(60)
        assert entry.tokens == 39
        entry.answered(60)
        assert entry.tokens == 25  # longer than expected: a quarter of what was expected may be left
    assert loads.unfinished("one") == 0


def test_the_expected_length_follows_what_answers_have() -> None:
    lengths = AnswerLengths()
    for _ in range(200):
        lengths.saw("plum", 40)
    assert lengths.expected("plum", limit=None) == 40
    assert lengths.expected("plum", limit=16) == 16
    assert lengths.expected("plum", limit=None, least=100) == 100
    assert lengths.expected("quince", limit=None) == AnswerLengths.GUESS

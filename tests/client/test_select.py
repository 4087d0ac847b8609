"""Selecting on servers that score prompts: what is asked, how often, and what is done where a template is odd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai_stand_in import StandIn, standing_in

from tiltyard.client import ChoiceScore, Program, Retries

SCORING = frozenset({"prompt_logprobs", "prompt_logprobs_last", "structured_outputs"})
TAIL = 3


def tokens(messages: list[dict[str, str]]) -> list[int]:
    """A byte is a token; 300 begins a turn, and `TAIL` times 301 ends it."""
    ids = [1]
    for message in messages:
        ids += [300, *message["content"].encode(), *[301] * TAIL]
    return ids if messages[-1]["role"] == "assistant" else [*ids, 300]


@pytest.fixture(scope="module")
def one_server() -> Iterator[StandIn]:
    with standing_in(lambda _: "no", more_fields=SCORING, tokens=tokens) as server:
        yield server


@pytest.fixture
def server(one_server: StandIn) -> StandIn:
    one_server.reset()
    one_server.tiltyard = True
    return one_server


def program(server: StandIn) -> Program:
    return Program(server.url, model="m", retries=Retries(most=0))


def score(text: str) -> ChoiceScore:
    return ChoiceScore(text, -float(sum(text.encode())), len(text.encode()))


def lasts(server: StandIn) -> list[object]:
    return [one.body.get("prompt_logprobs_last") for one in server.seen]


async def test_the_likeliest_choice_joins_and_every_score_is_kept(server: StandIn) -> None:
    async with program(server) as p:
        s = p.prompt().user("well?")
        assert await s.select("a", ["no", "yes"], normalize="sum") == "no"
        assert s.step("a").scores == (score("no"), score("yes"))
        assert await s.select("b", ["~", "!!!"], normalize="mean") == "!!!"
        assert await s.select("c", ["~~", "!!!!!!!!!"], normalize="sum") == "~~"
        assert [m["content"] for m in s.messages] == ["well?", "no", "!!!", "~~"]
    assert all(one.body["max_tokens"] == 1 for one in server.seen)


async def test_choices_that_are_known_need_no_ruler_and_a_narrow_window(server: StandIn) -> None:
    async with program(server) as p:
        s = p.prompt().user("well?")
        await s.select("first", ["no", "yes"])
        assert lasts(server) == [19, 19, 19]  # the longest choice in bytes, and 16 tokens for the template
        server.seen.clear()
        await s.user("and now?").select("second", ["no", "yes"])
        assert lasts(server) == [6, 6]  # three tokens of "yes" and three behind them
        assert s.step("second").scores == s.step("first").scores


async def test_branches_that_select_alike_find_out_once(server: StandIn) -> None:
    async with program(server) as p:
        branches = p.prompt().user("well?").fork(4)
        assert await branches.each(lambda b: b.select("a", ["no", "yes"])) == ["no"] * 4
    assert len(server.seen) == 3 + 3 * 2


async def test_a_template_with_a_long_end_is_scored_whole(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "TAIL", 40)
    async with program(server) as p:
        s = p.prompt().user("well?")
        assert await s.select("a", ["no", "yes"]) == "no"
        assert lasts(server) == [19, 19, 19, None, None, None]
        assert s.step("a").scores == (score("no"), score("yes"))


async def test_a_spelling_that_does_not_hold_elsewhere_is_found_anew(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with program(server) as p:
        s = p.prompt().user("well?")
        await s.select("a", ["no", "yes"])
        monkeypatch.setitem(globals(), "TAIL", 2)
        await s.user("now?").select("b", ["no", "yes"])
        assert s.step("b").scores == s.step("a").scores
    assert len(server.seen) == 3 + 2 + 3


async def test_a_vllm_is_asked_for_whole_prompts(server: StandIn) -> None:
    server.tiltyard, server.owned_by = False, "vllm"
    async with program(server) as p:
        s = p.prompt().user("well?")
        await s.select("a", ["no", "yes"])
        assert s.step("a").how == "log-likelihood"
        assert s.step("a").scores == (score("no"), score("yes"))
    assert lasts(server) == [None] * 3


async def test_a_failed_select_leaves_the_prompt_as_it_was(server: StandIn) -> None:
    server.failures = [500]
    async with program(server) as p:
        s = p.prompt().user("well?")
        with pytest.raises(Exception, match="step 'a': status 500"):
            await s.select("a", ["no", "yes"])
        assert (len(s.messages), s.steps) == (1, ())
        assert await s.select("a", ["no", "yes"]) == "no"

"""A run, end to end: asked over a real socket, kept in a real log."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner
from judge_stage import item, judge_with, judging, longer, only_line, shown, user_text, write_set
from openai_stand_in import standing_in

from tiltyard.cli.main import main
from tiltyard.errors import Conflict, InvalidRequest, TiltyardError, Unavailable
from tiltyard.events.log import EventLog
from tiltyard.events.schema import JudgeRegistered, JudgmentMade, RubricRegistered
from tiltyard.judge.rubric import load_rubric
from tiltyard.judge.win_rates import judged_behaviours

PLUM = "sha256:" + "a" * 64


async def test_a_pair_is_judged_in_both_orders_and_every_word_of_it_is_kept(
    log: EventLog, tmp_path: Path
) -> None:
    """FastChat #2284, FastChat #3302 (who judged is recorded), AlpacaEval #34 (and the order it saw)."""
    items = write_set(tmp_path / "set.jsonl", [item(1, "A long answer.", "Short.", behaviour_a=PLUM)])
    with standing_in(judging(longer)) as server:
        done = await judge_with(server.url, log, items)
        orders = [shown(seen.body) for seen in server.seen]
    assert (done.asked, done.known) == (2, 0)
    assert sorted(orders) == [("A long answer.", "Short."), ("Short.", "A long answer.")]
    first, second = (one.data for one in only_line(log).all)
    assert {first.order, second.order} == {"ab", "ba"}
    assert {first.asked, second.asked} == {"first", "second"}
    for made in (first, second):
        assert made.verdict == "a"
        assert made.judge_name == "m"
        assert made.answered_as == "m"
        assert made.held == "text"
        assert (made.prompt_tokens, made.completion_tokens) == (10, 2)
        assert made.sides[0].behaviour == PLUM
        letter = "A" if made.order == "ab" else "B"
        assert log.own_words("test").read(made.raw).decode() == f"The longer one is better. [[{letter}]]"
        assert shown({"messages": orjson.loads(log.own_words("test").read(made.prompt))}) in orders
    rubric = load_rubric("pairwise-brief")
    registered = log.find(RubricRegistered, subject="pairwise-brief")
    assert registered is not None
    assert isinstance(registered.data, RubricRegistered)
    assert registered.data.rubric == first.rubric == rubric.digest
    assert registered.data.rules == rubric.content()
    judge = log.find(JudgeRegistered, subject="m")
    assert judge is not None
    assert isinstance(judge.data, JudgeRegistered)
    assert judge.data.judge == first.judge
    assert judge.data.specification["temperature"] == 0


async def test_which_order_is_asked_first_is_drawn_from_the_seed(log: EventLog, tmp_path: Path) -> None:
    items = write_set(tmp_path / "set.jsonl", [item(n, f"answer {n}", "other") for n in range(24)])
    with standing_in(judging(longer)) as server:
        await judge_with(server.url, log, items, concurrency=1, seed=7)
        asked = [one.data.order for one in only_line(log).all if one.data.asked == "first"]
        seen = [one.data.order for one in only_line(log).all][::2]
    assert asked == seen
    assert 4 < asked.count("ab") < 20  # of 24 fair draws, outside with probability 0.0015
    assert {one.data.seed for one in only_line(log).all} == {7}


async def test_a_second_run_asks_nothing_and_one_that_was_cut_short_asks_for_the_rest(
    log: EventLog, tmp_path: Path
) -> None:
    items = write_set(tmp_path / "set.jsonl", [item(n, f"answer {n}", "other") for n in range(6)])
    with standing_in(judging(longer)) as server:
        server.failures = [401]
        with pytest.raises(TiltyardError):
            await judge_with(server.url, log, items, concurrency=1)
        server.failures = []
        before = len(list(log.read(types=(JudgmentMade,))))
        done = await judge_with(server.url, log, items)
        again = await judge_with(server.url, log, items, seed=3)
    assert before < 12
    assert (done.asked, done.known) == (12 - before, before)
    assert (again.asked, again.known) == (0, 12)
    judgments = [one.data.judgment for one in only_line(log).all]
    assert len(judgments) == len(set(judgments)) == 12


async def test_a_server_that_is_busy_is_asked_again_and_one_that_is_gone_ends_the_run(
    log: EventLog, tmp_path: Path
) -> None:
    items = write_set(tmp_path / "set.jsonl", [item(1, "yes", "no")])
    with standing_in(judging(longer)) as server:
        server.failures = [429]
        done = await judge_with(server.url, log, items, concurrency=1)
        assert done.asked == 2
        assert len(server.seen) == 3
        url = server.url
    with pytest.raises(Unavailable, match="nothing answers"):
        await judge_with(url, log, items)


async def test_an_answer_without_a_verdict_is_unscored_with_its_words_and_counts_as_nothing(
    log: EventLog, tmp_path: Path
) -> None:
    """Inspect #4026, Inspect #4872: a reply that cannot be read is no verdict against anybody. AlpacaEval #290: nor is it half a point by a rule that nobody is told."""
    items = write_set(tmp_path / "set.jsonl", [item(1, "long answer", "no"), item(2, "UNREADABLE", "no")])

    def say(first: str, second: str) -> str:
        return "I would rather not say." if "UNREADABLE" in first + second else longer(first, second)

    with standing_in(judging(say)) as server:
        await judge_with(server.url, log, items)
    made = {(one.data.item_id, one.data.order): one.data for one in only_line(log).all}
    assert made["q2", "ab"].verdict is None
    assert made["q2", "ab"].unscored == "no_verdict"
    assert log.own_words("test").read(made["q2", "ab"].raw) == b"I would rather not say."
    plum = next(one for one in judged_behaviours(log) if one.identity == "plum")
    assert (plum.estimate, plum.n, plum.unscored) == (1.0, 1, 1)


async def test_orders_that_differ_are_inconsistent_and_count_as_halves(log: EventLog, tmp_path: Path) -> None:
    items = write_set(tmp_path / "set.jsonl", [item(n, f"one {n}", "two") for n in range(4)])
    with standing_in(judging(lambda first, second: "[[A]]")) as server:
        await judge_with(server.url, log, items)
    judgments = only_line(log)
    assert [pair.outcome for pair in judgments.pairs()] == ["inconsistent"] * 4
    rates = {one.identity: (one.estimate, one.inconsistent) for one in judged_behaviours(log)}
    assert rates == {"plum": (0.5, 4), "quince": (0.5, 4)}


async def test_a_judge_that_became_another_model_in_mid_run_ends_the_run(
    log: EventLog, tmp_path: Path
) -> None:
    """AlpacaEval #126, AlpacaEval #130: a name that moves to another model makes no series with itself."""
    items = write_set(tmp_path / "set.jsonl", [item(n, f"answer {n}", "other") for n in range(3)])
    with standing_in(judging(longer)) as server:
        await judge_with(server.url, log, items)
        renamed = {**server.head, "model": "m-2"}
        type(server).head = property(lambda self: renamed)  # type: ignore[method-assign,assignment]
        try:
            more = write_set(tmp_path / "more.jsonl", [item(9, "answer", "other one")])
            with pytest.raises(Conflict, match="two judges"):
                await judge_with(server.url, log, more)
            pinned = await judge_with(server.url, log, more, pin="m-2")
        finally:
            type(server).head = property(  # type: ignore[method-assign,assignment]
                lambda self: {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            )
    assert pinned.asked == 2
    assert len({one.judge for one in map(lambda event: event.data, log.read(types=(JudgmentMade,)))}) == 2  # type: ignore[attr-defined] # noqa: C417


async def test_a_verdict_is_held_to_a_grammar_where_the_server_can(log: EventLog, tmp_path: Path) -> None:
    """FastChat #3650, arena-hard-auto #20 (a local judge): reasons first, then one of three tokens and nothing else."""
    items = write_set(tmp_path / "set.jsonl", [item(1, "long answer", "no")])

    def say(body: dict[str, object]) -> str:
        return "[[B]]" if "structured_outputs" in body else "Let me think about [[A]]."

    with standing_in(say, owned_by="vllm", more_fields=frozenset({"structured_outputs"})) as server:
        await judge_with(server.url, log, items, rubric="pairwise")
        held = [seen.body["structured_outputs"] for seen in server.seen if "structured_outputs" in seen.body]
        assert held == [{"choice": ["[[A]]", "[[B]]", "[[C]]"]}] * 2
        assert "verdict now" in user_text(server.seen[-1].body)
    for one in only_line(log).all:
        assert one.data.held == "grammar"
        assert one.data.verdict == ("b" if one.data.order == "ab" else "a")
        assert log.own_words("test").read(one.data.raw) == b"Let me think about [[A]].\n\n[[B]]"
        assert (one.data.prompt_tokens, one.data.completion_tokens) == (20, 4)


async def test_a_server_that_takes_the_grammar_and_ignores_it_is_caught(
    log: EventLog, tmp_path: Path
) -> None:
    items = write_set(tmp_path / "set.jsonl", [item(1, "long answer", "no")])
    more = frozenset({"structured_outputs"})
    with standing_in(lambda body: "A, I think: [[A]]", owned_by="vllm", more_fields=more) as server:
        await judge_with(server.url, log, items)
    assert {one.data.unscored for one in only_line(log).all} == {"form_not_held"}


async def test_single_answers_of_many_turns_are_rated(log: EventLog, tmp_path: Path) -> None:
    turns = ["Name a river.", "A longer one?"]
    rows = [
        {"id": f"s{n}", "turns": turns, "answer": ["Rhine", f"Nile {n}"], "model": "plum"} for n in range(3)
    ]
    items = write_set(tmp_path / "set.jsonl", rows)
    with standing_in(lambda body: f"Fine. [[{7 if 'Nile 1' in user_text(body) else 4}]]") as server:
        await judge_with(server.url, log, items, rubric="single")
        text = user_text(server.seen[0].body)
    assert (
        text.index("Name a river.")
        < text.index("Rhine")
        < text.index("### User, turn 2")
        < text.index("Nile")
    )
    (row,) = judged_behaviours(log)
    assert (row.measure, row.estimate, row.n) == ("rating", 5.0, 3)


async def test_an_item_that_a_rubric_cannot_show_is_refused_before_anything_is_asked(
    log: EventLog, tmp_path: Path
) -> None:
    items = write_set(tmp_path / "set.jsonl", [item(1, "yes", "no")])
    with standing_in(judging(longer)) as server:
        with pytest.raises(InvalidRequest, match=r"q1.*0 reference answers.*\{reference\}"):
            await judge_with(server.url, log, items, rubric="pairwise-reference")
        with pytest.raises(InvalidRequest, match="judges single answers"):
            await judge_with(server.url, log, items, rubric="single")
        assert server.seen == []


def test_the_command_judges_reports_and_goes_on_where_it_was(tmp_path: Path) -> None:
    write_set(
        tmp_path / "set.jsonl",
        [item(n, f"long answer {n}", "no") for n in range(5)]
        + [item(9, "long answer 1", "no") | {"question": "Question 1?"}],
    )
    words = [
        "judge",
        "run",
        "pairwise-brief",
        str(tmp_path / "set.jsonl"),
        "--judge",
        "m",
        "--data",
        str(tmp_path),
    ]
    with standing_in(judging(longer)) as server:
        words += ["--url", server.url, "--price", "2", "8"]
        found = CliRunner().invoke(main, words, catch_exceptions=False)
        assert found.exit_code == 0, found.output
        again = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
        assert len(server.seen) == 10
    assert "10 judgments asked for, 0 in the log" in found.stdout
    assert "1 of them duplicates" in found.stdout
    told = json.loads(again.stdout)
    assert (told["asked"], told["known"]) == (0, 10)
    assert told["report"]["outcomes"] == {"a": 5}
    # 10 judgments of 10 and 2 tokens at 2 and 8 dollars a million
    assert told["report"]["cost_usd"] == pytest.approx(10 * (10 * 2 + 2 * 8) / 1e6)
    shown_again = CliRunner().invoke(main, ["judge", "show", "--data", str(tmp_path)], catch_exceptions=False)
    assert "plum" in shown_again.stdout

"""A judge behind the `judge` checks of a fixed set."""

from __future__ import annotations

import asyncio

import pytest
from judge_stage import only_line, user_text
from openai_stand_in import standing_in

from tiltyard.cli.judge_grader import JudgeGrader
from tiltyard.errors import InvalidRequest
from tiltyard.evals.answer import ItemAnswer, TurnAnswer
from tiltyard.evals.item import Item
from tiltyard.events.log import EventLog

ITEM = Item.model_validate({
    "id": "sum-1", "turns": ["Think of a river.", "What is 17 + 25?"], "reference": "42", "slices": {"skill": "arithmetic"},
    "checks": [{"kind": "judge", "rubric": "single-reference"}, {"kind": "judge", "rubric": "pairwise"}],
})  # fmt: skip


def answer(text: str) -> ItemAnswer:
    return ItemAnswer((TurnAnswer("The Rhine."), TurnAnswer(text, generation="gen_1")))


async def test_a_check_is_graded_once_for_each_key_and_is_a_judgment_in_the_log(log: EventLog) -> None:
    with standing_in(lambda body: "[[10]]" if "It is 42." in user_text(body) else "Hm.") as server:
        grader = JudgeGrader(log, "m", server.url, None)
        right, wrong = await asyncio.gather(
            grader.grade(ITEM.checks[0], ITEM, answer("It is 42."), key="eval-1"),  # type: ignore[arg-type]
            grader.grade(ITEM.checks[0], ITEM, answer("It is 41."), key="eval-2"),  # type: ignore[arg-type]
        )
        again = await grader.grade(ITEM.checks[0], ITEM, answer("It is 42."), key="eval-1")  # type: ignore[arg-type]
        assert len(server.seen) == 2
        assert "17 + 25" in user_text(server.seen[0].body)
        with pytest.raises(InvalidRequest, match="compares two answers"):
            await grader.grade(ITEM.checks[1], ITEM, answer("x"), key="eval-3")  # type: ignore[arg-type]
    assert (right.score, right.code, right.why) == (1.0, None, "[[10]]")
    assert (wrong.score, wrong.code, wrong.why) == (None, "no_verdict", "Hm.")
    assert again == right
    made = [one.data for one in only_line(log).all]
    assert {(one.item_id, one.sides[0].generations, one.slices["skill"]) for one in made} == {
        ("sum-1", ("gen_1",), "arithmetic")
    }

"""A judge behind the `judge` checks of a fixed set: its grades are judgments, and count in the set alone."""

from __future__ import annotations

import pytest
from judge_stage import user_text
from openai_stand_in import standing_in

from tiltyard.cli.eval_judge import JudgeGrader
from tiltyard.client import ModelClient
from tiltyard.errors import InvalidRequest, TiltyardError
from tiltyard.evals.answer import ItemAnswer, TurnAnswer
from tiltyard.evals.item import Item
from tiltyard.evals.marking import Origin
from tiltyard.events.log import EventLog
from tiltyard.judge.judges import find_judge
from tiltyard.judge.judgments import read_lines
from tiltyard.judge.win_rates import judged_behaviours

ITEM = Item.model_validate({
    "id": "sum-1", "turns": ["Think of a river.", "What is 17 + 25?"], "reference": "42", "slices": {"skill": "arithmetic"},
    "checks": [{"kind": "judge", "rubric": "single-reference"}, {"kind": "judge", "rubric": "pairwise"}],
})  # fmt: skip


def origin(key: str) -> Origin:
    return Origin(key, "chat", "sha256:" + "a" * 64)


def answer(text: str) -> ItemAnswer:
    return ItemAnswer((TurnAnswer("The Rhine."), TurnAnswer(text)))


async def test_a_check_is_graded_once_for_each_key_and_is_in_no_rate_of_the_judge(log: EventLog) -> None:
    with standing_in(lambda body: "[[10]]" if "It is 42." in user_text(body) else "Hm.") as server:
        async with ModelClient(server.url) as client:
            grader = JudgeGrader(log, client, await find_judge(client, "m"))
            right = await grader.grade(ITEM.checks[0], ITEM, answer("It is 42."), origin=origin("eval-1"))  # type: ignore[arg-type]
            wrong = await grader.grade(ITEM.checks[0], ITEM, answer("It is 41."), origin=origin("eval-2"))  # type: ignore[arg-type]
            again = await grader.grade(ITEM.checks[0], ITEM, answer("It is 42."), origin=origin("eval-1"))  # type: ignore[arg-type]
            assert len(server.seen) == 2
            with pytest.raises(InvalidRequest, match="compares two answers"):
                await grader.grade(ITEM.checks[1], ITEM, answer("x"), origin=origin("eval-3"))  # type: ignore[arg-type]
    assert (right.score, right.code, right.why) == (1.0, None, "[[10]]")
    assert (wrong.score, wrong.code, wrong.why) == (None, "no_verdict", "Hm.")
    assert again == right
    (judgments,) = read_lines(log, purpose="check").values()
    assert {one.data.slices["skill"] for one in judgments.all} == {"arithmetic"}
    assert judged_behaviours(log) == []


@pytest.mark.parametrize(
    ("rubric", "reference", "says"),
    [
        ("nobodys", "42", "item 'x': no rubric is called 'nobodys'; ours are "),
        ("pairwise", "42", "item 'x': rubric 'pairwise' compares two answers"),
        (
            "single-reference",
            "",
            "item 'x' has no `reference`, and its rubric 'single-reference' compares with one",
        ),
    ],
)
async def test_a_rubric_that_cannot_be_used_is_found_before_anybody_is_asked(
    log: EventLog, rubric: str, reference: str, says: str
) -> None:
    item = Item.model_validate(
        {"id": "x", "turns": ["Hi"], "reference": reference, "checks": [{"kind": "judge", "rubric": rubric}]}
    )
    with standing_in(lambda body: "[[10]]") as server:
        async with ModelClient(server.url) as client:
            grader = JudgeGrader(log, client, await find_judge(client, "m"))
            asked = len(server.seen)
            grader.prepare([ITEM.model_copy(update={"checks": ITEM.checks[:1]})])
            with pytest.raises(TiltyardError) as refused:
                grader.prepare([item])
            assert len(server.seen) == asked
    assert refused.value.message.startswith(says)

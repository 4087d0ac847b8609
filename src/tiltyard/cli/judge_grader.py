"""The judge of a fixed set's `judge` checks: `evals` asks, `judge` answers.

Neither room knows the other; here they meet. A grade is a judgment like any other: an event, under the rubric that the check names,
and asked for once for each key.
"""

from __future__ import annotations

import asyncio

from tiltyard.client import ModelClient
from tiltyard.errors import InvalidRequest
from tiltyard.evals.answer import ItemAnswer
from tiltyard.evals.checks import Expert
from tiltyard.evals.checks import Rubric as RubricCheck
from tiltyard.evals.item import Item as EvalItem
from tiltyard.evals.marking import Graded
from tiltyard.events.log import EventLog
from tiltyard.judge.items import Item, ItemSet, JudgedAnswer
from tiltyard.judge.judges import Judge, find_judge
from tiltyard.judge.rubric import Rubric, load_rubric
from tiltyard.judge.run import judge_one


class JudgeGrader:
    """Asks one judge."""

    def __init__(self, log: EventLog, name: str, url: str, api_key: str | None) -> None:
        self._log = log
        self._name = name
        self._url = url
        self._api_key = api_key
        self._judge: Judge | None = None
        self._finding = asyncio.Lock()

    async def grade(
        self, check: RubricCheck | Expert, item: EvalItem, answer: ItemAnswer, *, key: str
    ) -> Graded:
        """The rating as a share of the rubric's scale; raises `InvalidRequest` for a rubric of pairs."""
        if not isinstance(check, RubricCheck):
            return Graded(None, "no_review")
        rubric = _single(check.rubric)
        async with ModelClient(self._url, api_key=self._api_key) as client:
            async with self._finding:
                judge = self._judge = self._judge or await find_judge(client, self._name)
            judged = judged_item(item, answer, key)
            made = await judge_one(self._log, client, judge, rubric, ItemSet(item.id, item.digest, (judged,)))
        raw = await asyncio.to_thread(self._log.read_content, made.raw)
        return Graded(_share(rubric, made.score), made.unscored, raw.decode(errors="replace"))


def judged_item(item: EvalItem, answer: ItemAnswer, key: str) -> Item:
    """An answer to an item of a fixed set as a judge sees it; `key` stands for who gave it."""
    said = JudgedAnswer(
        tuple(turn.text for turn in answer.turns),
        key,
        generations=tuple(turn.generation for turn in answer.turns if turn.generation),
    )
    # One reference is about the last turn; those before it have none.
    blank = ("",) * (len(item.turns) - 1)
    return Item(
        id=item.id,
        turns=item.turns,
        sides={"a": said},
        reference=() if item.reference is None else (*blank, item.reference),
        slices=dict(item.slices),
    )


def _single(name: str) -> Rubric:
    rubric = load_rubric(name)
    if rubric.mode != "single":
        raise InvalidRequest(
            f"rubric {name!r} compares two answers; a check of one answer needs a rating, such as `single`",
            param="rubric",
        )
    return rubric


def _share(rubric: Rubric, score: float | None) -> float | None:
    return None if score is None else (score - rubric.lowest) / (rubric.highest - rubric.lowest)

"""Lets a judge mark the items of a fixed set: the one place where the rooms of sets and of judges meet."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tiltyard.client import ModelClient
from tiltyard.errors import ConfigurationError, InvalidRequest, TiltyardError
from tiltyard.evals.answer import ItemAnswer
from tiltyard.evals.asking import SUBJECT
from tiltyard.evals.checks import Expert, Rubric
from tiltyard.evals.item import Item
from tiltyard.evals.marking import Graded, Origin
from tiltyard.events.log import EventLog
from tiltyard.events.schema import JudgmentMade
from tiltyard.judge.items import Item as JudgedItem
from tiltyard.judge.items import ItemSet, JudgedAnswer
from tiltyard.judge.judges import Judge, find_judge
from tiltyard.judge.rubric import Rubric as JudgeRubric
from tiltyard.judge.rubric import load_rubric
from tiltyard.judge.run import plan, run


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """Who judges, and where."""

    name: str
    url: str
    key_env: str | None
    pin: str
    own_key: str | None
    """The key of the server that is evaluated; shown to the judge's only where that is the same."""

    def key(self) -> str | None:
        """The key to show; raises `ConfigurationError` for a variable that is not set."""
        if self.key_env is None:
            return self.own_key
        if not (key := os.environ.get(self.key_env)):
            raise ConfigurationError(
                f"the environment has no {self.key_env}; set it to the key of {self.url}",
                param="judge-key-env",
            )
        return key


@asynccontextmanager
async def judging(log: EventLog, options: JudgeOptions | None) -> AsyncIterator[JudgeGrader | None]:
    """A judge for the time of a run; `None` without options."""
    if options is None:
        yield None
        return
    async with ModelClient(options.url, api_key=options.key()) as client:
        yield JudgeGrader(log, client, await find_judge(client, options.name, pin=options.pin))


class JudgeGrader:
    """Grades answers by rubrics of single answers. A judgment is an event, once for judge, rubric and what is judged."""

    def __init__(self, log: EventLog, client: ModelClient, judge: Judge) -> None:
        self._log = log
        self._client = client
        self._judge = judge
        self._rubrics: dict[str, JudgeRubric] = {}

    @property
    def name(self) -> str:
        """The judge's digest."""
        return self._judge.digest

    def prepare(self, items: Iterable[Item]) -> None:
        """Find every rubric that items name, before anything is asked; raises `InvalidRequest` and `NotFound`, naming the item."""
        for item in items:
            for check in item.checks:
                if not isinstance(check, Rubric):
                    continue
                try:
                    rubric = self._rubric(check.rubric)
                except TiltyardError as error:
                    raise type(error)(f"item {item.id!r}: {error.message}", param="rubric") from None
                if rubric.needs_reference and not item.reference:
                    raise InvalidRequest(
                        f"item {item.id!r} has no `reference`, and its rubric {check.rubric!r} compares with one.",
                        param="reference",
                    )

    async def grade(
        self, check: Rubric | Expert, item: Item, answer: ItemAnswer, *, origin: Origin
    ) -> Graded:
        """Have an answer judged, unless the log has the judgment; raises `InvalidRequest` for a rubric of pairs."""
        if isinstance(check, Expert):
            return Graded(None, "no_review")
        rubric = self._rubric(check.rubric)
        judged = JudgedItem(
            id=item.id,
            turns=item.turns,
            sides={"a": JudgedAnswer(tuple(turn.text for turn in answer.turns), origin.key)},
            reference=(item.reference,) * len(item.turns)
            if item.reference and rubric.needs_reference
            else (),
            slices=item.slices,
            subject=SUBJECT,
        )
        judged_set = ItemSet(item.id, item.digest, (judged,))
        planned = plan(self._log, self._judge, rubric, judged_set, seed=0, purpose="check")
        await run(self._log, self._client, planned, concurrency=1)
        stored = self._log.find(JudgmentMade, subject=planned.askings[0].judgment)
        if stored is None or not isinstance(stored.data, JudgmentMade):
            raise RuntimeError(f"the judgment {planned.askings[0].judgment} is not in the log")
        made = stored.data
        with self._log.words("evaluate", reader="cli/eval_judge") as words:
            raw = words.read(made.raw).decode()
        if made.score is None:
            return Graded(None, made.unscored or "no_verdict", raw)
        return Graded((made.score - rubric.lowest) / (rubric.highest - rubric.lowest), None, raw)

    def _rubric(self, name: str) -> JudgeRubric:
        if name not in self._rubrics:
            rubric = load_rubric(name)
            if rubric.mode != "single":
                raise InvalidRequest(
                    f"rubric {name!r} compares two answers; a check needs one that rates a single answer.",
                    param="rubric",
                )
            self._rubrics[name] = rubric
        return self._rubrics[name]

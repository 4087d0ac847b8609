"""Puts answers of a fixed set on the experts' desk, and takes their verdict back: where the rooms of sets and of experts meet."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from tiltyard.errors import InvalidRequest
from tiltyard.evals.answer import ItemAnswer
from tiltyard.evals.asking import SUBJECT
from tiltyard.evals.checks import Expert, Rubric
from tiltyard.evals.evidence import read_evidence, runs_of
from tiltyard.evals.item import Item
from tiltyard.evals.marking import Graded, Origin
from tiltyard.evals.verdict import AWAITING
from tiltyard.events.log import EventLog
from tiltyard.identity.canonical import digest_of_json
from tiltyard.judge.expert_results import REVIEWS, ItemResult, result_of
from tiltyard.judge.experts import assign_by_role, reviewers
from tiltyard.judge.items import Item as JudgedItem
from tiltyard.judge.items import ItemSet, JudgedAnswer
from tiltyard.judge.rubric import Rubric as Form
from tiltyard.judge.rubric import load_rubric
from tiltyard.judge.run import item_key

MARK_HEX: Final = 8


class ExpertDesk:
    """Hands each answer to two reviewers, blind, and gives their verdict once they agree or somebody adjudicated.

    The same words of the same identity are reviewed once, in whichever runs they come.
    """

    name: Final = "two blind reviews, adjudicated"

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._forms: dict[str, Form] = {}
        self._one = asyncio.Lock()  # two items at once would both go to whoever has the least to do

    def prepare(self, items: Iterable[Item]) -> dict[str, int]:
        """Read every form that items ask for; returns the roles that fewer than two reviewers have, with how many.

        Raises `InvalidRequest` for a form that compares two answers.
        """
        checks = [check for item in items for check in item.checks if isinstance(check, Expert)]
        for check in checks:
            self._form(check.form)
        has = Counter(role for one in reviewers(self._log).values() for role in one.roles)
        return {check.role: has[check.role] for check in checks if has[check.role] < REVIEWS}

    async def grade(
        self, check: Rubric | Expert, item: Item, answer: ItemAnswer, *, origin: Origin
    ) -> Graded:
        """Give what experts decided, or hand the answer out."""
        if not isinstance(check, Expert):
            raise TypeError("a desk of experts grades expert checks")
        form = self._form(check.form)
        judged = judged_item(self._log, item, answer, origin)
        async with self._one:
            return await asyncio.to_thread(self._decide, judged, check.role, form)

    def _decide(self, judged: JudgedItem, role: str, form: Form) -> Graded:
        key = item_key(self._log, judged)
        result = result_of(self._log, form.digest, key)
        if result is None or len(result.reviews) < REVIEWS:
            try:
                assign_by_role(self._log, [(judged, role)], form)
            except InvalidRequest as lacking:  # the answer is kept, and handed out once there are enough
                return Graded(None, AWAITING, lacking.message)
        if result is None or result.score is None:
            given = 0 if result is None else len(result.reviews)
            return Graded(None, AWAITING, _open_words(given), key)
        share = (result.score - form.lowest) / (form.highest - form.lowest)
        return Graded(share, None, _decided_words(result), key)

    def _form(self, name: str) -> Form:
        if name not in self._forms:
            form = load_rubric(name)
            if form.mode != "single":
                raise InvalidRequest(
                    f"form {name!r} compares two answers; a check needs one that rates a single answer.",
                    param="form",
                )
            self._forms[name] = form
        return self._forms[name]


def judged_item(log: EventLog, item: Item, answer: ItemAnswer, origin: Origin) -> JudgedItem:
    """An answer of a fixed set as reviewers get it; its id tells the answers to one item apart, and nobody can try from it who gave them."""
    said = JudgedAnswer(
        tuple(
            turn.text + "".join(f"\n→ {call.name}({call.arguments})" for call in turn.calls)
            for turn in answer.turns
        ),
        origin.alias,
        origin.behaviour,
        tuple(turn.generation for turn in answer.turns if turn.generation),
    )
    mark = log.keyed_digest("\0".join(("expert", origin.behaviour, *said.texts)))
    return JudgedItem(
        id=f"{item.id}.{mark[:MARK_HEX]}",
        turns=item.turns,
        sides={"a": said},
        reference=(item.reference,) * len(item.turns) if item.reference else (),
        slices=item.slices,
        subject=SUBJECT,
    )


def expert_items(log: EventLog, run: str | None) -> ItemSet:
    """The answers of one run, or of all runs, that have expert checks; each once. Blocks."""
    runs = [started.run for started in runs_of(log)] if run is None else [run]
    found = {item.id: item for one in runs for item in _of_run(log, one)}
    if not found:
        raise InvalidRequest(
            f"{run or 'the log'} has no answer with an expert check; `tiltyard eval run` makes them",
            param="items",
        )
    return ItemSet(run or "evals", digest_of_json(sorted(found)), tuple(found.values()))


def _of_run(log: EventLog, run: str) -> Iterator[JudgedItem]:
    for row in read_evidence(log, run).rows.values():
        if row.answer.turns and any(isinstance(check, Expert) for check in row.item.checks):
            yield judged_item(log, row.item, row.answer, Origin(run, row.event.alias, row.event.behaviour))


def _open_words(given: int) -> str:
    if given < REVIEWS:
        return f"{given} of {REVIEWS} reviews are there"
    return "both reviews are there and differ; somebody has to adjudicate"


def _decided_words(result: ItemResult) -> str:
    said = " and ".join(f"{one.score:g}" for one in result.reviews if one.score is not None)
    decided = result.adjudication
    return f"reviewers gave {said}" + ("" if decided is None else f", adjudicated {decided.score:g}")

"""Experts for slices where a mistake costs much (medicine, law, finance, safety): named, blind, two an item, adjudicated.

An item goes to two reviewers whose roles name its slice, drawn from those with the least to do. Each sees the answers without names, in an order
of its own, and nothing that the other said. Where the two differ, an adjudicator who has not reviewed the item decides, and sees both reviews.
Results are events beside votes and judgments; an item whose reviews differ and that nobody has adjudicated is open, which is no pass.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiltyard.errors import ContentMissing, InvalidRequest, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    Choice,
    ContentRef,
    JudgedSide,
    ReviewAssigned,
    ReviewerNamed,
    ReviewGiven,
    Side,
)
from tiltyard.identity.canonical import Digest
from tiltyard.judge.bias import POINTS
from tiltyard.judge.fence import write_question
from tiltyard.judge.items import Item, SideOrder
from tiltyard.judge.rubric import Rubric
from tiltyard.judge.run import SOURCE, item_key, question_key
from tiltyard.rating.agreement import Label, Level, krippendorff_alpha, raw_agreement
from tiltyard.rating.proportions import Interval, mean_interval, share_interval

ADJUDICATOR: Final = "adjudicator"
REVIEWS: Final = 2
SAME_RATING: Final = 1.0
"""Two ratings that differ by no more agree; their mean is the result."""


@dataclass(frozen=True, slots=True)
class Reviewer:
    """Somebody who may review."""

    id: str
    name: str
    """Empty once the person was erased."""
    roles: frozenset[str]


@dataclass(frozen=True, slots=True)
class Task:
    """One review to be given; `text` is all that the reviewer sees."""

    item: Item
    key: str
    reviewer: str
    role: str
    order: SideOrder
    adjudicates: bool
    text: str


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What experts found of one item."""

    item: str
    item_id: str
    reviews: tuple[ReviewGiven, ...]
    adjudication: ReviewGiven | None

    @property
    def agreed(self) -> bool:
        """Whether both reviews say the same (ratings within a point)."""
        if len(self.reviews) < REVIEWS:
            return False
        first, second = self.reviews[:REVIEWS]
        if first.score is not None and second.score is not None:
            return abs(first.score - second.score) <= SAME_RATING
        return first.verdict == second.verdict

    @property
    def open(self) -> bool:
        """Whether a review or an adjudication is missing."""
        return self.adjudication is None and not self.agreed

    @property
    def verdict(self) -> Choice | None:
        """The experts' verdict on a pair; `None` while open."""
        if self.adjudication is not None:
            return self.adjudication.verdict
        return self.reviews[0].verdict if self.agreed else None

    @property
    def score(self) -> float | None:
        """The experts' rating of a single answer; `None` while open."""
        if self.adjudication is not None:
            return self.adjudication.score
        scores = [one.score for one in self.reviews if one.score is not None]
        return sum(scores) / len(scores) if self.agreed and scores else None


@dataclass(frozen=True, slots=True)
class ExpertReport:
    """Of one form and slice."""

    slice: str
    items: int
    open: int
    """Items that have no result yet: a gate that asks for experts holds until this is 0."""
    agreement: Interval
    """Share of doubly reviewed items on which both reviewers say the same."""
    alpha: Interval
    """Krippendorff's, among all reviews."""
    adjudicated: int
    behaviours: Mapping[str, Interval]
    """By behaviour or identity: win rate of pairs, ties as halves, or mean rating; closed items alone."""


def name_reviewer(log: EventLog, name: str, roles: Sequence[str], *, reviewer: str | None = None) -> str:
    """Name a reviewer, or change one's roles; returns the id. Blocks."""
    if not name.strip():
        raise InvalidRequest("a reviewer has a name", param="name")
    who = reviewer or f"rev_{secrets.token_hex(8)}"
    words = log.content(who, name.encode())
    data = ReviewerNamed(reviewer=who, name=words.ref, roles=tuple(sorted(set(roles))))
    log.append_blocking(data, subject=who, source=SOURCE, contents=[words])
    return who


def reviewers(log: EventLog) -> dict[str, Reviewer]:
    """Everybody who was named, with the latest roles; blocks."""
    found: dict[str, ReviewerNamed] = {}
    for event in log.read(types=(ReviewerNamed,)):
        if isinstance(event.data, ReviewerNamed):
            found[event.data.reviewer] = event.data
    return {who: Reviewer(who, _words(log, data), frozenset(data.roles)) for who, data in found.items()}


def assign(
    log: EventLog, items: Sequence[Item], form: Rubric, *, slice_name: str, seed: int = 0
) -> list[ReviewAssigned]:
    """Give every item of a slice to two reviewers of its value; what is assigned already stays.

    Raises `InvalidRequest` naming a role that fewer than two reviewers have.
    """
    people = reviewers(log)
    before = _assignments(log, form.digest)
    load = dict.fromkeys(people, 0)
    for one in before:
        load[one.reviewer] = load.get(one.reviewer, 0) + 1
    made: list[ReviewAssigned] = []
    for item in items:
        role = item.slices.get(slice_name)
        if role is None:
            continue
        key = item_key(log, item)
        has = {one.reviewer for one in before if one.item == key}
        able = [who for who, one in people.items() if role in one.roles and who not in has]
        missing = REVIEWS - len(has)
        if missing > len(able):
            raise InvalidRequest(
                f"item {item.id!r} needs {REVIEWS} reviewers for {role!r}; {len(able) + len(has)} have that role. Name "
                "more with `tiltyard judge experts name`",
                param="slice",
            )
        drawn = sorted(able, key=lambda who: (load[who], _draw(seed, key, who)))[:missing]  # used at once
        for who in drawn:
            data = ReviewAssigned(
                item=key,
                item_id=item.id,
                reviewer=who,
                role=role,
                order=_order(item, _draw(seed, key, who, "order")),
                form=form.digest,
                seed=seed,
            )
            log.append_blocking(data, subject=key, source=SOURCE)
            load[who] += 1
            made.append(data)
    return made


def tasks_of(log: EventLog, items: Sequence[Item], form: Rubric, reviewer: str) -> list[Task]:
    """What a reviewer has to do: assigned reviews first, then adjudications; raises `NotFound` for nobody."""
    people = reviewers(log)
    if reviewer not in people:
        raise NotFound(f"no reviewer has the id {reviewer!r}", param="reviewer")
    by_key = {item_key(log, item): item for item in items}
    results = {one.item: one for one in results_of(log, form.digest)}
    tasks: list[Task] = []
    for one in _assignments(log, form.digest):
        item = by_key.get(one.item)
        done = one.item in results and any(given.reviewer == reviewer for given in results[one.item].reviews)
        if one.reviewer == reviewer and item is not None and not done:
            tasks.append(
                Task(item, one.item, reviewer, one.role, one.order, False, _shown(form, item, one.order))
            )
    if ADJUDICATOR in people[reviewer].roles:
        for key, result in results.items():
            item = by_key.get(key)
            own = any(given.reviewer == reviewer for given in result.reviews)
            if item is None or own or not result.open or len(result.reviews) < REVIEWS:
                continue
            order = _order(item, 0)
            reviews = "\n\n".join(
                f"--- Review {number}: {given.verdict or given.score}\n{_reasons(log, given)}"
                for number, given in enumerate(result.reviews, 1)
            )
            tasks.append(
                Task(
                    item, key, reviewer, ADJUDICATOR, order, True, f"{_shown(form, item, order)}\n\n{reviews}"
                )
            )
    return tasks


def give(
    log: EventLog,
    task: Task,
    form: Rubric,
    *,
    place: str | None = None,
    score: float | None = None,
    reasons: str = "",
) -> ReviewGiven:
    """Record a review; `place` is `first`, `second`, `tie` or `both_bad`, as the reviewer saw the answers.

    Raises `InvalidRequest` for a verdict that is not the form's, `Conflict` for a second review. Blocks.
    """
    verdict: Choice | None = None
    if form.mode == "pairwise":
        places: dict[str, Choice] = {"first": "a", "second": "b", "tie": "tie", "both_bad": "both_bad"}
        if place not in places or score is not None:
            raise InvalidRequest(
                f"verdict is {place!r}; on a pair it is {', '.join(places)}", param="verdict"
            )
        turned: dict[Choice, Choice] = {"a": "b", "b": "a", "tie": "tie", "both_bad": "both_bad"}
        verdict = turned[places[place]] if task.order == "ba" else places[place]
    elif score is None or place is not None or not form.lowest <= score <= form.highest:
        raise InvalidRequest(
            f"rating is {score}; it must be {form.lowest:g} to {form.highest:g}", param="score"
        )
    words = log.content(task.reviewer, reasons.encode()) if reasons else None
    data = ReviewGiven(
        item=task.key,
        item_id=task.item.id,
        reviewer=task.reviewer,
        role=task.role,
        form=form.digest,
        sides=tuple(_side(side, task.item) for side in task.item.sides),
        slices=dict(task.item.slices),
        question=question_key(log, task.item),
        verdict=verdict,
        score=score,
        adjudicates=task.adjudicates,
        reasons=None if words is None else words.ref,
    )
    log.append_blocking(data, subject=task.key, source=SOURCE, contents=[] if words is None else [words])
    return data


def results_of(log: EventLog, form: Digest) -> list[ItemResult]:
    """Every item that has a review under a form; blocks."""
    given: dict[str, list[ReviewGiven]] = {}
    for event in log.read(types=(ReviewGiven,)):
        if isinstance(event.data, ReviewGiven) and event.data.form == form:
            given.setdefault(event.data.item, []).append(event.data)
    return [
        ItemResult(
            item,
            of[0].item_id,
            tuple(one for one in of if not one.adjudicates),
            next((one for one in of if one.adjudicates), None),
        )
        for item, of in given.items()
    ]


def expert_report(
    log: EventLog, form: Rubric, *, slice_name: str | None = None, confidence: float = 0.95
) -> list[ExpertReport]:
    """What experts found, all together or by the values of a slice; assigned items without reviews are open. Blocks."""
    results = {one.item: one for one in results_of(log, form.digest)}
    assigned = {one.item: one.role for one in _assignments(log, form.digest)}
    groups: dict[str, list[str]] = {}
    for item in {**assigned, **results}:
        result = results.get(item)
        value = assigned.get(item, "")
        if result is not None and slice_name is not None:
            value = result.reviews[0].slices.get(slice_name, "") if result.reviews else value
        groups.setdefault("all" if slice_name is None else value, []).append(item)
    return [
        _report(name, items, [results[item] for item in items if item in results], form, confidence)
        for name, items in sorted(groups.items())
    ]


def _report(
    name: str, items: Sequence[str], results: Sequence[ItemResult], form: Rubric, confidence: float
) -> ExpertReport:
    double = [one for one in results if len(one.reviews) >= REVIEWS]
    units: list[list[Label]] = [
        [given.verdict or given.score or 0.0 for given in one.reviews] for one in double
    ]
    level: Level = "nominal" if form.mode == "pairwise" else "interval"
    questions = [one.reviews[0].question for one in double]
    closed = [one for one in results if not one.open]
    values: dict[str, list[tuple[float, str]]] = {}
    for one in closed:
        about = (one.reviews or (one.adjudication,))[0]
        if about is None:
            continue
        for side in about.sides:
            value = one.score
            if one.verdict is not None:
                value = POINTS[one.verdict] if side.side == "a" else 1 - POINTS[one.verdict]
            if value is not None:
                values.setdefault(side.behaviour or side.identity, []).append((value, about.question))
    interval = share_interval if form.mode == "pairwise" else mean_interval
    return ExpertReport(
        slice=name,
        items=len(items),
        open=len(items) - len(closed),
        agreement=raw_agreement(
            [str(one.agreed) for one in double],
            ["True"] * len(double),
            clusters=questions,
            confidence=confidence,
        ),
        alpha=krippendorff_alpha(units, level=level, clusters=questions, confidence=confidence),
        adjudicated=sum(one.adjudication is not None for one in results),
        behaviours={
            who: interval([value for value, _ in of], clusters=[q for _, q in of], confidence=confidence)
            for who, of in sorted(values.items())
        },
    )


def _assignments(log: EventLog, form: Digest) -> list[ReviewAssigned]:
    return [
        event.data
        for event in log.read(types=(ReviewAssigned,))
        if isinstance(event.data, ReviewAssigned) and event.data.form == form
    ]


def _shown(form: Rubric, item: Item, order: SideOrder) -> str:
    """The form as a person reads it: no names, and the answers in this order."""
    return "\n\n".join(str(message["content"]) for message in write_question(form, item, order).messages)


def _order(item: Item, drawn: int) -> SideOrder:
    if item.mode == "single":
        return "single"
    return "ba" if drawn & 1 else "ab"


def _draw(seed: int, *parts: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join((str(seed), *parts)).encode()).digest()[:8], "big")


def _side(side: Side, item: Item) -> JudgedSide:
    answer = item.sides[side]
    return JudgedSide(
        side=side, identity=answer.identity, behaviour=answer.behaviour, generations=answer.generations
    )


def _reasons(log: EventLog, given: ReviewGiven) -> str:
    return _read(log, given.reasons)


def _read(log: EventLog, reasons: ContentRef | None) -> str:
    if reasons is None:
        return ""
    with log.words("evaluate", reader="judge/experts") as words:
        return words.read(reasons).decode()


def _words(log: EventLog, data: ReviewerNamed) -> str:
    try:
        return log.own_words("judge/experts").read(data.name).decode()
    except ContentMissing:  # erased: the reviews stay, the name is gone
        return ""

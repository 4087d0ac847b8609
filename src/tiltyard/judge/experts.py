"""Experts for slices where a mistake costs much (medicine, law, finance, safety): named, blind, two an item, adjudicated.

An item goes to two reviewers whose roles name its slice, drawn from those with the least to do. Each sees the answers without names, in an order
of its own, and nothing that the other said. Where the two differ, an adjudicator who has not reviewed the item decides, and sees both reviews.
Results are events beside votes and judgments; an item whose reviews differ and that nobody has adjudicated is open, which is no pass.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tiltyard.errors import Conflict, ContentMissing, InvalidRequest, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    Choice,
    ContentRef,
    JudgedSide,
    ReviewAssigned,
    ReviewerNamed,
    ReviewGiven,
    RubricRegistered,
    Side,
)
from tiltyard.judge.expert_results import REVIEWS, assignments, results_of
from tiltyard.judge.fence import write_question
from tiltyard.judge.items import Item, SideOrder
from tiltyard.judge.rubric import Rubric
from tiltyard.judge.run import SOURCE, item_key, question_key

ADJUDICATOR: Final = "adjudicator"
PLACES: Final[dict[Choice, str]] = {"a": "first", "b": "second", "tie": "tie", "both_bad": "both_bad"}
"""Verdicts as somebody says them who sees side a first, as adjudicators do."""


@dataclass(frozen=True, slots=True)
class Reviewer:
    """Somebody who may review."""

    id: str
    name: str
    """Empty once the person was erased."""
    roles: frozenset[str]


@dataclass(frozen=True, slots=True)
class EarlierReview:
    """A review as an adjudicator sees it: what it says, and of nobody."""

    place: str | None
    """`first`, `second`, `tie` or `both_bad`, in the adjudicator's order."""
    score: float | None
    reasons: str


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
    reviews: tuple[EarlierReview, ...] = ()
    """For an adjudicator: both reviews."""


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
    wanted = [(item, role) for item in items if (role := item.slices.get(slice_name)) is not None]
    return assign_by_role(log, wanted, form, seed=seed)


def assign_by_role(
    log: EventLog, wanted: Sequence[tuple[Item, str]], form: Rubric, *, seed: int = 0
) -> list[ReviewAssigned]:
    """Give every item to two reviewers with the role beside it, as `assign` does. Blocks."""
    people = reviewers(log)
    before = assignments(log, form.digest)
    load = Counter(one.reviewer for one in before)
    made: list[ReviewAssigned] = []
    for item, role in wanted:
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
    if made:
        _register(log, form)
    return made


def tasks_of(log: EventLog, items: Sequence[Item], form: Rubric, reviewer: str) -> list[Task]:
    """What a reviewer has to do: assigned reviews first, then adjudications; raises `NotFound` for nobody."""
    people = reviewers(log)
    if reviewer not in people:
        raise NotFound(f"no reviewer has the id {reviewer!r}", param="reviewer")
    by_key = {item_key(log, item): item for item in items}
    results = {one.item: one for one in results_of(log, form.digest)}
    tasks: list[Task] = []
    for one in assignments(log, form.digest):
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
            reviews = tuple(
                EarlierReview(
                    None if given.verdict is None else PLACES[given.verdict],
                    given.score,
                    _reasons(log, given),
                )
                for given in result.reviews
            )
            words = "\n\n".join(
                f"--- Review {number}: {one.place or one.score}\n{one.reasons}"
                for number, one in enumerate(reviews, 1)
            )
            text = f"{_shown(form, item, order)}\n\n{words}"
            tasks.append(Task(item, key, reviewer, ADJUDICATOR, order, True, text, reviews))
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


def _register(log: EventLog, form: Rubric) -> None:
    """Say once what the form is, so that a review can be understood."""
    data = RubricRegistered(rubric=form.digest, name=form.name, rules=form.content())
    try:
        log.append_blocking(data, subject=form.name, source=SOURCE)
    except Conflict:
        return  # it is in the log


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

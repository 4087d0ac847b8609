"""What experts found: each item's result, agreement among reviewers, and what is open.

Two reviews that agree are a result; where they differ only an adjudication is one. Until then an item is open, which is no pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiltyard.events.log import EventLog
from tiltyard.events.schema import Choice, ReviewAssigned, ReviewGiven
from tiltyard.identity.canonical import Digest
from tiltyard.judge.bias import POINTS
from tiltyard.judge.rubric import Rubric
from tiltyard.rating.agreement import Label, Level, krippendorff_alpha, raw_agreement
from tiltyard.rating.proportions import Interval, mean_interval, share_interval

REVIEWS: Final = 2
SAME_RATING: Final = 1.0
"""Two ratings that differ by no more agree; their mean is the result."""


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


def results_of(log: EventLog, form: Digest) -> list[ItemResult]:
    """Every item that has a review under a form; blocks."""
    given: dict[str, list[ReviewGiven]] = {}
    for event in log.read(types=(ReviewGiven,)):
        if isinstance(event.data, ReviewGiven) and event.data.form == form:
            given.setdefault(event.data.item, []).append(event.data)
    return [item_result(item, of) for item, of in given.items()]


def result_of(log: EventLog, form: Digest, item: str) -> ItemResult | None:
    """What experts said of one item under a form; `None` before the first review. Blocks."""
    given = [
        event.data
        for event in log.read(types=(ReviewGiven,), subject=item)
        if isinstance(event.data, ReviewGiven) and event.data.form == form
    ]
    return item_result(item, given) if given else None


def expert_report(
    log: EventLog, form: Rubric, *, slice_name: str | None = None, confidence: float = 0.95
) -> list[ExpertReport]:
    """What experts found, all together or by the values of a slice; assigned items without reviews are open. Blocks."""
    results = {one.item: one for one in results_of(log, form.digest)}
    assigned = {one.item: one.role for one in assignments(log, form.digest)}
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


def item_result(item: str, given: Sequence[ReviewGiven]) -> ItemResult:
    """What those reviews of one item under one form come to; at least one is given."""
    return ItemResult(
        item,
        given[0].item_id,
        tuple(one for one in given if not one.adjudicates),
        next((one for one in given if one.adjudicates), None),
    )


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


def assignments(log: EventLog, form: Digest) -> list[ReviewAssigned]:
    """Every review under a form that was handed out; blocks."""
    return [
        event.data
        for event in log.read(types=(ReviewAssigned,))
        if isinstance(event.data, ReviewAssigned) and event.data.form == form
    ]

"""Whether a judge is still the same: a sentinel set that it judges again and again, each time compared with the first.

A judge behind a name may change without a word. `next_sample` says which repetition is due; `drift_since` compares two of them item by
item: what share of verdicts differs, and whether they lean one way.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tiltyard.errors import InvalidRequest
from tiltyard.judge.judgments import Judgments, Line
from tiltyard.rating.proportions import Interval, mean_interval, share_interval


@dataclass(frozen=True, slots=True)
class Drift:
    """One repetition of a sentinel set against another."""

    line: Line
    baseline: int
    sample: int
    items: int
    """Judgments that both have, each order by itself."""
    changed: Interval
    """Share that says something else than before."""
    shift: Interval
    """Mean of now minus then: points of side a, or rating."""
    unscored_before: int
    unscored_now: int

    @property
    def leans(self) -> bool:
        """Whether what changed surely leans one way."""
        return not self.shift.lower <= 0 <= self.shift.upper


def next_sample(judgments: Judgments | None, items: Collection[str], orders: int) -> int:
    """The repetition that is due: the latest one if it is not complete, else one more; 0 at first."""
    if judgments is None:
        return 0
    counts: dict[int, int] = {}
    for one in judgments.of_items(items).all:
        counts[one.data.sample] = counts.get(one.data.sample, 0) + 1
    if not counts:
        return 0
    latest = max(counts)
    return latest if counts[latest] < len(set(items)) * orders else latest + 1


def drift_since(judgments: Judgments, sample: int, *, baseline: int = 0, confidence: float = 0.95) -> Drift:
    """Compare two repetitions; raises `InvalidRequest` when they have no item in common."""
    then, now = _values(judgments, baseline), _values(judgments, sample)
    common = [key for key in then if key in now]
    both = [
        (before, after, question)
        for (before, question), (after, _) in ((then[key], now[key]) for key in common)
        if before is not None and after is not None
    ]
    if not both:
        raise InvalidRequest(
            f"repetitions {baseline} and {sample} of {judgments.line.label} have no scored item in common",
            param="sample",
        )
    questions = [question for _, _, question in both]
    return Drift(
        line=judgments.line,
        baseline=baseline,
        sample=sample,
        items=len(both),
        changed=share_interval(
            [before != after for before, after, _ in both], clusters=questions, confidence=confidence
        ),
        shift=mean_interval(
            [after - before for before, after, _ in both], clusters=questions, confidence=confidence
        ),
        unscored_before=sum(then[key][0] is None for key in common),
        unscored_now=sum(now[key][0] is None for key in common),
    )


def _values(judgments: Judgments, sample: int) -> dict[tuple[str, str], tuple[float | None, str]]:
    points = {"a": 1.0, "b": 0.0, "tie": 0.5, "both_bad": 0.5}
    found: dict[tuple[str, str], tuple[float | None, str]] = {}
    for one in judgments.all:
        data = one.data
        if data.sample == sample:
            value = data.score if data.mode == "single" else points.get(data.verdict or "")
            found[data.item, data.order] = (value, data.question)
    return found

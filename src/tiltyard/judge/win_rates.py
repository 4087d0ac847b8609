"""How often each identity wins by one judge: a share with an interval for each behaviour, never across judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tiltyard.events.log import EventLog
from tiltyard.identity.canonical import Digest
from tiltyard.judge.judgments import Judgments, Line, read_lines
from tiltyard.rating.proportions import mean_interval, share_interval


@dataclass(frozen=True, slots=True)
class JudgedBehaviour:
    """What one judge made of one identity."""

    source: str
    """The line: judge and rubric with their digests. Two sources never share a chart line."""
    behaviour: Digest | None
    """`None` where the judged set does not say."""
    identity: str
    measure: str
    """`win_rate` (ties and orders that differ are halves) or `rating` (the rubric's scale)."""
    estimate: float
    lower: float
    upper: float
    n: int
    """Pairs, or ratings."""
    unscored: int
    """Left out, since no verdict could be read in one order or the other."""
    inconsistent: int
    """Counted as halves, since the two orders differ."""


def judged_behaviours(
    log: EventLog, *, confidence: float = 0.95, slices: Mapping[str, str] | None = None
) -> list[JudgedBehaviour]:
    """Read the win rate and rating of every behaviour by every judge; intervals know that a question is asked more than once.

    `slices` keeps the items that have all of these values. Sorted by source, then the best first. Blocks.
    """
    wanted = (slices or {}).items()
    found: list[JudgedBehaviour] = []
    for judgments in read_lines(log).values():
        if wanted:
            kept = tuple(one for one in judgments.all if wanted <= one.data.slices.items())
            judgments = Judgments(judgments.line, kept)  # noqa: PLW2901
        found += behaviours_of(judgments, confidence=confidence)
    return sorted(found, key=lambda one: (one.source, one.measure, -one.estimate, one.identity))


def behaviours_of(judgments: Judgments, *, confidence: float = 0.95) -> list[JudgedBehaviour]:
    """The same for the judgments of one judge."""
    return _win_rates(judgments, confidence) + _ratings(judgments, confidence)


@dataclass(slots=True)
class _Tally:
    """One identity; what is judged more than once (`sample`) counts once, with its mean."""

    identity: str
    behaviour: Digest | None
    values: dict[str, list[float]] = field(default_factory=dict)
    """By item."""
    questions: dict[str, str] = field(default_factory=dict)
    """By item."""
    unscored: int = 0
    inconsistent: int = 0

    def add(self, item: str, question: str, value: float) -> None:
        self.values.setdefault(item, []).append(value)
        self.questions[item] = question

    def row(self, line: Line, measure: str, confidence: float) -> JudgedBehaviour:
        means = [sum(of) / len(of) for of in self.values.values()]
        interval = share_interval if measure == "win_rate" else mean_interval
        found = interval(means, clusters=list(self.questions.values()), confidence=confidence)
        return JudgedBehaviour(
            line.label,
            self.behaviour,
            self.identity,
            measure,
            found.estimate,
            found.lower,
            found.upper,
            found.n,
            self.unscored,
            self.inconsistent,
        )


def _win_rates(judgments: Judgments, confidence: float) -> list[JudgedBehaviour]:
    tallies: dict[str, _Tally] = {}
    for pair in judgments.pairs():
        points = pair.points
        for side, won in zip(pair.sides, (points, None if points is None else 1 - points), strict=True):
            tally = tallies.setdefault(side.behaviour or side.identity, _Tally(side.identity, side.behaviour))
            if won is None:
                tally.unscored += 1
                continue
            tally.inconsistent += pair.outcome == "inconsistent"
            tally.add(f"{pair.item}{side.side}", pair.question, won)
    return [tally.row(judgments.line, "win_rate", confidence) for tally in tallies.values()]


def _ratings(judgments: Judgments, confidence: float) -> list[JudgedBehaviour]:
    tallies: dict[str, _Tally] = {}
    for one in judgments.singles():
        side = one.data.sides[0]
        tally = tallies.setdefault(side.behaviour or side.identity, _Tally(side.identity, side.behaviour))
        if one.data.score is None:
            tally.unscored += 1
        else:
            tally.add(one.data.item, one.data.question, one.data.score)
    return [tally.row(judgments.line, "rating", confidence) for tally in tallies.values()]

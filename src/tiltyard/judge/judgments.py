"""Judgments as the log has them: one line a judge, both orders of a pair together.

Scores of two judges do not belong in one number or one line. A `Line` is a judge, what its server called it and a rubric, and
everything that adds judgments up takes a `Line`'s judgments alone: `Judgments` has exactly one, and there is no way to make
one of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.schema import Choice, JudgedSide, JudgeRegistered, JudgmentMade
from tiltyard.identity.canonical import Digest

Outcome = Literal["a", "b", "tie", "inconsistent"]
"""Of both orders together; `inconsistent`: they differ."""
Purpose = Literal["verdict", "attack", "check"]
DIGEST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Line:
    """What judgments must share to be added up."""

    judge: Digest
    answered_as: str
    rubric: Digest
    judge_name: str

    @property
    def label(self) -> str:
        """Names it in a table or a chart: `gpt-4@1a2b3c4d5e6f/9f8e7d6c5b4a`, judge and rubric."""
        judge, rubric = (one.removeprefix("sha256:")[:DIGEST_SHOWN] for one in (self.judge, self.rubric))
        return f"{self.judge_name}@{judge}/{rubric}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One judgment and when it was made."""

    data: JudgmentMade
    sequence: int
    time_us: int

    @property
    def line(self) -> Line:
        """Whose it is."""
        return Line(self.data.judge, self.data.answered_as, self.data.rubric, self.data.judge_name)


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """What a judge said of a pair in both orders, by the item's sides."""

    item: str
    item_id: str
    question: str
    sides: tuple[JudgedSide, JudgedSide]
    slices: dict[str, str]
    ab: Choice | None
    """With side a shown first; `None`: unscored."""
    ba: Choice | None
    """With side b shown first; `None`: unscored."""
    sample: int
    time_us: int

    @property
    def outcome(self) -> Outcome | None:
        """The winner if both orders agree; `None` where one of them is unscored."""
        if self.ab is None or self.ba is None:
            return None
        if self.ab != self.ba:
            return "inconsistent"
        return "tie" if self.ab == "both_bad" else self.ab

    @property
    def points(self) -> float | None:
        """Of side a: 1 won, 0 lost, one half for a tie and for orders that differ; `None`: unscored."""
        outcome = self.outcome
        return None if outcome is None else {"a": 1.0, "b": 0.0, "tie": 0.5, "inconsistent": 0.5}[outcome]


@dataclass(frozen=True, slots=True)
class Judgments:
    """All judgments of one line, oldest first. Raises `InvalidRequest` when there are two lines among them."""

    line: Line
    all: tuple[Recorded, ...]

    def __post_init__(self) -> None:
        others = sorted({one.line.label for one in self.all if one.line != self.line})
        if others:
            raise InvalidRequest(
                f"judgments of {self.line.label} and of {', '.join(others)} do not belong together; "
                "a bridge (`tiltyard judge bridge`) says what one means in terms of the other",
                param="judge",
            )

    def of_items(self, items: Iterable[str]) -> Judgments:
        """Those of some items (keys, `itm_…`)."""
        wanted = set(items)
        return Judgments(self.line, tuple(one for one in self.all if one.data.item in wanted))

    def pairs(self) -> list[PairVerdict]:
        """Put both orders of each pair together; a pair of which one order is missing is left out."""
        orders: dict[tuple[str, int], dict[str, Recorded]] = {}
        for one in self.all:
            if one.data.mode == "pairwise":
                orders.setdefault((one.data.item, one.data.sample), {})[one.data.order] = one
        return [_pair(both["ab"], both["ba"]) for both in orders.values() if "ab" in both and "ba" in both]

    def singles(self) -> list[Recorded]:
        """Ratings of single answers, unscored ones among them."""
        return [one for one in self.all if one.data.mode == "single"]


def read_lines(log: EventLog, *, after: int = 0, purpose: Purpose = "verdict") -> dict[Line, Judgments]:
    """Read every judgment of a purpose beyond a sequence, apart by line; blocks."""
    found: dict[Line, list[Recorded]] = {}
    for one in read_judgments(log, after=after):
        if one.data.purpose != purpose:
            continue
        found.setdefault(one.line, []).append(one)
    return {line: Judgments(line, tuple(judgments)) for line, judgments in found.items()}


def read_judgments(log: EventLog, *, after: int = 0) -> Iterator[Recorded]:
    """Go through every judgment, oldest first."""
    for event in log.read(after=after, types=(JudgmentMade,)):
        if isinstance(event.data, JudgmentMade):  # not a later version, which this one cannot read
            yield Recorded(event.data, event.sequence, event.time_us)


def own_behaviours(log: EventLog, line: Line) -> set[str]:
    """What a judge itself is called where it is judged: its name, and its behaviour digest if the log knows one; blocks."""
    own = {line.judge_name}
    for event in log.read(types=(JudgeRegistered,)):
        if isinstance(event.data, JudgeRegistered) and event.data.judge == line.judge:
            behaviour = event.data.specification.get("behaviour")
            own |= {behaviour} if isinstance(behaviour, str) else set()
    return own


def choose_line(lines: Sequence[Line], judge: str, rubric: str | None = None) -> Line:
    """Find the line that a judge's name or digest, and a rubric's digest, mean; raises `NotFound` if not exactly one."""

    def means(digest: str, name: str) -> bool:
        return bool(name) and digest.removeprefix("sha256:").startswith(name.removeprefix("sha256:"))

    found = [
        line
        for line in lines
        if (judge in {line.judge_name, line.label} or means(line.judge, judge))
        and (rubric is None or means(line.rubric, rubric))
    ]
    if len(found) != 1:
        there = "; ".join(line.label for line in (found or lines)) or "none"
        how = "more than one line of judgments is" if found else "no line of judgments is"
        raise NotFound(f"{how} called {judge!r}: {there}. Name one by its label.", param="judge")
    return found[0]


def _pair(ab: Recorded, ba: Recorded) -> PairVerdict:
    data = ab.data
    a, b = sorted(data.sides, key=lambda one: one.side)
    return PairVerdict(
        item=data.item,
        item_id=data.item_id,
        question=data.question,
        sides=(a, b),
        slices=data.slices,
        ab=data.verdict,
        ba=ba.data.verdict,
        sample=data.sample,
        time_us=max(ab.time_us, ba.time_us),
    )

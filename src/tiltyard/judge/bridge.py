"""An upgrade of a judge goes over a bridge: both judges score the same sample, and the map between them is kept with its doubt.

Trend lines break there. A `TrendLine` holds the points of one `Line`; `across` makes a `CrossedLine` of it, another type, which no chart of the
new judge's own line takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import JudgesBridged
from tiltyard.judge.judgments import Judgments, Line, Recorded
from tiltyard.judge.run import SOURCE
from tiltyard.judge.win_rates import behaviours_of
from tiltyard.rating.proportions import Interval, share_interval
from tiltyard.rating.score_bridge import (
    OUTCOMES,
    RatingBridge,
    VerdictBridge,
    bridge_ratings,
    bridge_verdicts,
)

DAY_US: Final = 86_400_000_000
LEAST_SEPARATION: Final = 1e-12


@dataclass(frozen=True, eq=False)
class Bridge:
    """From one line to another."""

    old: Line
    new: Line
    map: RatingBridge | VerdictBridge
    agreement: Interval
    """Share of the sample on which both say the same."""

    @property
    def measure(self) -> Literal["verdict", "rating"]:
        """What both gave."""
        return "rating" if isinstance(self.map, RatingBridge) else "verdict"

    @property
    def breaks(self) -> bool:
        """Whether the two scales surely differ: the shift's interval leaves out 0."""
        return not self.map.shift.lower <= 0 <= self.map.shift.upper


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """A window of time."""

    start_us: int
    end_us: int
    interval: Interval


@dataclass(frozen=True, slots=True)
class TrendLine:
    """How one identity did by one judge over time."""

    line: Line
    identity: str
    measure: str
    points: tuple[TrendPoint, ...]


@dataclass(frozen=True, slots=True)
class CrossedLine:
    """An old judge's line on a new one's scale: to be drawn apart, its intervals hold the bridge's doubt."""

    of: Line
    onto: Line
    identity: str
    points: tuple[TrendPoint, ...]


def build_bridge(old: Judgments, new: Judgments, *, confidence: float = 0.95) -> Bridge:
    """Build one from the items that both judged; raises `InvalidRequest` for too few, or for one judge with itself.

    Only first askings count (`sample` 0); pairs whose orders differ are ties.
    """
    if old.line == new.line:
        raise InvalidRequest(f"{old.line.label} needs no bridge to itself", param="new")
    scores_old, scores_new = _ratings(old), _ratings(new)
    verdicts_old, verdicts_new = _verdicts(old), _verdicts(new)
    common = [item for item in verdicts_old if item in verdicts_new]
    rated = [item for item in scores_old if item in scores_new]
    if len(rated) > len(common):
        x, y = [scores_old[item][0] for item in rated], [scores_new[item][0] for item in rated]
        questions = [scores_old[item][1] for item in rated]
        found: RatingBridge | VerdictBridge = bridge_ratings(x, y, clusters=questions, confidence=confidence)
        same = [abs(a - b) < LEAST_SEPARATION for a, b in zip(x, y, strict=True)]
    else:
        first, second = ([of[item][0] for item in common] for of in (verdicts_old, verdicts_new))
        questions = [verdicts_old[item][1] for item in common]
        found = bridge_verdicts(first, second, clusters=questions, confidence=confidence)
        same = [a == b for a, b in zip(first, second, strict=True)]
    agreement = share_interval(same, clusters=questions, confidence=confidence)
    return Bridge(old.line, new.line, found, agreement)


def record_bridge(log: EventLog, bridge: Bridge) -> JudgesBridged:
    """Append the bridge to the log; blocks."""
    shift = bridge.map.shift
    data = JudgesBridged(
        old=bridge.old.judge,
        new=bridge.new.judge,
        old_label=bridge.old.label,
        new_label=bridge.new.label,
        measure=bridge.measure,
        items=bridge.map.n,
        shift=shift.estimate,
        shift_lower=shift.lower,
        shift_upper=shift.upper,
        agreement=bridge.agreement.estimate,
        map=_written(bridge.map),
    )
    log.append_blocking(data, subject=bridge.new.judge, source=SOURCE)
    return data


def trends(judgments: Judgments, *, days: int = 7, confidence: float = 0.95) -> list[TrendLine]:
    """One line of points for each identity, in windows of whole days (UTC) that have judgments."""
    windows: dict[int, list[Recorded]] = {}
    for one in judgments.all:
        windows.setdefault(one.time_us // (days * DAY_US), []).append(one)
    lines: dict[tuple[str, str], list[TrendPoint]] = {}
    for number, inside in sorted(windows.items()):
        start = number * days * DAY_US
        for row in behaviours_of(Judgments(judgments.line, tuple(inside)), confidence=confidence):
            interval = Interval(row.estimate, row.lower, row.upper, row.n, row.n)
            point = TrendPoint(start, start + days * DAY_US, interval)
            lines.setdefault((row.identity, row.measure), []).append(point)
    return [
        TrendLine(judgments.line, identity, measure, tuple(points))
        for (identity, measure), points in lines.items()
    ]


def across(trend: TrendLine, bridge: Bridge) -> CrossedLine:
    """Say a rating's line in terms of the new judge; raises `InvalidRequest` where the bridge begins elsewhere."""
    if trend.line != bridge.old:
        raise InvalidRequest(
            f"the bridge begins at {bridge.old.label}, the line is {trend.line.label}", param="bridge"
        )
    if not isinstance(bridge.map, RatingBridge) or trend.measure != "rating":
        raise InvalidRequest(
            "a line of win rates crosses as verdicts (VerdictBridge.across), not point by point",
            param="bridge",
        )
    ratings = bridge.map
    points = tuple(TrendPoint(one.start_us, one.end_us, ratings.across(one.interval)) for one in trend.points)
    return CrossedLine(trend.line, bridge.new, trend.identity, points)


def win_rate_across(old: Judgments, bridge: Bridge, identity: str, *, confidence: float = 0.95) -> Interval:
    """An identity's win rate by the old judge, on the new one's scale; raises `InvalidRequest` as `across`."""
    if old.line != bridge.old or not isinstance(bridge.map, VerdictBridge):
        raise InvalidRequest(
            f"the bridge leads from {bridge.old.label} ({bridge.measure}s), the judgments are of {old.line.label}",
            param="bridge",
        )
    counts: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
    turned = {"a": "b", "b": "a", "tie": "tie"}
    for pair in old.pairs():
        outcome = pair.outcome
        if outcome is None:
            continue
        said = "tie" if outcome == "inconsistent" else outcome
        for side in pair.sides:
            if side.identity == identity:
                counts[said if side.side == "a" else turned[said]] += 1
    return bridge.map.across([counts[one] for one in OUTCOMES], confidence=confidence)


def _ratings(judgments: Judgments) -> dict[str, tuple[float, str]]:
    return {
        one.data.item: (one.data.score, one.data.question)
        for one in judgments.singles()
        if one.data.score is not None and one.data.sample == 0
    }


def _verdicts(judgments: Judgments) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for pair in judgments.pairs():
        if pair.outcome is not None and pair.sample == 0:
            found[pair.item] = ("tie" if pair.outcome == "inconsistent" else pair.outcome, pair.question)
    return found


def _written(of: RatingBridge | VerdictBridge) -> dict[str, object]:
    if isinstance(of, RatingBridge):
        return {
            "offset": of.offset,
            "slope": of.slope,
            "variance_offset": of.variance_offset,
            "variance_slope": of.variance_slope,
            "covariance": of.covariance,
        }
    return {"outcomes": list(OUTCOMES), "chances": of.chances.tolist()}

"""A gate's evidence over time as SVG: the estimate, the interval that holds at all looks at once, and the bound.

Written by hand and not by the charts of the pages: a report must open offline, with the same chart, wherever `tiltyard release`
runs, and a chart that is inside the page takes its colours from it (`docs/decisions/0023-charts-of-gates.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import floor, log10
from typing import Final, NamedTuple

from tiltyard.release.account import GateAccount

WIDE, NARROW = (640, 220), (320, 220)
"""Width and height in px."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 18, 34
_ROOM: Final = 0.08
"""Of the height, above and below what is drawn."""
_FARTHEST: Final = 6.0
"""Distances from the bound at which an interval's end is cut: the first looks know nothing, and would press the rest flat."""

STYLE: Final = """
.gate-chart { display: block; width: 100%; height: auto; max-width: 40rem; font: 12px/1.2 system-ui, sans-serif; }
.gate-chart text { fill: var(--ink-soft, #55615b); }
.gate-chart .grid { stroke: var(--rule, #d8ddd6); }
.gate-chart .band { fill: var(--accent, #1d6b50); opacity: 0.16; }
.gate-chart .edge { fill: none; stroke: var(--accent, #1d6b50); opacity: 0.55; }
.gate-chart .line { fill: none; stroke: var(--accent, #1d6b50); stroke-width: 2; }
.gate-chart .look { fill: var(--accent, #1d6b50); }
.gate-chart .bound { stroke: var(--danger, #9b2c22); stroke-width: 1.5; stroke-dasharray: 6 4; }
.gate-chart .beyond { fill: var(--danger, #9b2c22); opacity: 0.07; }
.gate-chart .bound-name { fill: var(--danger, #9b2c22); }
"""


class Words(NamedTuple):
    """What the chart says, in the reader's language."""

    title: str
    description: str
    bound: str
    """Beside the dashed line."""
    moment: Callable[[int], str]
    """Microseconds since 1970, in few letters."""
    value: Callable[[float], str]
    """An effect, in few letters."""
    unit: str = ""
    """Above the axis, where the values do not say it."""


class _Point(NamedTuple):
    time_us: int
    effect: float
    low: float
    high: float


def gate_chart(gate: GateAccount, words: Words, *, name: str, size: tuple[int, int] = WIDE) -> str:
    """Draw it; `name` begins the ids inside. Empty where no look had a number."""
    bound = gate.threshold
    points = _points(gate)
    if bound is None or not points:
        return ""
    low, high = _span(points, bound)
    width, height = size
    begin, end = points[0].time_us, max(points[-1].time_us, points[0].time_us + 1)
    inner = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM

    def x(time_us: int) -> float:
        return round(_LEFT + inner[0] * (time_us - begin) / (end - begin), 1)

    def y(value: float) -> float:
        return round(_TOP + inner[1] * (high - min(max(value, low), high)) / (high - low), 1)

    parts = []
    for tick in _ticks(low, high):
        parts.append(
            f'<path class="grid" d="M{_LEFT} {y(tick)}H{width - _RIGHT}"/>'
            f'<text x="{_LEFT - 8}" y="{y(tick) + 4}" text-anchor="end">{escape(words.value(tick))}</text>'
        )
    if words.unit:
        parts.append(f'<text x="{_LEFT - 8}" y="11" text-anchor="end">{escape(words.unit)}</text>')
    # The forbidden side is above the bound, or below it where more is better.
    edge = (y(bound), height - _BOTTOM) if gate.more_is_better else (_TOP, y(bound))
    parts.append(
        f'<rect class="beyond" x="{_LEFT}" y="{edge[0]}" width="{inner[0]}" height="{max(0, round(edge[1] - edge[0], 1))}"/>'
    )
    upper = [f"{x(one.time_us)} {y(one.high)}" for one in points]
    lower = [f"{x(one.time_us)} {y(one.low)}" for one in points]
    if len(points) > 1:
        parts.append(f'<path class="band" d="M{"L".join([*upper, *reversed(lower)])}Z"/>')
        parts.append(f'<path class="line" d="M{"L".join(f"{x(p.time_us)} {y(p.effect)}" for p in points)}"/>')
    parts.append(f'<path class="edge" d="M{"L".join(upper)}M{"L".join(lower)}"/>')
    parts += [f'<path class="edge" d="M{x(p.time_us)} {y(p.low)}V{y(p.high)}"/>' for p in points]
    parts += [f'<circle class="look" cx="{x(p.time_us)}" cy="{y(p.effect)}" r="3"/>' for p in points]
    # Its name stands on the forbidden side, where the line itself is least.
    beside = y(bound) + 14 if gate.more_is_better else y(bound) - 5
    parts.append(
        f'<path class="bound" d="M{_LEFT} {y(bound)}H{width - _RIGHT}"/>'
        f'<text class="bound-name" x="{width - _RIGHT - 2}" y="{beside}" text-anchor="end">{escape(words.bound)}</text>'
    )
    parts.append(
        f'<text x="{_LEFT}" y="{height - 12}">{escape(words.moment(begin))}</text>'
        f'<text x="{width - _RIGHT}" y="{height - 12}" text-anchor="end">{escape(words.moment(points[-1].time_us))}</text>'
    )
    return (
        f'<svg class="gate-chart" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-t {name}-d" '
        f'xmlns="http://www.w3.org/2000/svg"><title id="{name}-t">{escape(words.title)}</title>'
        f'<desc id="{name}-d">{escape(words.description)}</desc>{"".join(parts)}</svg>'
    )


def _points(gate: GateAccount) -> list[_Point]:
    """The looks that had an estimate; an end that is unknown is cut like one that is far away."""
    far = float("inf")
    return [
        _Point(
            one.time_us,
            one.judged.effect,
            -far if one.judged.low is None else one.judged.low,
            far if one.judged.high is None else one.judged.high,
        )
        for one in gate.looks
        if one.judged.effect is not None
    ]


def _span(points: Sequence[_Point], bound: float) -> tuple[float, float]:
    near = max((abs(one.effect - bound) for one in points), default=0.0)
    reach = _FARTHEST * max(abs(bound), near / 2, 1e-6)
    kept = [bound, 0.0]
    for one in points:
        kept += [one.effect, max(one.low, bound - reach), min(one.high, bound + reach)]
    low, high = min(kept), max(kept)
    room = (high - low) * _ROOM or 1e-6
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, evenly apart, four to eight of them.

    >>> _ticks(-0.11, 0.32)
    [-0.1, 0.0, 0.1, 0.2, 0.3]
    """
    rough = (high - low) / 4
    power = 10.0 ** floor(log10(rough))
    step = next(digit * power for digit in (5, 2, 1) if digit * power <= rough * 1.0001)
    first = floor(low / step) + 1
    count = floor(high / step) - first + 1
    return [round((first + at) * step, 12) + 0.0 for at in range(count)]

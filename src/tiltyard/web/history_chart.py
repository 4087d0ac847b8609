"""Ratings over time as an SVG line chart, and as a table for those who cannot see it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from typing import Final, NamedTuple

from tiltyard.arena.boards import History
from tiltyard.errors import Unavailable
from tiltyard.rating.leaderboard import LeaderboardRow
from tiltyard.web import charts
from tiltyard.web.charts import Size, Theme, distinct_names

LINES: Final = 8
"""Models with a line: as many as eyes tell apart; the first of the board."""

# Told apart by people who see no red or no green, and by shape besides.
_LINE_COLOURS: Final[dict[Theme, tuple[str, ...]]] = {
    "light": ("#1d6b50", "#b4531f", "#2f5fa8", "#8a3a86", "#8a6d00", "#0f7f93", "#b03052", "#55615b"),
    "dark": ("#7cc8a6", "#f0a070", "#8fb8f5", "#dd9bd6", "#e3bf74", "#6fd0e0", "#f29bb2", "#b9c4bd"),
}
_SHAPES: Final = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)
_SIZES: Final[dict[Size, tuple[int, int]]] = {"wide": (820, 320), "narrow": (250, 260)}  # px, the plot alone


class Point(NamedTuple):
    """One model in one window."""

    rating: float
    lower: float
    upper: float
    votes: int


class HistoryLines(NamedTuple):
    """What the chart and its table show."""

    days: int
    untils: tuple[str, ...]
    """End of each window, `YYYY-MM-DD HH:MM`, UTC."""
    names: tuple[str, ...]
    points: tuple[tuple[Point | None, ...], ...]
    """For each name, a point for each window in which it had enough votes."""


def lines_of(history: History, rows: Sequence[LeaderboardRow], minimum_votes: int) -> HistoryLines:
    """Take the first rows that have a rating, in the windows that give them at least `minimum_votes`."""
    shown = [row for row in rows if row.rating is not None and row.votes][:LINES]
    points: list[list[Point | None]] = [[] for _ in shown]
    for _, rated in history.windows:
        ratings = rated.ratings
        place = {key: node for node, key in enumerate(ratings.models)}
        for row, line in zip(shown, points, strict=True):
            node = place.get(row.model.key)
            known = node is not None and ratings.votes[node] >= minimum_votes and ratings.component[node] == 0
            if node is None or not known:
                line.append(None)
                continue
            line.append(
                Point(
                    round(float(ratings.ratings[node]), 1),
                    round(float(ratings.lower[node]), 1),
                    round(float(ratings.upper[node]), 1),
                    int(ratings.votes[node]),
                )
            )
    return HistoryLines(
        history.days,
        tuple(period.until for period, _ in history.windows),
        tuple(distinct_names(shown)),
        tuple(map(tuple, points)),
    )


def history_key(lines: HistoryLines) -> str:
    """Name what the chart shows, for caches."""
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()[:16]


def describe_history(lines: HistoryLines) -> str:
    """Say in words where each line begins and ends."""
    told = []
    for name, line in zip(lines.names, lines.points, strict=True):
        known = [point for point in line if point is not None]
        if known:
            told.append(f"{name} from {known[0].rating:.0f} to {known[-1].rating:.0f}")
    return f"Ratings in windows of {lines.days} days, {lines.untils[0][:10]} to {lines.untils[-1][:10]}: {'; '.join(told)}."


@lru_cache(maxsize=16)
def history_chart(lines: HistoryLines, theme: Theme, size: Size) -> str:
    """Draw the lines as SVG with a title and a description; blocks for up to a second.

    Raises `Unavailable` when vl-convert is not installed.
    """
    if charts.CHARTS_MISSING is not None:
        raise Unavailable(
            f"{charts.CHARTS_MISSING} is not installed. {charts.HOW_TO_INSTALL}", code="charts_missing"
        )
    return charts.drawn(
        _specification(lines, theme, size), "Ratings over time", escape(describe_history(lines))
    )


def _specification(lines: HistoryLines, theme: Theme, size: Size) -> dict[str, object]:
    colours = charts.COLOURS[theme]
    width, height = _SIZES[size]
    data = [
        {"name": name, "until": until.replace(" ", "T") + ":00Z", **point._asdict()}
        for name, line in zip(lines.names, lines.points, strict=True)
        for until, point in zip(lines.untils, line, strict=True)
        if point is not None
    ]
    scale = {"domain": list(lines.names)}
    legend = {
        "title": None,
        "orient": "bottom",
        "direction": "vertical" if size == "narrow" else "horizontal",
        "columns": 1 if size == "narrow" else 3,
        "columnPadding": 28,
        "labelLimit": 240 if size == "narrow" else 190,
        "symbolSize": 70,
    }
    colour = {
        "field": "name",
        "type": "nominal",
        "scale": {**scale, "range": list(_LINE_COLOURS[theme])},
        "legend": legend,
    }
    shape = {
        "field": "name",
        "type": "nominal",
        "scale": {**scale, "range": list(_SHAPES)},
        "legend": legend,
    }
    x = {
        "field": "until",
        "type": "temporal",
        "scale": {"type": "utc"},
        "title": None,
        "axis": {"format": "%-d %b", "tickCount": 8 if size == "wide" else 4, "grid": False},
    }
    y = {
        "field": "rating",
        "type": "quantitative",
        "scale": {"zero": False},
        "title": "rating",
        "axis": {"format": "d", "tickCount": 6},
    }
    return {
        "$schema": charts.SCHEMA,
        "data": {"values": data},
        "layer": [
            {
                "mark": {"type": "rule", "opacity": 0.35, "strokeWidth": 1.5},
                "encoding": {
                    "x": x,
                    "y": {**y, "field": "lower"},
                    "y2": {"field": "upper"},
                    "color": colour,
                },
            },
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": x, "y": y, "color": colour}},
            {
                "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": colour, "shape": shape},
            },
        ],
        "width": width,
        "height": height,
        "background": "transparent",
        "padding": 4,
        "config": {
            **charts.basic_config(theme),
            "legend": {"labelColor": colours["ink"], "labelFontSize": 12, "rowPadding": 4},
        },
    }

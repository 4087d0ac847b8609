"""The interval chart, drawn on the server: a Vega-Lite specification, which vl-convert turns into SVG.

Nothing is fetched: vl-convert carries Vega-Lite with it, the data travel in the specification, and addresses of
other data are refused. Without that package the page shows the table and says how to install it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from itertools import count
from math import ceil, floor
from typing import Final, Literal, NamedTuple, TypeAlias

from tiltyard.errors import Unavailable
from tiltyard.rating.leaderboard import LeaderboardRow

try:
    import vl_convert
except ImportError as missing:
    CHARTS_MISSING: str | None = missing.name or "vl_convert"
else:
    CHARTS_MISSING = None

HOW_TO_INSTALL: Final = "pip install 'tiltyard[web]'"

Theme: TypeAlias = Literal["light", "dark"]
Size: TypeAlias = Literal["wide", "narrow"]
THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
SIZES: Final[tuple[Size, ...]] = ("wide", "narrow")

_WIDTHS: Final[dict[Size, int]] = {"wide": 860, "narrow": 138}  # of the plot, in px, without labels
_LABELS: Final[dict[Size, int]] = {"wide": 260, "narrow": 156}  # px for names, longer ones are cut
_NAME_SIZES: Final[dict[Size, int]] = {"wide": 13, "narrow": 12}  # px
_LETTER: Final = 0.63  # em of a wide letter: room for the browser's fonts, which vl-convert cannot measure
_TAIL: Final = 9  # letters that a cut name keeps at its end, where a digest tells it from its earlier version
_MARGIN: Final = 5  # points beside the outermost interval
_MOST_STEPS: Final[dict[Size, int]] = {"wide": 10, "narrow": 3}  # along the axis: 46 px and more for 4 digits
_STEP: Final = 22  # px for each model
SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"  # a name; nothing is fetched

# The page's own colours (static/tiltyard.css); an image cannot see them.
COLOURS: Final[dict[Theme, dict[str, str]]] = {
    "light": {"ink": "#17201c", "soft": "#55615b", "rule": "#d8ddd6", "accent": "#1d6b50"},
    "dark": {"ink": "#e6ebe7", "soft": "#9faca4", "rule": "#2b3530", "accent": "#7cc8a6"},
}
_FONT: Final = "system-ui, Roboto, 'Noto Sans', 'Liberation Sans', Arial, sans-serif"


class Bar(NamedTuple):
    """One model in the chart."""

    name: str
    rating: float
    lower: float
    upper: float
    ranked: bool


def bars_of(rows: Sequence[LeaderboardRow]) -> tuple[Bar, ...]:
    """Take the rows that have a rating, in their order; names that occur twice get their digest behind them."""
    shown = [row for row in rows if row.rating is not None]
    bars = []
    for row, name in zip(shown, distinct_names(shown), strict=True):
        if row.rating is not None and row.lower is not None and row.upper is not None:
            bars.append(Bar(name, row.rating, row.lower, row.upper, row.status == "ranked"))
    return tuple(bars)


def distinct_names(rows: Sequence[LeaderboardRow]) -> list[str]:
    """Name each row; names that occur twice get their digest behind them."""
    names = Counter(row.model.name for row in rows)
    return [
        row.model.name
        if names[row.model.name] == 1
        else f"{row.model.name} {row.model.key.removeprefix('sha256:')[:8]}"
        for row in rows
    ]


class Axis(NamedTuple):
    """The ratings that the chart spans, and those of them that are written below it."""

    low: float
    high: float
    values: list[int]


def axis_of(bars: Sequence[Bar], size: Size) -> Axis:
    """Span all bars; write round ratings, evenly apart and so few that their labels have room.

    >>> axis_of([Bar("x", 1000.0, 790.0, 1210.0, True)], "narrow").values
    [800, 1000, 1200]
    """
    low, high = min(bar.lower for bar in bars) - _MARGIN, max(bar.upper for bar in bars) + _MARGIN
    steps = (digit * 10**power for power in count(1) for digit in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step <= _MOST_STEPS[size])
    return Axis(low, high, list(range(ceil(low / step) * step, floor(high) + 1, step)))


def content_key(bars: Sequence[Bar]) -> str:
    """Name what a chart shows, for caches."""
    return hashlib.sha256(json.dumps(bars).encode()).hexdigest()[:16]


def describe(bars: Sequence[Bar], confidence: float = 0.95) -> str:
    """Say in words what the chart shows; long charts are cut after eight models."""
    told = [f"{bar.name} {bar.rating:.0f} ({bar.lower:.0f} to {bar.upper:.0f})" for bar in bars[:8]]
    rest = f", and {len(bars) - 8} more" if len(bars) > 8 else ""
    return f"Ratings with {100 * confidence:.4g}% intervals: {', '.join(told)}{rest}."


@lru_cache(maxsize=64)
def interval_chart(bars: tuple[Bar, ...], theme: Theme, size: Size, confidence: float = 0.95) -> str:
    """Draw ratings and intervals as SVG with a title and a description; blocks for up to a second.

    Raises `Unavailable` when vl-convert is not installed.
    """
    if CHARTS_MISSING is not None:
        raise Unavailable(f"{CHARTS_MISSING} is not installed. {HOW_TO_INSTALL}", code="charts_missing")
    return drawn(
        _specification(bars, theme, size),
        f"Ratings with {100 * confidence:.4g}% intervals",
        escape(describe(bars, confidence)),
    )


def drawn(specification: dict[str, object], title: str, description: str) -> str:
    """Draw a Vega-Lite specification as SVG that says what it shows; both texts come escaped. Blocks."""
    svg = vl_convert.vegalite_to_svg(specification, allowed_base_urls=[])
    words = f'<title id="chart-title">{title}</title><desc id="chart-description">{description}</desc>'
    head, _, body = svg.partition(">")
    return f'{head} role="img" aria-labelledby="chart-title chart-description">{words}{body}'


def basic_config(theme: Theme) -> dict[str, object]:
    """Colours and type of every chart, as Vega-Lite's `config` wants them."""
    colours = COLOURS[theme]
    return {
        "font": _FONT,
        "view": {"continuousWidth": 300, "continuousHeight": 300, "stroke": None},
        "axis": {
            "labelColor": colours["soft"],
            "titleColor": colours["soft"],
            "titleFontWeight": "normal",
            "gridColor": colours["rule"],
            "domainColor": colours["rule"],
            "tickColor": colours["rule"],
            "labelFontSize": 12,
            "titleFontSize": 12,
        },
    }


def _specification(bars: Sequence[Bar], theme: Theme, size: Size) -> dict[str, object]:
    """Describe the chart as Vega-Lite wants it."""
    colours = COLOURS[theme]
    data = [
        {
            "name": bar.name,
            "rating": bar.rating,
            "lower": bar.lower,
            "upper": bar.upper,
            "kind": "ranked" if bar.ranked else "provisional",
        }
        for bar in bars
    ]
    letter_px = _LETTER * _NAME_SIZES[size]
    letters = int(_LABELS[size] / letter_px)
    y = {
        "field": "name",
        "type": "nominal",
        "sort": [bar.name for bar in bars],
        "title": None,
        "axis": {
            "labelExpr": f"length(datum.label) > {letters} ? slice(datum.label, 0, {letters - _TAIL - 1}) + '…' + "
            f"slice(datum.label, -{_TAIL}) : datum.label"
        },
    }
    colour = {
        "field": "kind",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": ["ranked", "provisional"], "range": [colours["accent"], colours["soft"]]},
    }
    span = axis_of(bars, size)
    x = {
        "field": "lower",
        "type": "quantitative",
        "title": "rating",
        "scale": {"domain": [span.low, span.high], "nice": False},
        "axis": {"values": span.values, "format": "d", "labelFlush": False},
    }
    rating = {"field": "rating", "type": "quantitative"}
    return {
        "$schema": SCHEMA,
        "data": {"values": data},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2, "strokeCap": "round"},
                "encoding": {"y": y, "x": x, "x2": {"field": "upper"}, "color": colour},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                "encoding": {"y": y, "x": rating, "color": colour},
            },
        ],
        "width": _WIDTHS[size],
        "height": {"step": _STEP},
        "background": "transparent",
        "padding": 4,
        "config": {
            **basic_config(theme),
            "axisY": {
                "labelColor": colours["ink"],
                "labelPadding": 10,
                "minExtent": letter_px * min(letters, max(len(bar.name) for bar in bars)) + 10,
                "labelFontSize": _NAME_SIZES[size],
                "labelLimit": 0,
                "ticks": False,
                "domain": False,
                "grid": False,
            },
        },
    }

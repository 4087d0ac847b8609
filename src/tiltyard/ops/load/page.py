"""The result as one HTML file that opens without a network: a table, and plots drawn here."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from tiltyard.identity.canonical import Json
from tiltyard.ops.load.place import Place
from tiltyard.ops.load.record import LoadRun
from tiltyard.ops.load.rows import HEAD, row_of
from tiltyard.ops.load.samples import measured
from tiltyard.web.charts import CHARTS_MISSING, HOW_TO_INSTALL, SCHEMA, THEMES, Theme, basic_config, drawn

POINTS = 200
"""Of a distribution, drawn."""
_SIZE = {"width": 620, "height": 260}


class Plot(NamedTuple):
    """A chart in both themes, as data addresses."""

    title: str
    told: str
    images: Mapping[Theme, str]


def page(
    runs: Sequence[LoadRun],
    *,
    place: Place,
    settings: Mapping[str, Json],
    trace: Mapping[str, Json] | None,
) -> str:
    """The whole file; draws for some seconds."""
    environment = Environment(
        loader=PackageLoader("tiltyard.ops.load"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("load.html").render(
        runs=runs,
        rows=[row_of(run) for run in runs],
        head=HEAD,
        place=place,
        settings=settings,
        trace=trace,
        plots=[] if CHARTS_MISSING else plots(runs),
        missing=CHARTS_MISSING,
        how=HOW_TO_INSTALL,
    )


def plots(runs: Sequence[LoadRun]) -> list[Plot]:
    """How latencies are spread, and what more load does to them and to throughput."""
    firsts = [
        {"run": _name(run), "seconds": value, "share": share}
        for run in runs
        for value, share in _distribution(
            [
                s.time_to_first_s
                for s in measured(run.samples, run.summary.warmup)
                if s.ok and s.time_to_first_s is not None
            ]
        )
    ]
    found = []
    if firsts:
        found.append(
            _plot(
                "Time to first token",
                "Share of the answers whose first token had come by then.",
                firsts,
                x=("seconds", "seconds since it was meant to be sent"),
                y=("share", "share of requests"),
                colour="run",
                mark="line",
            )
        )
    loads = [
        (run, load) for run in runs if (load := run.concurrency if run.rate is None else run.rate) is not None
    ]
    if len(loads) > 1:
        by = "requests at a time" if loads[0][0].rate is None else "requests a second, intended"
        for title, told, values in (
            (
                "Throughput",
                "Tokens of answers a second, by load.",
                [run.summary.answer_tokens_per_s for run, _ in loads],
            ),
            (
                "Slowest of a hundred",
                "99th percentile of the time to first token in seconds, by load.",
                [run.summary.time_to_first_s.p99 for run, _ in loads],
            ),
        ):
            points = [
                {"server": f"{run.server.model} at {run.server.url}", "load": load, "value": value}
                for (run, load), value in zip(loads, values, strict=True)
            ]
            found.append(
                _plot(
                    title,
                    told,
                    points,
                    x=("load", by),
                    y=("value", told.partition(",")[0]),
                    colour="server",
                    mark="line",
                )
            )
    return found


def _name(run: LoadRun) -> str:
    return f"{run.server.model} at {run.server.url}, {run.level}"


def _distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    ordered = sorted(values)
    step = max(1, len(ordered) // POINTS)
    kept = sorted({*range(0, len(ordered), step), len(ordered) - 1}) if ordered else []
    return [(ordered[place], (place + 1) / len(ordered)) for place in kept]


def _plot(
    title: str,
    told: str,
    points: Sequence[Mapping[str, object]],
    *,
    x: tuple[str, str],
    y: tuple[str, str],
    colour: str,
    mark: str,
) -> Plot:
    names = sorted({str(point[colour]) for point in points})
    images: dict[Theme, str] = {}
    for theme in THEMES:
        config = basic_config(theme)
        soft = config["axis"]["labelColor"] if isinstance(config["axis"], dict) else None
        config["legend"] = {
            "labelColor": soft,
            "titleColor": soft,
            "labelLimit": 560,
            "orient": "bottom",
            "columns": 1,
        }
        specification: dict[str, object] = {
            "$schema": SCHEMA,
            "config": config,
            "background": None,
            **_SIZE,
            "data": {"values": list(points)},
            "mark": {"type": mark, "point": len(points) <= POINTS, "strokeWidth": 2},
            "encoding": {
                "x": {"field": x[0], "type": "quantitative", "title": x[1]},
                "y": {"field": y[0], "type": "quantitative", "title": y[1]},
                "color": {
                    "field": colour,
                    "type": "nominal",
                    "title": None,
                    "sort": names,
                    **({"legend": None} if len(names) == 1 else {}),
                },
                **(
                    {"strokeDash": {"field": colour, "type": "nominal", "title": None, "sort": names}}
                    if len(names) > 1
                    else {}
                ),
            },
        }
        svg = drawn(specification, title, told)
        images[theme] = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    return Plot(title, told, images)

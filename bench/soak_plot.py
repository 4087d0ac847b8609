"""Draws a soak: memory of each process over time, with the moments at which something was broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import vl_convert

from soak_measures import Watch, window_means


def plot(path: Path, watch: Watch, faults: Sequence[tuple[str, float, float]], quiet_s: float) -> None:
    """Write an SVG: a line a process, memory of its own in MB by minutes; a rule for each fault."""
    points = [
        {"process": f"{one.role} ({one.pid})", "kind": one.role, "minutes": at_s / 60, "MB": memory}
        for one in watch.series.values()
        for at_s, memory in window_means(one.values("memory_mb"))
        if one.role != "ended"
    ]
    marks = [{"what": what, "minutes": at_s / 60} for what, at_s, _ in faults]
    marks.append({"what": "quiet from here on: judged", "minutes": quiet_s / 60})
    x = {
        "field": "minutes",
        "type": "quantitative",
        "title": "minutes",
        "axis": {"grid": False, "tickMinStep": 1, "tickCount": 10},
    }
    words = {"angle": 270, "align": "left", "dx": 4, "dy": -6, "fontSize": 10, "color": "#666"}
    specification = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "config": {"view": {"stroke": None}, "background": "white"},
        "width": 760,
        "height": 320,
        "layer": [
            {
                "data": {"values": points},
                "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 12}},
                "encoding": {
                    "x": x,
                    "y": {"field": "MB", "type": "quantitative", "title": "memory of its own, MB"},
                    "color": {
                        "field": "kind", "type": "nominal", "title": None,
                        "legend": {"orient": "bottom", "columns": 3, "labelLimit": 300},
                    },
                    "detail": {"field": "process", "type": "nominal"},
                },
            },
            {
                "data": {"values": marks},
                "mark": {"type": "rule", "strokeDash": [3, 3], "color": "#999"},
                "encoding": {"x": x},
            },
            {
                "data": {"values": marks},
                "mark": {"type": "text", "y": 320, **words},
                "encoding": {"x": x, "text": {"field": "what"}},
            },
        ],
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(vl_convert.vegalite_to_svg(json.dumps(specification)), encoding="utf-8")

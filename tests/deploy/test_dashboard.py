"""The Grafana dashboard: what is checked in is what its tool writes, every metric in it is exported, slices come first."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tiltyard.telemetry.arena_metrics import ArenaMetrics
from tiltyard.telemetry.metrics import GatewayMetrics
from tiltyard.telemetry.objective_metrics import ObjectiveMetrics
from toy_host import toy_worker

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "grafana-dashboard.json"
BOARD = json.loads(FILE.read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def test_the_dashboard_checked_in_is_what_its_tool_writes() -> None:
    tool = "import dashboard, sys; sys.stdout.write(dashboard.text())"
    done = subprocess.run(
        [sys.executable, "-c", tool], cwd=ROOT / "tools", capture_output=True, text=True, check=True
    )
    assert done.stdout == FILE.read_text(encoding="utf-8"), "run: python tools/dashboard.py"


async def test_every_metric_and_label_of_the_dashboard_is_exported() -> None:
    async with toy_worker("Hi!") as worker, httpx2.AsyncClient(base_url=worker.url) as http:
        page = (await http.get("/metrics")).text
    exported = set(re.findall(r"^# (?:TYPE|HELP) (\S+)", page, re.MULTILINE))
    exported |= {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    for family in (
        *GatewayMetrics().registry.collect(), *ArenaMetrics().collect(), *ObjectiveMetrics(lambda: ()).describe(),
    ):  # fmt: skip
        exported |= {family.name + end for end in ends.get(family.type, ("",))}
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]]
    asked += [one["definition"] for one in BOARD["templating"]["list"] if one["type"] == "query"]
    named = {name for expression in asked for name in re.findall(r"\b(?:tiltyard_|vllm:)\w+", expression)}
    assert len(named) >= 30
    assert named - exported == set()


def test_panels_have_their_own_numbers_and_places() -> None:
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert sorted(set(numbers)) == sorted(numbers)
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


def test_slices_come_first_and_figures_of_everything_last() -> None:
    rows = [panel for panel in BOARD["panels"] if panel["type"] == "row"]
    assert [row["title"] for row in rows][-1] == "All together"
    assert all(above["gridPos"]["y"] < below["gridPos"]["y"] for above, below in pairwise(rows))
    last = rows[-1]["gridPos"]["y"]
    sliced = [panel for panel in PANELS if panel["gridPos"]["y"] < last and panel["title"].find(" by ") >= 0]
    assert len(sliced) >= 15
    for panel in sliced:
        assert all("by (" in target["expr"] for target in panel["targets"]), panel["title"]


def test_every_panel_asks_the_prometheus_that_was_chosen() -> None:
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])

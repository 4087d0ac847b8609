"""Writes `deploy/grafana-dashboard.json`: `python tools/dashboard.py`. Slices first, averages last; one line a panel."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "deploy" / "grafana-dashboard.json"
WIDTH, HEIGHT = 8, 8  # of a panel; the grid is 24 wide
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """One panel: its curves as (PromQL, legend)."""

    title: str
    curves: tuple[tuple[str, str], ...]
    unit: str = "short"
    about: str = ""
    kind: str = "timeseries"
    at_most: float | None = None


def quantile(at: float, metric: str, by: str, where: str = "") -> str:
    """A quantile over histograms that are added up by some labels."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({at}, sum by ({labels}) (rate({metric}_bucket{{{where}}}[$__rate_interval])))"


def rate(metric: str, by: str, where: str = "") -> str:
    """A rate a second, added up by some labels."""
    summed = f"sum by ({by})" if by else "sum"
    return f"{summed} (rate({metric}{{{where}}}[$__rate_interval]))"


def share(part: str, whole: str) -> str:
    """A part of a whole; nothing where there is no whole."""
    return f"{part} / ({whole} > 0)"


def latencies(metric: str, by: str, where: str = "") -> tuple[tuple[str, str], ...]:
    """Median and 99th percentile."""
    label = f"{{{{{by}}}}} " if by else ""
    return (
        (quantile(0.99, metric, by, where), f"{label}p99"),
        (quantile(0.5, metric, by, where), f"{label}p50"),
    )


IDENTITY, WORKER, TENANT, CLASS = (
    'identity=~"$identity"', 'model_name=~"$worker"', 'tenant=~"$tenant"', 'class=~"$class"'
)  # fmt: skip

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Promises (docs/objectives.md)",
        (
            Panel(
                "State of each objective",
                (("max by (objective) (tiltyard_objective_state)", "{{objective}}"),),
                about="0 no data, 1 ok, 2 ticket, 3 page",
                kind="state",
            ),
            Panel(
                "Error budget left",
                (("min by (objective) (tiltyard_objective_error_budget_left)", "{{objective}}"),),
                "percentunit",
                "1: nothing spent; below 0: overspent",
                at_most=1,
            ),
            Panel(
                "Burn rate over an hour",
                (('max by (objective) (tiltyard_objective_burn_rate{window="1h"})', "{{objective}}"),),
                about="14.4 over 1 h and 5 m pages",
            ),
        ),
    ),
    (
        "By model version",
        (
            Panel(
                "Time to first token by model",
                latencies("tiltyard_time_to_first_token_seconds", "identity", IDENTITY),
                "s",
            ),
            Panel(
                "Whole answer by model",
                latencies("tiltyard_generation_duration_seconds", "identity", IDENTITY),
                "s",
            ),
            Panel(
                "Answers that failed, of all, by model",
                (
                    (
                        share(
                            rate(
                                "tiltyard_generations_total",
                                "identity",
                                f'{IDENTITY},outcome=~"failed|deadline"',
                            ),
                            rate("tiltyard_generations_total", "identity", IDENTITY),
                        ),
                        "{{identity}}",
                    ),
                ),
                "percentunit",
                at_most=1,
            ),
            Panel(
                "Requests a second by model and end",
                (
                    (
                        rate("tiltyard_generations_total", "identity, outcome", IDENTITY),
                        "{{identity}} {{outcome}}",
                    ),
                ),
                "reqps",
            ),
            Panel(
                "Tokens a second by model",
                (
                    (rate("tiltyard_completion_tokens_total", "identity", IDENTITY), "{{identity}} answered"),
                    (rate("tiltyard_prompt_tokens_total", "identity", IDENTITY), "{{identity}} prompt"),
                ),
            ),
            Panel(
                "Prompt tokens from the cache, by model",
                (
                    (
                        share(
                            rate("tiltyard_cached_prompt_tokens_total", "identity", IDENTITY),
                            rate("tiltyard_prompt_tokens_total", "identity", IDENTITY),
                        ),
                        "{{identity}}",
                    ),
                ),
                "percentunit",
                at_most=1,
            ),
        ),
    ),
    (
        "By class of request",
        (
            Panel(
                "Waiting requests by class",
                ((f"sum by (class) (tiltyard_queue_requests{{{CLASS}}})", "{{class}}"),),
            ),
            Panel(
                "Unfinished tokens by class",
                ((f"sum by (class) (tiltyard_queue_unfinished_tokens{{{CLASS}}})", "{{class}}"),),
            ),
            Panel(
                "Tokens served a second by class",
                (
                    (rate("tiltyard_served_prefill_tokens_total", "class", CLASS), "{{class}} prefill"),
                    (rate("tiltyard_served_decode_tokens_total", "class", CLASS), "{{class}} decode"),
                ),
            ),
        ),
    ),
    (
        "By tenant",
        (
            Panel(
                "Tokens served a second by tenant",
                (
                    (rate("tiltyard_served_prefill_tokens_total", "tenant", TENANT), "{{tenant}} prefill"),
                    (rate("tiltyard_served_decode_tokens_total", "tenant", TENANT), "{{tenant}} decode"),
                ),
            ),
            Panel(
                "Refused a second by tenant and limit",
                ((rate("tiltyard_refused_total", "tenant, reason", TENANT), "{{tenant}} {{reason}}"),),
            ),
            Panel(
                "Spent today by tenant",
                ((f'max by (tenant) (tiltyard_tenant_spent{{{TENANT},window="day"}})', "{{tenant}}"),),
                about="In the unit of the tenant's budgets.",
            ),
        ),
    ),
    (
        "By worker",
        (
            Panel(
                "Time per output token by worker",
                latencies("vllm:request_time_per_output_token_seconds", "model_name", WORKER),
                "s",
            ),
            Panel("Queue by worker", latencies("vllm:request_queue_time_seconds", "model_name", WORKER), "s"),
            Panel(
                "Prefill by worker", latencies("vllm:request_prefill_time_seconds", "model_name", WORKER), "s"
            ),
            Panel(
                "KV cache in use by worker",
                ((f"max by (model_name) (vllm:kv_cache_usage_perc{{{WORKER}}})", "{{model_name}}"),),
                "percentunit",
                at_most=1,
            ),
            Panel(
                "Preemptions a second by worker",
                ((rate("vllm:num_preemptions_total", "model_name", WORKER), "{{model_name}}"),),
            ),
            Panel(
                "Guessed tokens that were right, by worker",
                (
                    (
                        share(
                            rate("vllm:spec_decode_num_accepted_tokens_total", "model_name", WORKER),
                            rate("vllm:spec_decode_num_draft_tokens_total", "model_name", WORKER),
                        ),
                        "{{model_name}}",
                    ),
                ),
                "percentunit",
                at_most=1,
            ),
            Panel(
                "Running and waiting by worker",
                (
                    (
                        f"sum by (model_name) (vllm:num_requests_running{{{WORKER}}})",
                        "{{model_name}} running",
                    ),
                    (
                        f"sum by (model_name) (vllm:num_requests_waiting{{{WORKER}}})",
                        "{{model_name}} waiting",
                    ),
                ),
            ),
            Panel(
                "Unfinished tokens by worker, as the router sees them",
                (("max by (worker) (tiltyard_worker_unfinished_tokens)", "{{worker}}"),),
            ),
            Panel(
                "Workers that take work", (("min by (worker) (tiltyard_worker_up)", "{{worker}}"),), at_most=1
            ),
        ),
    ),
    (
        "Arena (docs/arena.md)",
        (
            Panel(
                "Checks",
                (("max by (check) (tiltyard_arena_check)", "{{check}}"),),
                about="0 ok, 1 warn, 2 alarm",
            ),
            Panel(
                "Evidence that draws do not follow their record",
                (("max by (of) (tiltyard_arena_assignment_evidence)", "{{of}}"),),
                about="20 is rare, 1000 an alarm",
            ),
            Panel("A vote until it is durable", latencies("tiltyard_arena_vote_append_seconds", ""), "s"),
            Panel("In the last hour", (("max by (what) (tiltyard_arena_last_hour)", "{{what}}"),)),
            Panel(
                "Answers that failed, by model and cause",
                (
                    (
                        "max by (identity, cause) (tiltyard_arena_answers_failed)",
                        "{{identity}} {{cause}}",
                    ),
                ),
            ),
            Panel("Age of the newest vote", (("min(tiltyard_arena_newest_vote_age_seconds)", "age"),), "s"),
        ),
    ),
    (
        "All together",
        (
            Panel("Errors told to clients, by code", ((rate("tiltyard_errors_total", "code"), "{{code}}"),)),
            Panel("Time to first token", latencies("tiltyard_time_to_first_token_seconds", ""), "s"),
            Panel("Requests a second", ((rate("tiltyard_generations_total", ""), "requests"),), "reqps"),
        ),
    ),
)

VARIABLES = (
    ("identity", "Model", "label_values(tiltyard_generations_total, identity)"),
    ("tenant", "Tenant", "label_values(tiltyard_served_requests_total, tenant)"),
    ("class", "Class", "label_values(tiltyard_served_requests_total, class)"),
    ("worker", "Worker", "label_values(vllm:num_requests_running, model_name)"),
)


def dashboard() -> dict[str, object]:
    """Return Grafana's JSON model (schema 39: Grafana 10.3 and later)."""
    panels: list[dict[str, object]] = []
    y = 0
    for title, row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
                "panels": [],
            }
        )
        y += 1
        for place, panel in enumerate(row):
            across = place % (24 // WIDTH)
            position = {
                "h": HEIGHT,
                "w": WIDTH,
                "x": across * WIDTH,
                "y": y + place // (24 // WIDTH) * HEIGHT,
            }
            panels.append(drawn(panel, len(panels) + 1, position))
        y += -(-len(row) // (24 // WIDTH)) * HEIGHT
    return {
        "__inputs": [],
        "title": "tiltyard",
        "uid": "tiltyard",
        "description": "Serving and arena. Written by tools/dashboard.py; docs/objectives.md says how to import it.",
        "tags": ["tiltyard"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [datasource(), *(variable(*one) for one in VARIABLES)]},
        "panels": panels,
    }


def drawn(panel: Panel, number: int, position: dict[str, int]) -> dict[str, object]:
    """One panel in Grafana's model."""
    defaults: dict[str, object] = {"unit": panel.unit, "min": None if "budget" in panel.title else 0}
    if panel.at_most is not None:
        defaults["max"] = panel.at_most
    options: dict[str, object] = {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["lastNotNull", "max"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if panel.kind == "state":
        words = ("no data", "ok", "ticket", "page")
        colours = ("text", "green", "orange", "red")
        defaults["mappings"] = [
            {
                "type": "value",
                "options": {
                    str(value): {"text": word, "color": colour, "index": value}
                    for value, (word, colour) in enumerate(zip(words, colours, strict=True))
                },
            }
        ]
        options = {
            "colorMode": "background",
            "graphMode": "none",
            "textMode": "value_and_name",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    return {
        "id": number,
        "type": "stat" if panel.kind == "state" else "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": DATASOURCE,
                "expr": expression.replace("{}", ""),
                "legendFormat": legend.strip(),
                "range": True,
            }
            for place, (expression, legend) in enumerate(panel.curves)
        ],
    }


def datasource() -> dict[str, object]:
    """The choice of a Prometheus."""
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
    }


def variable(name: str, label: str, query: str) -> dict[str, object]:
    """A choice of values of a label; all of them at first."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "hide": 0,
    }


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"wrote {FILE}\n")

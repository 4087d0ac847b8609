"""Alert rules for Prometheus, made from the objectives: `tiltyard objectives --prometheus-rules FILE`.

`tiltyard_objective_burn_rate` is computed from the log by the serving process; a rule compares two of its windows with the factor of its line
in the Site Reliability Workbook's table (`objectives/burning.py`). `and` matches many to many, so several gateways on one log are one alert each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from types import MappingProxyType
from typing import Final

from tiltyard.objectives.burning import RULES, Rule
from tiltyard.objectives.declaration import ObjectiveSettings
from tiltyard.objectives.look import EVIDENCE_PAGE, EVIDENCE_TICKET
from tiltyard.objectives.words import HELP
from tiltyard.telemetry.objective_metrics import BUDGET_LEFT, BURN_RATE, EVENTS, STATE, VALUE

HEAD: Final = """\
# Alerts of tiltyard: on the arena's health, the gateway and the objectives. Written by `tiltyard objectives --prometheus-rules FILE`
# from [objectives] of tiltyard.toml; write it again when that changes. docs/objectives.md says what the objectives mean,
# docs/arena.md the checks, docs/http-api.md lists the metrics.
# In prometheus.yml:  rule_files: [prometheus-rules.yml]
groups:
"""


def prometheus_rules(objectives: Mapping[str, ObjectiveSettings]) -> str:
    """Return the text of the rules file: the standing alerts, and those of the objectives."""
    standing = resources.files("tiltyard.objectives").joinpath("standing_rules.yml")
    lines = ["  - name: tiltyard-objectives", "    rules:", *_not_measured()]
    for name, one in objectives.items():
        lines += _rules_of(name, one)
    return HEAD + standing.read_text(encoding="utf-8") + "\n".join(lines) + "\n"


def _not_measured() -> Iterator[str]:
    yield from _alert(
        "TiltyardObjectivesNotMeasured",
        f"absent({STATE})",
        "ticket",
        "no process says how the objectives stand",
        "A gateway that is not scraped, or a log that cannot be read: missing data is not health.",
        wait="15m",
    )


def _rules_of(name: str, one: ObjectiveSettings) -> Iterator[str]:
    this = f'objective="{name}"'  # a name has letters, digits, '.', '_' and '-'
    if one.target is not None:
        for rule in RULES:
            yield from _burning(name, one, rule)
        yield from _alert(
            "TiltyardErrorBudgetSpent",
            f"{BUDGET_LEFT}{{{this}}} < 0 and on(objective, instance, job) {STATE}{{{this}}} == 2",
            "ticket",
            f"{name}: the error budget of {one.window_days:g} days is spent",
            HELP[one.kind],
            wait="15m",
            more={"objective": name},
        )
        return
    bounds = (
        (("page", EVIDENCE_PAGE), ("ticket", EVIDENCE_TICKET))
        if one.kind == "pair_assignment"
        else (("page", 1.0),)
    )
    for severity, least in bounds:
        yield from _alert(
            "TiltyardObjectiveMissed",
            f"{VALUE}{{{this}}} >= {least:g}",
            severity,
            f"{name}: {{{{ $value | humanize }}}}, which is {least:g} or more",
            HELP[one.kind],
            more={"objective": name},
        )


def _burning(name: str, one: ObjectiveSettings, rule: Rule) -> Iterator[str]:
    def series(metric: str, window: str) -> str:
        return f'{metric}{{objective="{name}",window="{window}"}}'

    same = "and on(objective, instance, job)"
    yield from _alert(
        "TiltyardErrorBudgetBurns",
        f"{series(BURN_RATE, rule.long)} > {rule.factor:g} {same} {series(BURN_RATE, rule.short)} > {rule.factor:g} "
        f"{same} {series(EVENTS, rule.long)} >= {one.minimum}",
        rule.severity,
        f"{name}: the error budget burns {{{{ $value | humanize }}}} times too fast (over {rule.long} and {rule.short})",
        HELP[one.kind],
        more={"objective": name, "window": rule.long},
    )


def _alert(
    alert: str,
    expression: str,
    severity: str,
    summary: str,
    description: str,
    *,
    wait: str = "",
    more: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    yield f"      - alert: {alert}"
    yield f"        expr: {expression}"
    if wait:
        yield f"        for: {wait}"
    labels = "".join(f", {key}: {json.dumps(value)}" for key, value in more.items())
    yield f"        labels: {{severity: {severity}{labels}}}"
    yield "        annotations:"
    yield f"          summary: {json.dumps(summary)}"
    yield f"          description: {json.dumps(description)}"

"""The alert rules: what is checked in is what the command writes, every metric in it is exported, promtool takes it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tiltyard.cli.main import main
from tiltyard.objectives.declaration import DEFAULTS, ObjectiveSettings
from tiltyard.objectives.prometheus_rules import prometheus_rules
from tiltyard.telemetry.arena_metrics import ArenaMetrics
from tiltyard.telemetry.metrics import GatewayMetrics
from tiltyard.telemetry.objective_metrics import ObjectiveMetrics

ROOT = Path(__file__).resolve().parents[2]
CHECKED_IN = ROOT / "deploy" / "prometheus-rules.yml"


def exported() -> set[str]:
    """Every sample name that a process of ours can show."""
    families = [
        *GatewayMetrics().registry.collect(),
        *ArenaMetrics().collect(),
        *ObjectiveMetrics(lambda: ()).describe(),
    ]
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    return {family.name + end for family in families for end in ends.get(family.type, ("",))}


def rules(text: str) -> list[dict[str, object]]:
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def test_the_rules_checked_in_are_what_the_command_writes_without_settings(tmp_path: Path) -> None:
    settings = tmp_path / "tiltyard.toml"
    settings.write_text("")
    written = tmp_path / "rules.yml"
    done = CliRunner().invoke(
        main, ["objectives", "--config", str(settings), "--prometheus-rules", str(written)]
    )
    assert (done.exit_code, done.output) == (
        0,
        f"wrote {written}; check it with: promtool check rules {written}\n",
    )
    assert written.read_text() == CHECKED_IN.read_text(), (
        "run: tiltyard objectives --prometheus-rules deploy/prometheus-rules.yml"
    )


def test_every_metric_of_the_rules_is_exported() -> None:
    named = {
        name
        for rule in rules(CHECKED_IN.read_text())
        for name in re.findall(r"\btiltyard_\w+", str(rule["expr"]))
    }
    assert len(named) >= 10
    assert named <= exported()


def test_every_objective_has_its_alerts_and_no_two_are_alike() -> None:
    found = rules(CHECKED_IN.read_text())
    keys = [(rule["alert"], tuple(sorted(dict(rule["labels"]).items()))) for rule in found]  # type: ignore[call-overload]
    assert len(set(keys)) == len(keys)
    named = {dict(labels).get("objective") for _, labels in keys}
    assert set(DEFAULTS) <= named


def test_the_thresholds_are_the_workbooks_and_the_settings() -> None:
    own = {"mine": ObjectiveSettings(kind="error_rate", target=0.99, minimum=7)}
    burning = [rule for rule in rules(prometheus_rules(own)) if rule["alert"] == "TiltyardErrorBudgetBurns"]
    assert [re.findall(r'window="(\w+)"\} (>=? [\d.]+)', str(rule["expr"])) for rule in burning] == [
        [("1h", "> 14.4"), ("5m", "> 14.4"), ("1h", ">= 7")],
        [("6h", "> 6"), ("30m", "> 6"), ("6h", ">= 7")],
        [("3d", "> 1"), ("6h", "> 1"), ("3d", ">= 7")],
    ]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus")
def test_promtool_takes_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint-fatal", str(CHECKED_IN)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus")
def test_promtool_fires_the_alert_that_the_rates_call_for(tmp_path: Path) -> None:
    """Prometheus' own evaluation: fast over both windows pages, too few events or one window do not."""
    series = [
        ('tiltyard_objective_burn_rate{objective="errors",window="1h",instance="a",job="t"}', "20x10"),
        ('tiltyard_objective_burn_rate{objective="errors",window="5m",instance="a",job="t"}', "30x10"),
        ('tiltyard_objective_events{objective="errors",window="1h",instance="a",job="t"}', "20x10"),
        ('tiltyard_objective_burn_rate{objective="token-time",window="1h",instance="a",job="t"}', "20x10"),
        ('tiltyard_objective_burn_rate{objective="token-time",window="5m",instance="a",job="t"}', "30x10"),
        ('tiltyard_objective_events{objective="token-time",window="1h",instance="a",job="t"}', "19x10"),
        ('tiltyard_objective_burn_rate{objective="first-token",window="1h",instance="a",job="t"}', "20x10"),
        ('tiltyard_objective_burn_rate{objective="first-token",window="5m",instance="a",job="t"}', "14.4x10"),
        ('tiltyard_objective_events{objective="first-token",window="1h",instance="a",job="t"}', "99x10"),
    ]
    unit = {
        "rule_files": [str(CHECKED_IN)],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "promql_expr_test": [
                    {
                        "expr": 'count(ALERTS{alertname="TiltyardErrorBudgetBurns"}) by (objective, severity)',
                        "eval_time": "5m",
                        "exp_samples": [{"labels": '{objective="errors", severity="page"}', "value": 1}],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "unit.yml"
    file.write_text(yaml.safe_dump(unit))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""Reads `plan.yaml`; what is wrong with it is said with its line and field."""

from __future__ import annotations

from pathlib import Path

from tiltyard.release.plan import Plan
from tiltyard.wire.yaml_text import parse_yaml, read_yaml

WHAT = "a plan is a mapping with alias, candidate and stages"

STAGE_NAMES = frozenset({"evals", "shadow", "canary", "preference", "promote"})
"""What pydantic puts into a path to say which kind of stage it means."""


def read_plan(path: Path) -> Plan:
    """Read a plan; raises `ConfigurationError`."""
    return read_yaml(path, Plan, what=WHAT, silent=STAGE_NAMES)


def parse_plan(text: str, shown: str) -> Plan:
    """Parse the text of a plan; `shown` names it in errors. Raises `ConfigurationError` naming line and field."""
    return parse_yaml(text, shown, Plan, what=WHAT, silent=STAGE_NAMES)

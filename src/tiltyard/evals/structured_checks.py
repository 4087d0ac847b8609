"""Checks of what an answer is made of: JSON under a schema, calls of functions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from tiltyard.evals.answer import CalledFunction
from tiltyard.evals.checks import Call, JsonSchema, ToolCall
from tiltyard.evals.verdict import Verdict

try:
    import jsonschema  # type: ignore[import-untyped]
    import referencing
    import referencing.exceptions
except ImportError:
    JSONSCHEMA_MISSING = True
else:
    JSONSCHEMA_MISSING = False
    _NOTHING_REMOTE: Final = referencing.Registry()  # a `$ref` elsewhere must not make a request

HOW_TO_INSTALL: Final = "JSON schemas are checked by one more package: pip install 'tiltyard[evals]'."
_FENCED: Final = re.compile(r"```[A-Za-z]*[ \t]*\n(.*?)\n?```", re.DOTALL)


def check_json(check: JsonSchema, answer: str) -> Verdict:
    """Parse, validate, and compare."""
    if JSONSCHEMA_MISSING:
        return Verdict.unscored("json_schema", "package_missing", HOW_TO_INSTALL)
    text = answer.strip()
    if check.fenced and len(blocks := _FENCED.findall(text)) == 1:
        text = blocks[0]
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return Verdict("json_schema", 0.0, "not_json", str(error)[:200])
    validator = jsonschema.Draft202012Validator(check.accepts, registry=_NOTHING_REMOTE)
    try:
        jsonschema.Draft202012Validator.check_schema(check.accepts)
        fault = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except (
        jsonschema.exceptions.SchemaError,
        referencing.exceptions.Unresolvable,
        RecursionError,
    ) as error:
        return Verdict.unscored("json_schema", "bad_schema", str(error)[:200])
    if fault is not None:
        return Verdict("json_schema", 0.0, "not_valid", f"{fault.json_path}: {fault.message}"[:300])
    if check.value is not None and not same_json(value, check.value):
        return Verdict("json_schema", 0.0, "other_value", f"is {json.dumps(value, ensure_ascii=False)[:300]}")
    return Verdict("json_schema", 1.0)


def check_tool_calls(check: ToolCall, calls: Sequence[CalledFunction]) -> Verdict:
    """Find each call that was wanted among those that were made, and nothing beside them."""
    made = [(call.name, _arguments(call)) for call in calls]
    said = ", ".join(f"{call.name}({call.arguments})" for call in calls) or "no call"
    if any(arguments is None for _, arguments in made):
        return Verdict("tool_call", 0.0, "bad_arguments", f"arguments are no JSON object: {said}"[:300])
    if not check.calls:
        return Verdict.of("tool_call", not made, "needless_call", said[:300])
    if len(made) != len(check.calls):
        code = "no_call" if not made else "other_count"
        return Verdict("tool_call", 0.0, code, f"wanted {len(check.calls)} calls: {said}"[:300])
    wanted = list(check.calls)
    for name, arguments in made:
        candidates = wanted[:1] if check.in_order else wanted
        fitting = next((one for one in candidates if one.name == name and _fits(one, arguments or {})), None)
        if fitting is None:
            code = "other_arguments" if any(one.name == name for one in candidates) else "other_function"
            return Verdict("tool_call", 0.0, code, said[:300])
        wanted.remove(fitting)
    return Verdict("tool_call", 1.0)


def same_json(one: JsonValue, other: JsonValue) -> bool:
    """Whether two JSON values are equal as JSON has it: 1 is 1.0, and true is not 1.

    >>> same_json(1, 1.0), same_json(True, 1)
    (True, False)
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return one == other


def _fits(wanted: Call, arguments: dict[str, JsonValue]) -> bool:
    if any(
        not same_json(arguments.get(key), value)
        for key, value in wanted.arguments.items()
        if key not in wanted.optional
    ):
        return False
    return arguments.keys() <= wanted.arguments.keys() | set(wanted.optional)


def _arguments(call: CalledFunction) -> dict[str, JsonValue] | None:
    try:
        value = json.loads(call.arguments or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")

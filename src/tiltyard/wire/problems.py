"""Turns a failed validation into one error that names the field, the value, the limit and the next step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tiltyard.errors import InvalidRequest, UnknownField
from tiltyard.identity.canonical import Json

LONGEST_PATH = 200
"""Characters of a field's name in an error; a schema may be nested a thousand deep."""
NOT_SUPPORTED = "not_supported"
"""Type of the custom validation errors that mean: known, and not honoured."""

NO_CONTROLS = r"^[^\x00-\x1f\x7f-\x9f]+$"
"""Pattern of a text without control characters."""

_LIMITS = {
    "less_than_equal": "at most {le:.20g}",
    "less_than": "less than {lt:.20g}",
    "greater_than_equal": "at least {ge:.20g}",
    "greater_than": "more than {gt:.20g}",
    "too_long": "at most {max_length} long",
    "too_short": "at least {min_length} long",
    "string_too_long": "at most {max_length} characters long",
    "string_too_short": "at least {min_length} character long",
    "literal_error": "{expected}",
}
_KINDS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def parse_object(body: bytes) -> dict[str, Json]:
    """Read a JSON object; raises `InvalidRequest` that says where the text stops being JSON."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {_kind_of(value)}", code="invalid_json")
    return value


def problem(error: ValidationError, known: Collection[str]) -> InvalidRequest:
    """The most telling of the validation errors: unknown fields first, since they often explain the rest."""
    details = error.errors(include_url=False)
    details.sort(key=lambda detail: detail["type"] not in {"extra_forbidden", NOT_SUPPORTED})
    return _problem(details[0], known)


def _problem(detail: ErrorDetails, known: Collection[str]) -> InvalidRequest:
    location = detail["loc"]
    context: Mapping[str, object] = detail.get("ctx", {})
    refused = context.get("field")  # a refused member, named by its parent's validator
    if isinstance(refused, str):
        location = (*location, refused)
    param = path_of(location)
    match detail["type"]:
        case "extra_forbidden":
            unknown = unknown_field(param, known)
            unknown.location = location
            return unknown
        case "missing":
            return InvalidRequest(
                f"{param} is required and missing", param=param, code="missing_required_parameter"
            )
        case kind if kind == NOT_SUPPORTED:
            unknown = UnknownField(f"{param}: {detail['msg']}", param=param, code="unsupported_parameter")
            unknown.location = location if isinstance(refused, str) else None
            return unknown
        case "string_pattern_mismatch":
            pattern = context["pattern"]
            wanted = "without control characters" if pattern == NO_CONTROLS else f"of the form {pattern}"
        case kind if kind in _LIMITS:
            wanted = _LIMITS[kind].format(**context)
        case kind if kind in _KINDS:
            wanted = _KINDS[kind]
        case _:
            return InvalidRequest(f"{param or 'the body'}: {detail['msg']}", param=param or None)
    return InvalidRequest(f"{param} is {shown(detail['input'])}; it must be {wanted}", param=param)


def unknown_field(param: str, known: Collection[str]) -> UnknownField:
    """The refusal of a field that we do not know, with the nearest known name."""
    head, _, name = param.rpartition(".")
    near = [] if head else get_close_matches(name, list(known), n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return UnknownField(f"unknown field {param}.{hint} Remove it: nothing is ignored silently.", param=param)


def path_of(location: tuple[int | str, ...]) -> str:
    """Write a location as OpenAI does.

    >>> path_of(("messages", 0, "content"))
    'messages[0].content'
    """
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path if len(path) <= LONGEST_PATH else path[:LONGEST_PATH] + "..."


def shown(value: object) -> str:
    """A value in the words of an error, never at length."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...") + (
            f" ({len(value):,} characters)" if len(value) > 60 else ""
        )
    if isinstance(value, (bool, int, float)) or value is None:
        return orjson.dumps(value).decode() if not isinstance(value, int) else str(value).lower()
    if isinstance(value, list):
        return f"a list of {len(value):,}"
    return _kind_of(value)


def _kind_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"

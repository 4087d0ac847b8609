"""Says what is wrong in `tiltyard.toml` in one line of our own words: the key, what stands there, what should."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Names become file names, labels of metrics and words in URLs."""

_WANTED = {
    "threads": 'a whole number from 1 to 1,024, or "auto"',
    "contestants": "a list of identity names",
}
"""Keys of which the types alone would say too little."""

_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text in quotes",
    "dict_type": "a table",
    "model_type": "a table",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge:,.10g}",
    "greater_than": "more than {gt:,.10g}",
    "less_than_equal": "at most {le:,.10g}",
    "less_than": "less than {lt:,.10g}",
}


def problem_in(error: ValidationError, file: type[BaseModel]) -> str:
    """Return the line for the most telling of the errors: a key that nobody knows first, it may explain the rest."""
    details = error.errors(include_url=False)
    details.sort(key=lambda detail: detail["type"] != "extra_forbidden")
    return _line(details[0], file)


def _line(detail: ErrorDetails, file: type[BaseModel]) -> str:
    path, table = _place(detail["loc"], file)
    where = ".".join(path)
    context: Mapping[str, object] = detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            return f"{where}: there is no key {path[-1]} here; known: {', '.join(table.model_fields)}"
        case "missing":
            return f"{where}: this key is missing; write one"
        case "string_pattern_mismatch":
            return (
                f"{where}: {_shown(detail['input'])} is no name; use up to 64 letters, digits, '.', '_' and '-', "
                "a letter or digit first"
            )
        case "value_error":  # our own validator, whose words name the key
            return str(context["error"])
        case "inconsistent":  # the keys of a table do not go together
            return f"{where}: {detail['msg']}"
    wanted = _WANTED.get(path[-1]) or _KINDS.get(detail["type"], detail["msg"]).format(**context)
    return f"{where}: this is {_shown(detail['input'])}; it must be {wanted}"


def _place(location: tuple[int | str, ...], file: type[BaseModel]) -> tuple[list[str], type[BaseModel]]:
    """The path of a key as people write it, without what pydantic adds, and the table that holds the key."""
    path: list[str] = []
    table = file
    kind: object = file
    for part in map(str, location):
        if part == "[key]":  # pydantic's mark for a name that is wrong itself
            break
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            table = kind
            field = kind.model_fields.get(part)
            kind = _certain(field.annotation) if field is not None else None
        elif getattr(kind, "__origin__", None) is dict:
            kind = get_args(kind)[1]
        else:
            break
        path.append(part)
    return path, table


def _certain(kind: object) -> object:
    """The type of a key that may be left out, where it is not."""
    options = [option for option in get_args(kind) if option is not NoneType]
    return options[0] if len(options) == 1 and NoneType in get_args(kind) else kind


def _shown(value: object) -> str:
    """A value as TOML writes it, long ones by their kind."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value) if len(value) <= 80 else f"a text of {len(value):,} characters"
    if isinstance(value, list):
        return "a list"
    return "a table" if isinstance(value, dict) else str(value)

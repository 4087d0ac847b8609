"""YAML that people write, read into a model; what is wrong with it is said with its line and field."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tiltyard.errors import ConfigurationError

MAX_BYTES = 1 << 20

Model = TypeVar("Model", bound=BaseModel)


def read_yaml(path: Path, model: type[Model], *, what: str, silent: Collection[str] = ()) -> Model:
    """Read a file; `what` says what such a file is. Raises `ConfigurationError` naming line and field."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigurationError(
                f"{path} has {path.stat().st_size:,} bytes; a plan has at most {MAX_BYTES:,}"
            )
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 at byte {error.start:,}") from None
    return parse_yaml(text, str(path), model, what=what, silent=silent)


def parse_yaml(
    text: str, shown: str, model: type[Model], *, what: str, silent: Collection[str] = ()
) -> Model:
    """Parse a text; `shown` names it in errors, `silent` are steps that pydantic adds to the place of a problem.

    Raises `ConfigurationError` naming line and field.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f" line {mark.line + 1}"
        raise ConfigurationError(f"{shown}{place}: {error.problem or 'is not YAML'}") from None
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, AttributeError, TypeError) as error:
        # PyYAML's constructors of tagged scalars (`!!bool x`) raise what they happen to.
        raise ConfigurationError(f"{shown} is not YAML that can be read: {error}") from None
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"{shown} has half of a surrogate pair, which is no character; leave it out"
        ) from None
    except (TypeError, ValueError) as error:  # keys that are lists, a value that holds itself
        raise ConfigurationError(f"{shown} is not a plan: {error}") from None
    if root is None or not isinstance(value, dict):
        raise ConfigurationError(f"{shown} line 1: {what}")
    _refuse_aliases(text, shown)
    _refuse_duplicates(root, shown)
    _refuse_old_numbers(root, shown)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = error.errors()
        # A part that is wrong is left out, and the list around it then too short: only the first is worth saying.
        said = [item for item in problems if item["type"] != "too_short"] or problems
        raise ConfigurationError("\n".join(_problem(root, item, shown, silent) for item in said)) from None


def _problem(root: yaml.Node, item: object, shown: str, silent: Collection[str]) -> str:
    if not isinstance(item, Mapping):
        raise AssertionError("pydantic describes each error by a mapping")
    path = [part for part in item["loc"] if part not in silent]
    line = _line(root, path)
    field = ".".join(str(part) for part in path) or "plan"
    message = {
        "extra_forbidden": "there is no such field",
        "missing": "is missing",
    }.get(item["type"], str(item["msg"]).removeprefix("Value error, "))
    given = item["input"]
    said = (
        f", not {given!r}" if isinstance(given, (str, int, float)) and item["type"] != "value_error" else ""
    )
    return f"{shown} line {line}: {field}: {message}{said}"


def _line(node: yaml.Node, path: list[object]) -> int:
    """The line, from 1, of the deepest part of a path that is there."""
    line = node.start_mark.line + 1
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == part), None)
            if found is None:
                return line
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def _refuse_duplicates(node: yaml.Node, shown: str) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                raise ConfigurationError(
                    f"{shown} line {key.start_mark.line + 1}: {key.value} is written twice; remove one"
                )
            seen.add(key.value)
            _refuse_duplicates(value, shown)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_duplicates(value, shown)


_OLD_NUMBERS: Final = (
    (re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"), "a number to the base of 60"),
    (re.compile(r"[-+]?0[0-7_]+"), "an octal number"),
    (re.compile(r"[-+]?0b[01_]+"), "a binary number"),
    (re.compile(r"[-+]?0x[0-9a-fA-F_]+"), "a hexadecimal number"),
)
"""What YAML 1.1 reads as a number that nobody who writes it means: `1:30` is 90 and `010` is 8."""


def _refuse_old_numbers(node: yaml.Node, shown: str, path: tuple[str, ...] = ()) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _refuse_old_numbers(key, shown, (*path, str(key.value)))
            _refuse_old_numbers(value, shown, (*path, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _refuse_old_numbers(value, shown, (*path, str(number)))
    elif isinstance(node, yaml.ScalarNode) and node.style is None and node.tag in _NUMBERS:
        kind = next((said for pattern, said in _OLD_NUMBERS if pattern.fullmatch(node.value)), None)
        if kind is not None:
            raise ConfigurationError(
                f"{shown} line {node.start_mark.line + 1}: {'.'.join(path)}: {node.value[:40]} is {kind} in YAML; "
                f"write it plainly, such as 90, 90s or 30m, or in quotes if it is a text"
            )


_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _refuse_aliases(text: str, shown: str) -> None:
    """YAML's own aliases (`*name`) can make a small file huge, and a plan needs none."""
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.AliasToken):
            raise ConfigurationError(
                f"{shown} line {token.start_mark.line + 1}: write it out; a plan has no YAML aliases"
            )

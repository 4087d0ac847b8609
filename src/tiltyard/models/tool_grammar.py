"""The grammar of forced calls, in llguidance's language: the model's own way to write them, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import orjson

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json
from tiltyard.models.tool_formats import ToolFormat
from tiltyard.wire.structured import MAX_SOURCE_BYTES, Structure
from tiltyard.wire.tools import Tool, ToolUse

MAX_FORCED_CALLS = 16
"""A small model that has begun to call may not find an end."""
# The spacing of Python's `json.dumps`, in which templates show calls to models.
_SPACING: dict[str, Json] = {
    "lenient": False, "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ",
}  # fmt: skip
Literal = Callable[[str], str]


def forced_calls(
    rules: ToolFormat, use: ToolUse, control_tokens: Mapping[str, int], *, single: bool
) -> Structure:
    """The demand that an answer be one call of `use.callable`, or several if not `single`.

    `control_tokens` are the model's: a mark that is one must come as that token. Raises `InvalidRequest` for
    parameters that are no schema of an object, or too long to compile.
    """
    literal = _literals(rules, control_tokens)
    calls = [_call(rules, tool, literal) for tool in use.callable]
    lines = [f"call_{index}: {call}" for index, call in enumerate(calls)]
    lines.append("call: " + " | ".join(f"call_{index}" for index in range(len(calls))))
    begin, end, between = literal(rules.begin), literal(rules.end), literal(rules.between)
    more = f"{{0,{MAX_FORCED_CALLS - 1}}}"
    if single:
        start = f"{begin} call {end}"
    elif rules.listed:
        start = f"{begin} call ({between} call){more} {end}"
    else:
        lines.append(f"section: {begin} call {end}")
        start = f"section ({between} section){more}"
    source = "\n".join([f"start: {start}", *lines])
    if (size := len(source.encode("utf-8", "surrogatepass"))) > MAX_SOURCE_BYTES:
        raise InvalidRequest(
            f"tools has {size:,} bytes of schemas; at most {MAX_SOURCE_BYTES:,} are compiled. Send fewer tools",
            param="tools",
            code="grammar_too_complex",
        )
    return Structure("grammar", source, param="tools")


def _literals(rules: ToolFormat, control_tokens: Mapping[str, int]) -> Literal:
    """Write a text as the grammar wants it, with marks that are control tokens as such."""
    marks = [mark for mark in rules.marks if mark in control_tokens]
    cut = re.compile("(" + "|".join(map(re.escape, marks)) + ")") if marks else None

    def literal(text: str) -> str:
        parts = [text] if cut is None else cut.split(text)
        return " ".join(
            f"<[{control_tokens[part]}]>" if part in marks else _quoted(part) for part in parts if part
        )

    return literal


def _call(rules: ToolFormat, tool: Tool, literal: Literal) -> str:
    name, arguments = tool.function.name, _schema(tool)
    if rules.after_name:
        return f"{literal(name + rules.after_name)} %json {arguments}"
    head = f'{{"{rules.name_key}": {_quoted(name)}, "{rules.arguments_key}": '
    return f'{_quoted(head)} %json {arguments} "}}"'


def _schema(tool: Tool) -> str:
    schema, name = tool.parameters, tool.function.name
    if schema.get("type", "object") != "object" or "x-guidance" in schema:
        raise InvalidRequest(
            f"the parameters of function {name!r} must be a schema of type object, without x-guidance",
            param="tools",
            code="grammar_refused",
        )
    try:
        return orjson.dumps({**schema, "type": "object", "x-guidance": _SPACING}).decode()
    except TypeError as error:  # nested deeper than the writer goes, or half of a surrogate pair
        raise InvalidRequest(
            f"the parameters of function {name!r} cannot be written as JSON: {error}", param="tools"
        ) from error


def _quoted(text: str) -> str:
    """A string of the Lark language; JSON's escapes are its own."""
    return orjson.dumps(text).decode()

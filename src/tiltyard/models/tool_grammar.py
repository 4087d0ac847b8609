"""The grammar of answers with calls, in llguidance's language: calls as the model itself writes them, and right."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import orjson

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json
from tiltyard.models.grammar_text import NotExpressible, json_rule
from tiltyard.models.tool_calls import FUNCTION_END, PARAMETER, PARAMETER_END, is_text
from tiltyard.models.tool_formats import ToolFormat
from tiltyard.wire.structured import MAX_SOURCE_BYTES, Structure
from tiltyard.wire.tools import Tool, ToolUse

MAX_FORCED_CALLS = 16
"""A small model that has begun to call may not find an end."""
# The spacing of Python's `json.dumps`, in which templates show calls to models.
_SPACING: dict[str, Json] = {
    "lenient": False, "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ",
}  # fmt: skip
_VALUE_END = f"\n{PARAMETER_END}\n"
_ANNOTATIONS = frozenset(("type", "enum", "description", "title", "default", "examples", "example"))
"""Of a schema of texts: what a grammar can hold, and what asks for nothing."""
Literal = Callable[[str], str]


def form_with_calls(
    rules: ToolFormat,
    use: ToolUse,
    control_tokens: Mapping[str, int],
    *,
    single: bool,
    answer: Structure | None = None,
) -> Structure | None:
    """The demand on an answer that may, or must, call; `None` if there is none.

    Forced calls: one of `use.callable`, or several if not `single`, and nothing else. Not forced, with a form for
    the `answer`: that form, or calls. Not forced, where a function is `strict`: any text, and wherever it begins a
    call, a right one. `control_tokens` are the model's: a mark that is one must come as that token. Raises
    `InvalidRequest` for parameters that are no schema of an object, or too long to compile.
    """
    strict = any(tool.function.strict for tool in use.callable)
    if not use.forced and answer is None and not strict:
        return None
    literal = _literals(rules, control_tokens)
    # Of calls that come by themselves, only what is `strict` is promised. Rules bear the place of a function in
    # `tools`, by which a refusal names it.
    lines: list[str] = []
    names: list[str] = []
    for number, tool in enumerate(use.tools):
        if tool.function.name in use.names:
            names.append(f"call_{number}")
            held = use.forced or bool(tool.function.strict)
            if rules.tagged:
                lines += _tagged(tool, names[-1], held=held)
            else:
                lines.append(_call(rules, tool, literal, names[-1], held=held))
    lines.append("call: " + " | ".join(names))
    if rules.tagged:
        lines += ["VALUE: /(.|\\n)*/", f"value[lazy]: VALUE {_quoted(_VALUE_END)}"]
    if use.forced:
        start = _calls(rules, literal, lines, rules.begin, single=single)
    elif answer is not None:
        lines.append(f"answer: {_answer(answer)}")
        start = "answer | " + _calls(rules, literal, lines, rules.begin, single=single)
    else:
        start = _text_with_calls(rules, literal, lines, control_tokens, single=single)
    source = "\n".join([f"start: {start}", *lines])
    if (size := len(source.encode("utf-8", "surrogatepass"))) > MAX_SOURCE_BYTES:
        raise InvalidRequest(
            f"tools has {size:,} bytes of schemas; at most {MAX_SOURCE_BYTES:,} are compiled. Send fewer tools",
            param="tools",
            code="grammar_too_complex",
        )
    return Structure("tools", source, param="tools")


def _calls(rules: ToolFormat, literal: Literal, lines: list[str], begin: str, *, single: bool) -> str:
    """Sections of calls, the first of which begins with `begin`; adds the rules that it needs."""
    more, between = f"{{0,{MAX_FORCED_CALLS - 1}}}", literal(rules.between)
    if single:
        return f"{literal(begin)} call {literal(rules.end)}"
    if rules.listed:
        return f"{literal(begin)} call ({between} call){more} {literal(rules.end)}"
    lines.append(f"further: {between} {literal(rules.begin)} call {literal(rules.end)}")
    return f"{literal(begin)} call {literal(rules.end)} further{more}"


def _text_with_calls(
    rules: ToolFormat,
    literal: Literal,
    lines: list[str],
    control_tokens: Mapping[str, int],
    *,
    single: bool,
) -> str:
    if rules.bare:
        # Text that the parser does not take for the beginning of calls.
        lines.append(r"TEXT: /([ \t\n\r]*[^{\[ \t\n\r](.|\n)*)?/")
        return f"TEXT | {_calls(rules, literal, lines, rules.begin, single=single)}"
    mark = rules.opens[0]
    lines.append("TEXT: /(.|\\n)*/")
    if mark in control_tokens:
        head = f"TEXT {literal(mark)}"
    else:
        lines.append(f"head[lazy]: TEXT {literal(mark)}")  # lazy: where the mark ends, a call begins
        head = "head"
    lines.append(
        f"section: {head} {_calls(rules, literal, lines, rules.begin[len(mark) :], single=True if not rules.listed else single)}"
    )
    lines.append("text: TEXT")
    return "text | section" if single else "section* text"


def _answer(structure: Structure) -> str:
    try:
        return json_rule(structure)
    except NotExpressible as refused:
        place = f"{structure.param} at {refused.path}" if refused.path else structure.param
        raise InvalidRequest(
            f"{place}: {refused.reason}", param=structure.param, code="grammar_refused"
        ) from refused


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


def _call(rules: ToolFormat, tool: Tool, literal: Literal, rule: str, *, held: bool) -> str:
    """The rule of a call that is JSON, or JSON behind a name."""
    name, arguments = tool.function.name, _schema(tool if held else None)
    if rules.after_name:
        return f"{rule}: {literal(name + rules.after_name)} %json {arguments}"
    head = f'{{"{rules.name_key}": {_quoted(name)}, "{rules.arguments_key}": '
    return f'{rule}: {_quoted(head)} %json {arguments} "}}"'


def _tagged(tool: Tool, rule: str, *, held: bool) -> list[str]:
    """The rules of a call in tags; raises `InvalidRequest` for what a value without quotes cannot be held to."""
    begin, end = _quoted(f"<function={tool.function.name}>\n"), _quoted(FUNCTION_END)
    if not held:
        anything = f'"<parameter=" /[^<>\\n]{{1,64}}/ {_quoted(">" + chr(10))} value'
        return [f"{rule}: {begin} ({anything})* {end}"]
    schema: dict[str, Json] = orjson.loads(_schema(tool))
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise _refused(tool, "needs an object of properties and a list of required ones")
    lines, parts = list[str](), [begin]
    for number, (key, member) in enumerate(properties.items()):
        tag = f"<parameter={key}>"
        if PARAMETER.fullmatch(tag) is None:
            raise _refused(tool, f"has a property {key[:64]!r}, which cannot be written as a tag")
        lines.append(f"{rule}_{number}: {_quoted(tag + chr(10))} {_value(tool, schema, key, member)}")
        parts.append(f"{rule}_{number}" if key in required else f"{rule}_{number}?")
    return [f"{rule}: {' '.join([*parts, end])}", *lines]


def _value(tool: Tool, schema: Mapping[str, Json], key: str, member: Json) -> str:
    """A value and what ends it."""
    own = member if isinstance(member, dict) else {}
    if not is_text(own):
        shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        value = orjson.dumps({**shared, **own, "x-guidance": _SPACING}).decode()
        return f"%json {value} {_quoted(_VALUE_END)}"
    if unheld := own.keys() - _ANNOTATIONS:
        raise _refused(tool, f"has {min(unheld)!r} at {key!r}, to which text in tags cannot be held")
    if (allowed := own.get("enum")) is None:
        return "value"
    if not isinstance(allowed, list) or not allowed:
        raise _refused(tool, f"allows nothing at {key!r}")
    return "(" + " | ".join(_quoted(f"{one}{_VALUE_END}") for one in allowed) + ")"


def _refused(tool: Tool, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"the schema of function {tool.function.name!r} {what}; change it, or send tool_choice auto without strict",
        param="tools",
        code="grammar_refused",
    )


def _schema(tool: Tool | None) -> str:
    if tool is None:
        return orjson.dumps({"type": "object", "x-guidance": _SPACING}).decode()
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

"""From what a request demands to a grammar in llguidance's language, or the reason why it cannot be.

The forms of `Structure` (`wire/structured.py`): JSON schemas, regular expressions, choices, Lark and GBNF grammars.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import orjson
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from tiltyard.identity.canonical import Json
from tiltyard.wire.structured import Structure

NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
"""At the end of a grammar, where it moves no line number and overrules. Without it the library asks for a canonical tokenization of forced text, and would call Python inside a mask."""

GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
LARK_PART = re.compile(
    r'//[^\n]*|%[^\n]*|"(?:[^"\\]|\\.)*"|/(?:[^/\\]|\\.)+/|[A-Za-z_][A-Za-z0-9_]*|\s+|.', re.DOTALL
)
"""Comments, directives, strings, expressions, names, white space, anything else."""
LARK_TEMPERATURE = re.compile(r"^[ \t]*([A-Za-z_]\w*)\[[^\]\n]*\btemperature\b", re.MULTILINE)
"""`rule[temperature=2.0]: …`: the library reads it and leaves it to its caller, which would be to ignore it."""
LARK_CHARACTER = re.compile(r"\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\x[0-9a-fA-F]{2}|\\.|.", re.DOTALL)
WHERE_IN_OURS = re.compile(r"^at 1\(\d+\): failed to compile JSON schema: ")
WHERE_IN_TOOLS = re.compile(r"^at (\d+)\(\d+\): failed to compile JSON schema: (.*)", re.DOTALL)
MORE = re.compile(r"\n   1 \| |\n<backtrace>|\n<non-verbose/>|\n<state>")
"""What the library adds to its reasons."""
NO_TEXT = "NoExtension"
UNIMPLEMENTED = re.compile(r"^Unimplemented keys: (\[.*\])$")


class NotExpressible(ValueError):
    """The demand is not understood; `path` is the place in a JSON schema, if there is one."""

    def __init__(self, reason: str, path: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


def grammar_text(structure: Structure) -> str:
    """Write a demand as a grammar; raises `NotExpressible`. What it means is checked when it is compiled."""
    match structure.kind:
        case "json_object" | "json_schema":
            return f"start: {json_rule(structure)}{NO_FORCING}"
        case "regex":
            # The library escapes what must be escaped inside /…/.
            made = orjson.loads(LLMatcher.grammar_from_regex(structure.source))
            return str(made["grammars"][0]["lark_grammar"]) + NO_FORCING
        case "choice":
            return "start: " + " | ".join(map(_quoted, orjson.loads(structure.source))) + NO_FORCING
        case "grammar":
            return _lark(structure.source)
        case "tools":
            return structure.source + NO_FORCING


def explain(structure: Structure, message: str) -> NotExpressible:
    """Say a refusal of the library in our words, with the place in the schema where there is one."""
    first = WHERE_IN_OURS.sub("", MORE.split(message, maxsplit=1)[0]).strip()
    if NO_TEXT in first:
        return NotExpressible("no text satisfies it")
    if structure.kind == "tools":
        return _explain_tools(structure.source, first)
    if structure.kind not in ("json_object", "json_schema"):
        return NotExpressible(first)
    return _explain_json(orjson.loads(structure.source), first)


def _explain_tools(source: str, message: str) -> NotExpressible:
    """The same for the schema of one function, whose place in `tools` the name of its rule tells."""
    if (found := WHERE_IN_TOOLS.match(message)) is None:
        return NotExpressible(message)
    line = source.split("\n")[int(found.group(1)) - 1]
    rule, _, schema = line.partition(" %json ")
    if not rule.startswith("call_"):
        return NotExpressible(found.group(2))
    parameters, _ = json.JSONDecoder().raw_decode(schema)  # behind it stands what ends the call
    inner = _explain_json(parameters, found.group(2))
    number = rule.removeprefix("call_").partition(":")[0]
    place = f"tools[{number}].function.parameters{'' if inner.path is None else inner.path[1:]}"
    return NotExpressible(inner.reason, place)


def _explain_json(schema: Json, first: str) -> NotExpressible:
    if match := UNIMPLEMENTED.match(first):
        words = orjson.loads(match.group(1))
        path = next((p for word in words for p in _paths_of_keyword(schema, word)), None)
        return NotExpressible(f"the keyword {' and '.join(map(repr, words))} is not supported", path)
    if first.startswith("oneOf constraints"):
        return NotExpressible(
            "the keyword 'oneOf' is supported only where its options exclude each other; use anyOf",
            next(_paths_of_keyword(schema, "oneOf"), None),
        )
    return NotExpressible(first, _path_of_mention(schema, first))


def json_rule(structure: Structure) -> str:
    """A JSON demand as the body of a rule; raises `NotExpressible`."""
    schema = orjson.loads(structure.source)
    if isinstance(schema, bool):
        if not schema:
            raise NotExpressible("the schema `false` allows no document", "$")
        schema = {}
    if not isinstance(schema, dict):
        raise NotExpressible("a schema is an object, or true", "$")
    if "x-guidance" in schema:  # the library's own switches: `lenient` would make it ignore keywords
        raise NotExpressible("x-guidance may not be set by a request", "$.x-guidance")
    schema["x-guidance"] = {"lenient": False, "whitespace_flexible": structure.any_whitespace}
    try:
        return f"%json {orjson.dumps(schema).decode()}"
    except TypeError as error:
        raise NotExpressible("the schema is nested too deeply") from error


def _lark(source: str) -> str:
    if GBNF_RULE.search(source) is None:
        if rule := LARK_TEMPERATURE.search(source):
            raise NotExpressible(
                f"rule {rule[1]!r} has a temperature; the request's own holds for all of the answer"
            )
        return source + NO_FORCING
    try:
        lark = gbnf_to_lark(source)
    except Exception as error:
        raise NotExpressible(f"the GBNF grammar cannot be read: {error}") from error
    return _one_character_each(lark) + NO_FORCING


def _one_character_each(lark: str) -> str:
    """Make every terminal a single character, as GBNF means it.

    Lark's terminals take all they can: of `num ::= [0-9]+ ws` and `root ::= num "\\n"`, `ws` would always take the
    line feed, and no text would ever be complete.
    """
    parts: list[str] = []
    for part in LARK_PART.findall(lark):
        if part.startswith('"'):
            characters = LARK_CHARACTER.findall(part[1:-1])
            alone = " ".join(f'"{character}"' for character in characters) or '""'
            parts.append(f"({alone})")
        elif part.isupper() and part.isidentifier():
            parts.append("terminal_" + part.lower())
        elif not part.startswith("//"):
            parts.append(part)
    return "".join(parts)


def _quoted(text: str) -> str:
    """A string of the Lark language; JSON's escapes are its own."""
    return orjson.dumps(text).decode()


SCHEMA_MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
DATA = frozenset(("enum", "const", "default", "examples", "example"))


def _subschemas(schema: Json, path: str = "$") -> Iterator[tuple[str, dict[str, Json]]]:
    """Every schema in a schema, with its path; data such as an enum's values is not looked into."""
    stack: list[tuple[str, Json, bool]] = [(path, schema, False)]
    while stack:
        at, value, is_map = stack.pop()
        if isinstance(value, dict):
            if not is_map:
                yield at, value
            for name, member in reversed(value.items()):
                if is_map or name not in DATA:
                    stack.append((f"{at}.{name}", member, not is_map and name in SCHEMA_MAPS))
        elif isinstance(value, list):
            stack.extend((f"{at}[{i}]", value[i], False) for i in reversed(range(len(value))))


def _paths_of_keyword(schema: Json, keyword: str) -> Iterator[str]:
    return (f"{path}.{keyword}" for path, value in _subschemas(schema) if keyword in value)


PLACES = {"Pointer": "$ref", "Resource": "$ref", "regex": "pattern", "patternProperty": "patternProperties"}
"""What the library calls a thing, and the keyword that makes it."""


def _path_of_mention(schema: Json, message: str) -> str | None:
    """The first keyword whose value the message says (`Unknown format: foo`), else the first that it names."""
    words = set(re.findall(r"[\w$-]{3,}", message))
    likely = words | {keyword for word, keyword in PLACES.items() if word in words}
    named = [
        (f"{path}.{name}", name, member)
        for path, value in _subschemas(schema)
        for name, member in value.items()
        if name in likely
    ]
    for path, _, member in named:
        if isinstance(member, str) and len(member) > 2 and member.lstrip("#") in message:
            return path
    return next((path for path, name, _ in named if name not in ("type", "pattern")), None)

"""One call as it is written, read as it comes: as a JSON object, as arguments behind a name, or in tags.

What has been read of a call says where its arguments stand, so that they can be shown while they are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Protocol

import orjson

from tiltyard.models.json_scan import ObjectScan

NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")
OTHER_KEYS = ("id", "type", "tool_call_id")
"""Members of a call that say nothing to its caller."""
_MEMBERS = frozenset((*NAME_KEYS, *ARGUMENT_KEYS, *OTHER_KEYS))

Schemas = Mapping[str, Mapping[str, object]]
"""Of the functions that may be called, by name: the schema of the parameters."""


class CallReader(Protocol):
    """Reads one call. Where it takes less than it is given, more text is needed, unless it is `done` or `broken`."""

    @property
    def done(self) -> bool:
        """The call is complete."""

    @property
    def broken(self) -> bool:
        """What follows the taken text makes it no call."""

    @property
    def length(self) -> int:
        """Characters taken."""

    @property
    def text(self) -> str:
        """All that was taken."""

    @property
    def name(self) -> str:
        """The function's name; empty while it is not known."""

    @property
    def span(self) -> tuple[int, int | None] | None:
        """Where in `text` the arguments begin and, once they have ended, end; `None` if they do not stand there."""

    def feed(self, text: str) -> int:
        """Take characters; returns how many."""

    def arguments(self) -> str | None:
        """The arguments of a complete call as JSON text; `None` if they are no object."""


class _Scanned:
    """What every reader of one JSON object shows of its scan."""

    def __init__(self, scan: ObjectScan) -> None:
        self._scan = scan
        self.feed = scan.feed

    @property
    def done(self) -> bool:
        """See `CallReader`."""
        return self._scan.done

    @property
    def broken(self) -> bool:
        """See `CallReader`."""
        return self._scan.broken

    @property
    def length(self) -> int:
        """See `CallReader`."""
        return self._scan.length

    @property
    def text(self) -> str:
        """See `CallReader`."""
        return self._scan.text


class JsonCall(_Scanned):
    """`{"name": …, "arguments": {…}}`, with a name or two for either member."""

    def __init__(self) -> None:
        super().__init__(ObjectScan(_MEMBERS))

    @property
    def name(self) -> str:
        """See `CallReader`."""
        return _string(self._value(NAME_KEYS))

    @property
    def span(self) -> tuple[int, int | None] | None:
        """See `CallReader`."""
        members = self._scan.members
        return next((members[key] for key in ARGUMENT_KEYS if key in members), None)

    def arguments(self) -> str | None:
        """See `CallReader`; arguments may be an object written as a string, too."""
        arguments = self._value(ARGUMENT_KEYS) or "{}"
        if arguments.startswith('"'):
            arguments = _string(arguments)
        return arguments if _is_object(arguments) else None

    def _value(self, keys: Collection[str]) -> str | None:
        return next((value for key in keys if (value := self._scan.value(key)) is not None), None)


class NamedArguments(_Scanned):
    """`{…}` behind a name that has been read."""

    def __init__(self, name: str) -> None:
        super().__init__(ObjectScan())
        self.name = name

    @property
    def span(self) -> tuple[int, int | None] | None:
        """See `CallReader`."""
        return 0, self.length if self.done else None

    def arguments(self) -> str | None:
        """See `CallReader`."""
        return self.text if _is_object(self.text) else None


HEAD = re.compile(r"<function=([\w.-]{1,64})>")
PARAMETER = re.compile(r"<parameter=([^<>\n]{1,64})>")
LONGEST_TAG = len("<parameter=>") + 64
FUNCTION_END, PARAMETER_END = "</function>", "</parameter>"


class TaggedCall:
    """`<function=NAME>`, a `<parameter=KEY>` for each argument, `</function>`.

    A value is text where the schema says string, else JSON; JSON that is none is text, as in the models' own parser.
    """

    span = None

    def __init__(self, schemas: Schemas) -> None:
        self.name = ""
        self.done = False
        self.broken = False
        self.length = 0
        self._schemas = schemas
        self._parts: list[str] = []
        self._values: dict[str, object] = {}

    @property
    def text(self) -> str:
        """See `CallReader`."""
        return "".join(self._parts)

    def feed(self, text: str) -> int:
        """See `CallReader`; takes whole tags, and parameters with their values."""
        at = 0
        while not (self.done or self.broken) and (end := self._next(text, at)) > at:
            at = end
        self._parts.append(text[:at])
        self.length += at
        return at

    def arguments(self) -> str | None:
        """See `CallReader`."""
        return json.dumps(self._values, ensure_ascii=False)

    def _next(self, text: str, at: int) -> int:
        """Where the next tag or parameter ends; `at` if it is not whole yet, or none."""
        if not self.name:
            if (head := HEAD.match(text, at)) is None:
                return self._wait_or_break(text, at, ("<function=",))
            self.name = head.group(1)
            return head.end()
        if text[at : at + 1].isspace():
            return at + 1
        if text.startswith(FUNCTION_END, at):
            self.done = True
            return at + len(FUNCTION_END)
        if (tag := PARAMETER.match(text, at)) is None:
            return self._wait_or_break(text, at, ("<parameter=", FUNCTION_END))
        if (end := text.find(PARAMETER_END, tag.end())) < 0:
            return at
        value = text[tag.end() : end].removeprefix("\n").removesuffix("\n")
        self._values[tag.group(1)] = self._typed(tag.group(1), value)
        return end + len(PARAMETER_END)

    def _wait_or_break(self, text: str, at: int, tags: Collection[str]) -> int:
        """More text may complete a tag that has begun; anything else makes it no call."""
        rest = text[at:]
        begun = any(tag.startswith(rest) for tag in tags)
        named = len(rest) < LONGEST_TAG and not (">" in rest or "\n" in rest) and rest.startswith(tuple(
            tag for tag in tags if tag.endswith("=")
        ))  # fmt: skip
        self.broken = not (begun or named)
        return at

    def _typed(self, key: str, value: str) -> object:
        properties = self._schemas.get(self.name, {}).get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        if is_text(schema if isinstance(schema, Mapping) else {"type": "string"}):
            return value
        try:
            typed: object = orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
        return typed


def is_text(schema: Mapping[str, object]) -> bool:
    """Whether a parameter is written as it is, without quotes."""
    allowed = schema.get("enum")
    return schema.get("type") == "string" or (
        "type" not in schema and isinstance(allowed, list) and all(isinstance(one, str) for one in allowed)
    )


def _string(text: str | None) -> str:
    if text is None or not text.startswith('"'):
        return ""
    try:
        return str(orjson.loads(text))
    except orjson.JSONDecodeError:  # half of a surrogate pair
        return ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False

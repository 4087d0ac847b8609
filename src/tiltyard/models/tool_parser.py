"""An answer's text to content and calls, as it comes: any cut of a text into pieces gives the same.

    parser = ToolParser(BY_NAME["hermes"], frozenset({"add"}))
    parser.push('Wait.\\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    # Piece(text='Wait.', calls=[CallDelta(number=0, name='add', arguments='{"a": 1}')])

What looks like a call and is none (no JSON, a function that was not offered, arguments that are no object) is content,
to the letter.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, NamedTuple

import orjson

from tiltyard.models.json_scan import ObjectScan
from tiltyard.models.tool_formats import ToolFormat

NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")
OTHER_KEYS = frozenset(("id", "type", "tool_call_id"))
"""Members of a call that say nothing to its caller."""
MOST_WHITE = 64
"""White space next to a call that is taken for a part of it, and waits to be shown; more is content."""
MOST_SEPARATORS = 256
_SEPARATORS = frozenset(" \t\n\r,;[]")
_WHITE = " \t\n\r"
_BARE_NAME = re.compile(r"[\w.-]{1,64}")


class CallDelta(NamedTuple):
    """A piece of a call; the name comes with the first one, the pieces of `arguments` are to be joined."""

    number: int
    """Of the call in its answer, from 0."""
    name: str | None
    arguments: str


class Piece(NamedTuple):
    """What a piece of text turned out to be."""

    text: str
    calls: list[CallDelta]


class ToolParser:
    """Reads one answer.

    With `live`, arguments are given out while they are written; only for an answer that is held to a grammar,
    since what was given out cannot be taken back. Else a call is given out when it is complete and right. With
    `single` the answer is over after one call.
    """

    def __init__(
        self, rules: ToolFormat, names: Collection[str], *, live: bool = False, single: bool = False
    ) -> None:
        self._rules = rules
        self._names = names
        self._live = live
        self._single = single
        self.calls = 0
        """Calls so far that are complete and right."""
        self.done = False
        """No more text is needed."""
        self._state: Literal["text", "section", "object"] = "text"
        self._may_be_bare = rules.bare
        self._buffer = ""
        self._raw = ""  # of a section, since its last call: what is content if no call comes of it
        self._in_section = 0  # calls of the present section
        self._after_section = False
        self._scan = ObjectScan()
        self._bare_name: str | None = None
        self._begun = False  # the call that is being read was given out in part
        self._text: list[str] = []
        self._deltas: list[CallDelta] = []

    def push(self, text: str) -> Piece:
        """Add a piece of the answer."""
        self._buffer += text
        while self._buffer and not self.done and self._step(final=False):
            pass
        return self._taken()

    def finish(self) -> Piece:
        """The answer is over: what waits to become a call is content.

        Not with `live`: the grammar would have made a call of it, so it is the beginning of one that was cut short.
        """
        while self._buffer and not self.done and self._step(final=True):
            pass
        if not self.done and not self._live:
            if self._state == "object" and not self._begun:
                self._text.append(self._raw + self._scan.text)
            elif self._state == "section" and not self._in_section:
                self._text.append(self._raw)
        self.done = True
        return self._taken()

    def _taken(self) -> Piece:
        piece = Piece("".join(self._text), self._deltas)
        self._text, self._deltas = [], []
        return piece

    def _step(self, *, final: bool) -> bool:
        """Go on by one step; False if there is nothing to do before more text comes."""
        match self._state:
            case "text":
                return self._in_text(final=final)
            case "section":
                return self._between_calls(final=final)
            case "object":
                return self._in_object()

    def _in_text(self, *, final: bool) -> bool:
        if self._may_be_bare:
            inner = self._buffer.lstrip(_WHITE)
            if not inner and not final and len(self._buffer) <= MOST_WHITE:
                return False
            self._may_be_bare = False
            if inner[:1] in ("{", "[") and len(self._buffer) - len(inner) <= MOST_WHITE:
                self._open_section(self._buffer[: len(self._buffer) - len(inner)])
                self._buffer = inner
                return True
        at, mark = self._first_mark()
        if at >= 0:
            said = self._buffer[: at - self._white_before(at)]
            self._say(said)
            self._open_section(self._buffer[len(said) : at + len(mark)])
            self._buffer = self._buffer[at + len(mark) :]
            return True
        hold = 0 if final else self._hold_back()
        said = self._buffer[: len(self._buffer) - hold]
        if final and self._after_section and not said.strip(_WHITE):
            said = ""
        self._say(said)
        self._buffer = self._buffer[len(self._buffer) - hold :]
        return False

    def _first_mark(self) -> tuple[int, str]:
        found = [(at, mark) for mark in self._rules.opens if (at := self._buffer.find(mark)) >= 0]
        return min(found, default=(-1, ""))

    def _hold_back(self) -> int:
        """Length of the end that could become a mark, with the white space before it."""
        text, hold = self._buffer, 0
        for mark in self._rules.opens:
            for length in range(min(len(mark) - 1, len(text)), hold, -1):
                if text.endswith(mark[:length]):
                    hold = length
                    break
        return hold + self._white_before(len(text) - hold)

    def _white_before(self, at: int) -> int:
        """Characters of white space before a place of the buffer, as far as they may belong to a call."""
        near = self._buffer[max(0, at - MOST_WHITE) : at]
        return len(near) - len(near.rstrip(_WHITE))

    def _say(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._after_section = False

    def _open_section(self, raw: str) -> None:
        self._state, self._raw, self._in_section = "section", raw, 0

    def _between_calls(self, *, final: bool) -> bool:
        rules, text = self._rules, self._buffer
        marks = (rules.close, *rules.opens) if rules.close else rules.opens
        for mark in marks:
            if text.startswith(mark):
                self._buffer = text[len(mark) :]
                if not self._in_section:
                    self._say(self._raw)
                    self._raw = ""
                if mark != rules.close:
                    self._open_section(mark)
                elif self._in_section:
                    self._leave()
                else:
                    self._say(mark)
                    self._state = "text"
                return True
            if not final and mark.startswith(text):
                return False
        if text[0] in _SEPARATORS and len(self._raw) < MOST_SEPARATORS:
            self._raw += text[0]
            self._buffer = text[1:]
            return True
        if text[0] == "{" and not rules.after_name:
            self._begin_object(None)
            return True
        if rules.after_name and (named := self._read_name(final=final)) is not None:
            return named
        if self._in_section:  # the section is over, though nothing closed it
            self._buffer = self._raw + text
            self._leave()
        else:
            self._say(self._raw)
            self._state = "text"
        return True

    def _leave(self) -> None:
        self._state, self._raw, self._after_section = "text", "", True

    def _read_name(self, *, final: bool) -> bool | None:
        """Read `name[ARGS]`; `None` if it is no such thing, False if more text is needed."""
        text, mark = self._buffer, self._rules.after_name
        name = _BARE_NAME.match(text)
        if name is None:
            return None
        rest = text[name.end() :]
        if rest.startswith(mark):
            self._raw += text[: name.end() + len(mark)]
            self._buffer = rest[len(mark) :]
            self._begin_object(name.group())
            return True
        return None if final or not mark.startswith(rest) else False

    def _begin_object(self, name: str | None) -> None:
        self._state, self._scan, self._bare_name, self._begun = "object", ObjectScan(), name, False

    def _in_object(self) -> bool:
        scan, before = self._scan, self._scan.length
        taken = scan.feed(self._buffer)
        fresh, self._buffer = self._buffer[:taken], self._buffer[taken:]
        if self._live:
            self._give_out(fresh, before)
        if scan.broken or not self._known_members():
            if not self._begun:
                self._say(self._raw + scan.text)
            self._state, self._raw = "text", ""
        elif scan.done:
            self._complete()
        else:
            return False
        return True

    def _known_members(self) -> bool:
        """Whether it may still be a call: an answer that is other JSON is told from one at its first member."""
        return self._bare_name is not None or all(
            name in NAME_KEYS or name in ARGUMENT_KEYS or name in OTHER_KEYS for name in self._scan.members
        )

    def _complete(self) -> None:
        call = self._call()
        if self._begun:
            self._count()
        elif call is None:
            self._say(self._raw + self._scan.text)
            self._state, self._raw = "text", ""
        else:
            self._deltas.append(CallDelta(self.calls, *call))
            self._count()

    def _count(self) -> None:
        self.calls += 1
        self._in_section += 1
        self._state, self._raw = "section", ""
        self.done = self._single

    def _call(self) -> tuple[str, str] | None:
        """Name and arguments, if the object is a call of a function that was offered."""
        scan = self._scan
        if self._bare_name is not None:
            name, arguments = self._bare_name, scan.text
        else:
            name, arguments = _string(_first(scan, NAME_KEYS)), _first(scan, ARGUMENT_KEYS) or "{}"
            if arguments.startswith('"'):
                arguments = _string(arguments)
        return (name, arguments) if name in self._names and _is_object(arguments) else None

    def _give_out(self, fresh: str, before: int) -> None:
        """The part of `fresh`, which begins at `before`, that belongs to the arguments."""
        scan = self._scan
        if self._bare_name is not None:
            start, end = 0, scan.length if scan.done else None
        else:
            key = next((key for key in ARGUMENT_KEYS if key in scan.members), None)
            if key is None:
                return
            start, end = scan.members[key]
        stop = scan.length if end is None else end
        piece = fresh[max(0, start - before) : max(0, stop - before)]
        if not piece:
            return
        if self._begun:
            self._deltas.append(CallDelta(self.calls, None, piece))
            return
        name = self._bare_name if self._bare_name is not None else _string(_first(scan, NAME_KEYS))
        if name in self._names:
            self._deltas.append(CallDelta(self.calls, name, piece))
            self._begun = True


def _first(scan: ObjectScan, keys: Collection[str]) -> str | None:
    return next((value for key in keys if (value := scan.value(key)) is not None), None)


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

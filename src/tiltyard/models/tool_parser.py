"""An answer's text to content and calls, as it comes: any cut of a text into pieces gives the same.

    parser = ToolParser(BY_NAME["hermes"], {"add": {}})
    parser.push('Wait.\\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    # Piece(text='Wait.', calls=[CallDelta(number=0, name='add', arguments='{"a": 1}')])

What looks like a call and is none (no JSON, a function that was not offered, arguments that are no object) is content,
to the letter.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from tiltyard.models.tool_calls import CallReader, JsonCall, NamedArguments, Schemas, TaggedCall
from tiltyard.models.tool_formats import ToolFormat

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
    """Reads one answer; `schemas` has the functions that may be called.

    With `live`, arguments are given out while they are written; only for an answer that is held to a grammar,
    since what was given out cannot be taken back. Else a call is given out when it is complete and right. With
    `single` the answer is over after one call.
    """

    def __init__(
        self, rules: ToolFormat, schemas: Schemas, *, live: bool = False, single: bool = False
    ) -> None:
        self._rules = rules
        self._schemas = schemas
        self._live = live
        self._single = single
        self.calls = 0
        """Calls so far that are complete and right."""
        self.done = False
        """No more text is needed."""
        self._state: Literal["text", "section", "call"] = "text"
        self._may_be_bare = rules.bare
        self._buffer = ""
        self._raw = ""  # of a section, since its last call: what is content if no call comes of it
        self._in_section = 0  # calls of the present section
        self._after_section = False
        self._reader: CallReader = JsonCall()
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
            if self._state == "call" and not self._begun:
                self._text.append(self._raw + self._reader.text + self._buffer)
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
            case "call":
                return self._in_call()

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
        if rules.tagged and "<function=".startswith(text[:10]):
            if len(text) < 10 and not final:
                return False
            self._begin_call(TaggedCall(self._schemas))
            return True
        if text[0] == "{" and not (rules.after_name or rules.tagged):
            self._begin_call(JsonCall())
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
            self._begin_call(NamedArguments(name.group()))
            return True
        return None if final or not mark.startswith(rest) else False

    def _begin_call(self, reader: CallReader) -> None:
        self._state, self._reader, self._begun = "call", reader, False

    def _in_call(self) -> bool:
        reader, before = self._reader, self._reader.length
        taken = reader.feed(self._buffer)
        fresh, self._buffer = self._buffer[:taken], self._buffer[taken:]
        if self._live:
            self._give_out(fresh, before)
        if reader.broken:
            if not self._begun:
                self._say(self._raw + reader.text)
            self._state, self._raw = "text", ""
        elif reader.done:
            self._complete()
        else:
            return False
        return True

    def _complete(self) -> None:
        reader = self._reader
        arguments = None if self._begun or reader.name not in self._schemas else reader.arguments()
        if not self._begun and arguments is None:
            self._say(self._raw + reader.text)
            self._state, self._raw = "text", ""
            return
        if arguments is not None:
            self._deltas.append(CallDelta(self.calls, reader.name, arguments))
        self.calls += 1
        self._in_section += 1
        self._state, self._raw = "section", ""
        self.done = self._single

    def _give_out(self, fresh: str, before: int) -> None:
        """The part of `fresh`, which begins at `before`, that belongs to the arguments."""
        if (span := self._reader.span) is None:
            return
        start, end = span
        stop = self._reader.length if end is None else end
        piece = fresh[max(0, start - before) : max(0, stop - before)]
        if not piece:
            return
        if self._begun:
            self._deltas.append(CallDelta(self.calls, None, piece))
        elif (name := self._reader.name) in self._schemas:
            self._deltas.append(CallDelta(self.calls, name, piece))
            self._begun = True

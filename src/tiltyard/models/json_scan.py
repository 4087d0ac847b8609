"""One JSON object read character by character: where it ends, and where it stops being JSON."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import orjson

_WHITE = frozenset(" \t\n\r")
_SCALAR = frozenset("0123456789+-.eEtrufalsn")
_SCALAR_BEGINS = frozenset("-0123456789tfn")
_ESCAPES = frozenset('"\\/bfnrtu')
_HEX = frozenset("0123456789abcdefABCDEF")

_CLOSING = frozenset(
    (opened, closing, expect)
    for opened, closing, first in (("{", "}", "key or end"), ("[", "]", "value or end"))
    for expect in (first, "comma or end")
)
_Expect = Literal["value", "value or end", "key", "key or end", "colon", "comma or end"]


class ObjectScan:
    """An object that begins with the first character fed; of the outermost one, only `names` may be members.

    >>> scan = ObjectScan()
    >>> scan.feed('{"a": {"b": 1}} rest')
    15
    >>> scan.done, scan.members["a"]
    (True, (6, 14))
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self._names = names
        self.length = 0
        """Characters taken."""
        self.done = False
        self.broken = False
        """The character after the taken ones cannot stand there."""
        self.members: dict[str, tuple[int, int | None]] = {}
        """Of the outermost object: where each value begins and ends, the end `None` while it goes on."""
        self._parts: list[str] = []
        self._open: list[str] = []
        self._expect: _Expect = "value"
        self._in_string = False
        self._escape = 0  # characters of an escape that are to come, "\\" itself taken; 5: any of `_ESCAPES`
        self._in_scalar = False
        self._key_at: int | None = None
        self._key = ""
        self._is_key = False

    @property
    def text(self) -> str:
        """All that was taken."""
        return "".join(self._parts)

    def feed(self, text: str) -> int:
        """Take characters up to the object's end or the first wrong one; returns how many."""
        taken = 0
        for character in text:
            if self.done or not self._take(character, taken, text):
                break
            taken += 1
        self._parts.append(text[:taken])
        self.length += taken
        return taken

    def value(self, name: str) -> str | None:
        """The text of a member's value that is complete."""
        start, end = self.members.get(name, (0, None))
        return None if end is None else self.text[start:end]

    def _take(self, character: str, taken: int, text: str) -> bool:
        at = self.length + taken
        if self._in_string:
            return self._take_in_string(character, at, taken, text)
        if self._in_scalar:
            if character in _SCALAR:
                return True
            self._in_scalar = False
            self._value_over(at)
        if character in _WHITE:
            return bool(self._open) or self._wrong()
        return self._take_mark(character, at)

    def _take_in_string(self, character: str, at: int, taken: int, text: str) -> bool:
        if self._escape:
            if self._escape == 5:
                if character not in _ESCAPES:
                    return self._wrong()
                self._escape = 4 if character == "u" else 0
            elif character in _HEX:
                self._escape -= 1
            else:
                return self._wrong()
        elif character == "\\":
            self._escape = 5
        elif character == '"':
            self._in_string = False
            if self._is_key:
                self._key_over(at, taken, text)
            else:
                self._value_over(at + 1)
        elif character < " ":
            return self._wrong()
        return True

    def _key_over(self, at: int, taken: int, text: str) -> None:
        self._expect = "colon"
        if len(self._open) == 1 and self._key_at is not None:
            whole = self.text + text[: taken + 1]
            self._key = str(orjson.loads(whole[self._key_at : at + 1]))

    def _take_mark(self, character: str, at: int) -> bool:
        expect = self._expect
        if character == '"' and expect in ("key", "key or end"):
            self._in_string = self._is_key = True
            self._key_at = at
        elif character == ":" and expect == "colon":
            self._expect = "value"
        elif character == "," and expect == "comma or end":
            self._expect = "key" if self._open[-1] == "{" else "value"
        elif self._open and (self._open[-1], character, expect) in _CLOSING:
            self._close(at)
        elif expect in ("value", "value or end"):
            return self._begin_value(character, at)
        else:
            return self._wrong()
        return True

    def _begin_value(self, character: str, at: int) -> bool:
        if not self._open and character != "{":
            return self._wrong()
        if len(self._open) == 1:
            if self._names is not None and self._key not in self._names:
                return self._wrong()
            self.members[self._key] = (at, None)
        if character in "{[":
            self._open.append(character)
            self._expect = "key or end" if character == "{" else "value or end"
        elif character == '"':
            self._in_string, self._is_key = True, False
        elif character in _SCALAR_BEGINS:
            self._in_scalar = True
        else:
            return self._wrong()
        return True

    def _close(self, at: int) -> None:
        self._open.pop()
        if self._open:
            self._value_over(at + 1)
        else:
            self.done = True

    def _value_over(self, end: int) -> None:
        self._expect = "comma or end"
        if len(self._open) == 1:
            start, _ = self.members[self._key]
            self.members[self._key] = (start, end)

    def _wrong(self) -> bool:
        self.broken = True
        return False

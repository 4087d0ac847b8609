"""A text as its formats mean it: without invisible characters, with plain spaces, hyphens, digits and `@`; and the way back.

`4111\u00a01111…`, `ann\u200b@example.com`, `ann%40example.com` and `４１１１…` name people as well as what is usually typed.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

_INVISIBLE: Final = "\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff"
_SPACES: Final = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_HYPHENS: Final = "\u2010-\u2015\u2212\ufe58\ufe63"
_ODD: Final = re.compile(rf"%40|[{_INVISIBLE}{_SPACES}{_HYPHENS}\uff01-\uff5e]|(?![0-9])\d")
_INVISIBLE_ONE: Final = re.compile(f"[{_INVISIBLE}]")
_SPACE: Final = re.compile(f"[{_SPACES}]")
_HYPHEN: Final = re.compile(f"[{_HYPHENS}]")


@dataclass(frozen=True)
class Folded:
    """`text` stands for another one; `origin` leads back to it."""

    text: str
    _steps: tuple[tuple[int, int], ...]
    """Places in `text` from which the places of the original are further by so much than before, first to last."""

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Where `text[start:end]` stands in the original; `end` is above `start`."""
        return self._at(start), self._at(end - 1) + self._length(end - 1)

    def _at(self, place: int) -> int:
        step = bisect_right(self._steps, (place, 1 << 62)) - 1
        begins, there = self._steps[step]
        return there + place - begins

    def _length(self, place: int) -> int:
        """Three for what stood there as `%40`."""
        following = (
            self._steps[bisect_right(self._steps, (place, 1 << 62))] if place < self._steps[-1][0] else None
        )
        if following is not None and following[0] == place + 1 and self.text[place] == "@":
            return min(3, following[1] - self._at(place))
        return 1


def fold(text: str) -> Folded:
    """Fold a text; one that has nothing odd is itself.

    >>> folded = fold("a\u200bnn%40example.com, 4111\u00a01111")
    >>> folded.text, folded.origin(0, 15)
    ('ann@example.com, 4111 1111', (0, 18))
    """
    parts: list[str] = []
    steps = [(0, 0)]
    at = size = 0
    for odd in _ODD.finditer(text):
        parts.append(text[at : odd.start()])
        size += odd.start() - at
        plain = _plain(odd.group())
        parts.append(plain)
        size += len(plain)
        at = odd.end()
        if len(plain) != len(odd.group()):
            steps.append((size, at))
    if at == 0:
        return Folded(text, ((0, 0),))
    parts.append(text[at:])
    return Folded("".join(parts), tuple(steps))


def _plain(odd: str) -> str:
    if odd == "%40":
        return "@"
    if _INVISIBLE_ONE.match(odd):
        return ""
    if _SPACE.match(odd):
        return " "
    if _HYPHEN.match(odd):
        return "-"
    if (digit := unicodedata.decimal(odd, None)) is not None:
        return str(digit)
    return chr(ord(odd) - 0xFEE0)  # full width

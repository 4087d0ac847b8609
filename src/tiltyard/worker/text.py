"""From token ids to text that may be shown: whole characters only, and never a part of a stop string.

Stop strings act as if the answer were written one character at a time: the stop string that is complete first
wins; of several complete at the same character, the one that began first. So the result does not depend on
how the text is cut into tokens. Text is held back while it could still become a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """What one token made visible."""

    text: str
    """Text that may be shown now; may belong to earlier tokens, and may be empty."""
    stop_match: str | None
    """The stop string that this token completed: the answer ends here."""


class TextStream:
    """The visible text of one answer.

    >>> stream = TextStream(stop=("END",))
    >>> [stream.push(data).text for data in (b"caf\\xc3", b"\\xa9 E", b"N")]
    ['caf', 'é ', '']
    >>> stream.push(b"Dless")
    Piece(text='', stop_match='END')
    """

    def __init__(self, stop: Sequence[str] = (), *, show_stop: bool = False) -> None:
        """With `show_stop` the stop string that ends the answer is part of its text."""
        self._stop = tuple(stop)
        self._show_stop = show_stop
        self._longest = max(map(len, self._stop), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.characters = 0
        """Characters decoded so far, the held ones included."""

    @property
    def held(self) -> int:
        """Characters that are decoded but held back."""
        return len(self._held)

    def push(self, data: bytes, *, may_stop: bool = True) -> Piece:
        """Add the bytes of one token. After a stop match nothing more may be pushed.

        A stop string that is completed while it may not stop is text like any other.
        """
        return self._advance(self._decoder.decode(data), may_stop)

    def finish(self, *, may_stop: bool = True) -> Piece:
        """The answer is over: release what was held; bytes that never became a character turn into U+FFFD."""
        piece = self._advance(self._decoder.decode(b"", final=True), may_stop)
        if piece.stop_match is not None:
            return piece
        text, self._held = piece.text + self._held, ""
        return Piece(text, None)

    def _advance(self, new: str, may_stop: bool) -> Piece:
        self.characters += len(new)
        if not self._stop:
            return Piece(new, None)
        known = len(self._held)
        text = self._held + new
        if may_stop and (match := self._first_match(text, known)):
            start, stop = match
            self._held = ""
            end = start + len(stop) if self._show_stop else start
            return Piece(text[:end], stop)
        hold = self._hold_back(text)
        self._held = text[len(text) - hold :]
        return Piece(text[: len(text) - hold], None)

    def _first_match(self, text: str, known: int) -> tuple[int, str] | None:
        """`(start, stop string)` of the match that ends first; the first `known` characters hold none."""
        best: tuple[int, int, str] | None = None  # end, start, string
        for stop in self._stop:
            start = text.find(stop, max(0, known - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _hold_back(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stop if len(stop) > length):
                return length
        return 0

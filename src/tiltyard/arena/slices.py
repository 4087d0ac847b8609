"""The slice of a battle, by the writing of its first message: told from the words alone, before anybody is asked."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

SliceName = Literal["latin", "han", "kana", "hangul", "cyrillic", "arabic", "devanagari", "other"]

_RANGES: Final[tuple[tuple[int, int, SliceName], ...]] = (
    (0x0041, 0x024F, "latin"),
    (0x0400, 0x052F, "cyrillic"),
    (0x0600, 0x06FF, "arabic"),
    (0x0900, 0x097F, "devanagari"),
    (0x1100, 0x11FF, "hangul"),
    (0x1E00, 0x1EFF, "latin"),
    (0x3040, 0x30FF, "kana"),
    (0x3400, 0x9FFF, "han"),
    (0xAC00, 0xD7AF, "hangul"),
    (0x20000, 0x323AF, "han"),
)


def slice_of(message: str) -> SliceName:
    """Return the writing that most letters of a message belong to; kana wins over the Han letters beside it.

    >>> slice_of("為什麼天空是藍色的?"), slice_of("Why is the sky blue?"), slice_of("空はなぜ青い?")
    ('han', 'latin', 'kana')
    """
    letters = Counter(_script(letter) for letter in message if letter.isalpha())
    if letters["kana"]:
        letters["kana"] += letters.pop("han", 0)
    return max(letters, key=lambda name: (letters[name], name)) if letters else "other"


def _script(letter: str) -> SliceName:
    code = ord(letter)
    return next((name for low, high, name in _RANGES if low <= code <= high), "other")

"""A sentence for people, whose words a page may say in another language than the code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Value: TypeAlias = "int | float | str | tuple[Said, ...]"
"""What stands in a sentence: a number (one digit after the point if it is a float), a name, or sentences side by side."""


def to_tell(words: str) -> str:
    """Mark words that pages say in the reader's language; here they stay as they are."""
    return words


@dataclass(frozen=True)
class Said:
    """Words with `%(name)s` in them, and the values that stand there; `str` is the English sentence.

    >>> str(Said("%(failed)s of %(of)s answers failed", {"failed": 3, "of": 1200}))
    '3 of 1,200 answers failed'
    """

    words: str
    values: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        """Say it in English."""
        return self.words % {name: _written(value) for name, value in self.values.items()}


def _written(value: Value) -> str:
    if isinstance(value, tuple):
        return "; ".join(map(str, value))
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"

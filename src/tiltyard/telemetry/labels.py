"""Labels of metrics that cannot grow without end, whatever comes from outside."""

from __future__ import annotations

from typing import Final

OTHER: Final = "other"
LONGEST: Final = 64
"""Characters of a label's value."""


class FewLabels:
    """The first `most` values are themselves; later ones, and those that are too long, are `other`.

    >>> label = FewLabels(1)
    >>> label("a"), label("b"), label("a")
    ('a', 'other', 'a')
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The label of a value."""
        if value not in self._known:
            if len(self._known) >= self._most or len(value) > LONGEST:
                return OTHER
            self._known.add(value)
        return value

    @property
    def known(self) -> tuple[str, ...]:
        """Every value with a label of its own, sorted."""
        return tuple(sorted(self._known))

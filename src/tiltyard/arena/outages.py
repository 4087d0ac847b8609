"""Models that fail again and again rest for a while: nobody is asked to wait for them, and they do not lose."""

from __future__ import annotations

import time
from collections.abc import Callable


class Outages:
    """Counts failures in a row by behaviour digest; one success clears them.

    After `failures` in a row a model rests for `rest_s`; then it may be drawn again, and one more failure sends it
    back to rest.
    """

    def __init__(
        self, *, failures: int = 3, rest_s: float = 60.0, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures = failures
        self._rest_s = rest_s
        self._clock_s = clock_s
        self._row: dict[str, int] = {}
        self._until_s: dict[str, float] = {}

    def note(self, behaviour: str, *, failed: bool) -> None:
        """Take in how an answer ended; one that the voter stopped says nothing and is not noted."""
        if not failed:
            self._row.pop(behaviour, None)
            self._until_s.pop(behaviour, None)
            return
        self._row[behaviour] = self._row.get(behaviour, 0) + 1
        if self._row[behaviour] >= self._failures:
            self._until_s[behaviour] = self._clock_s() + self._rest_s

    def resting(self, behaviour: str) -> bool:
        """Whether it is left out of draws now."""
        return self._clock_s() < self._until_s.get(behaviour, float("-inf"))

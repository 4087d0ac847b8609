"""Counts by the minute, for the last so many minutes: any window that ends at a minute is a sum of a few additions.

A window of W minutes that ends at a moment has the minute of that moment and the W - 1 before it, counted in whole minutes since 1970: whoever
reads the same events comes to the same sums.
"""

from __future__ import annotations

from array import array
from typing import Final

from tiltyard.objectives.status import Counts

MINUTE_US: Final = 60_000_000


class Minutes:
    """A ring of minutes; what is older than it is long is forgotten.

    >>> ring = Minutes(10)
    >>> ring.add(0, bad=True); ring.add(3 * MINUTE_US, bad=False)
    >>> ring.window(3 * MINUTE_US, 4), ring.window(3 * MINUTE_US, 3)
    (Counts(total=2.0, bad=1.0), Counts(total=1.0, bad=0.0))
    """

    def __init__(self, length: int) -> None:
        """`length` in minutes."""
        self._length = length
        self._total = array("d", bytes(8 * length))
        self._bad = array("d", bytes(8 * length))
        self._newest = -1
        """Minute since 1970 of the newest cell."""

    def add(self, time_us: int, *, bad: bool, count: int = 1) -> None:
        """Count events of a moment."""
        minute = time_us // MINUTE_US
        self._advance(minute)
        if minute > self._newest - self._length:
            cell = minute % self._length
            self._total[cell] += count
            self._bad[cell] += count if bad else 0

    def window(self, now_us: int, minutes: int) -> Counts:
        """Sum up the window of so many minutes that ends at a moment; `minutes` is at most the ring's length."""
        last = now_us // MINUTE_US
        first = max(last - minutes + 1, self._newest - self._length + 1, 0)
        last = min(last, self._newest)
        if first > last:
            return Counts()
        begin, end = first % self._length, last % self._length + 1
        stretches = [(begin, end)] if begin < end else [(begin, self._length), (0, end)]
        return Counts(
            sum(sum(self._total[one:other]) for one, other in stretches),
            sum(sum(self._bad[one:other]) for one, other in stretches),
        )

    def _advance(self, minute: int) -> None:
        if minute <= self._newest:
            return
        for back in range(min(minute - self._newest, self._length)):
            cell = (minute - back) % self._length
            self._total[cell] = self._bad[cell] = 0.0
        self._newest = minute

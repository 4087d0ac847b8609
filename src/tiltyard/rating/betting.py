"""Means of bounded values, tested at every look: capital that a gambler makes against "the mean is m".

For values x in [0, 1], the capital K_t(m) = prod_{i<=t} (1 + l_i (x_i - m)) with bets l_i >= 0 made before x_i is seen is
a non-negative supermartingale wherever the mean is at most m, given the past. By Ville's inequality it exceeds 1/a at any
time at all with probability at most a: whoever looks after each value, and stops when it pleases, is wrong no more often.
The means that nobody got rich against are a confidence sequence.

I. Waudby-Smith, A. Ramdas: *Estimating means of bounded random variables by betting*, JRSS B 86 (2024), 1-27: capital and
hedging in section 4 (eq. 19-24), the bets of `_bets` are "aGRAPA" (eq. 37 with c = 1/2 as in section 4.3). Differences of
pairs are means of bounded values too, so one test serves proportions, votes with ties and paired comparisons.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tiltyard.errors import InvalidRequest

GRID = 401
"""Means that are tried."""
TRUNCATION = 0.5
"""The most of its capital that a bet may lose."""
_CHUNK = 2048
"""Values at once: the bets on them are a table of this many rows."""


class Interval(NamedTuple):
    """Ends of an interval that holds at all times at once."""

    low: float
    high: float


class BoundedMean:
    """A confidence sequence for the mean of values between two bounds; values may come one by one.

    >>> mean = BoundedMean(0.05, bounds=(-1, 1), margins=(-0.1,))
    >>> mean.extend([0, 1, 0, 1, 1, 0, 1, 1] * 20)
    >>> mean.above(-0.1), mean.below(-0.1)
    (True, False)
    """

    def __init__(
        self, alpha: float, *, bounds: tuple[float, float] = (0.0, 1.0), margins: tuple[float, ...] = ()
    ) -> None:
        """`alpha` is the error of each side; `margins` are means that `above` and `below` will be asked about."""
        if not 0 < alpha < 1:
            raise InvalidRequest(f"alpha is {alpha:g}; it must be between 0 and 1", param="alpha")
        low, high = bounds
        if not low < high:
            raise InvalidRequest(f"bounds are {low:g} and {high:g}; the first must be lower", param="bounds")
        self._low, self._width = low, high - low
        self._limit = math.log(1 / alpha)
        inside = [place for place in map(self._place, margins) if 0 < place < 1]
        self._margins = _Gamblers(np.unique(inside))
        self._grid = _Gamblers(np.unique(np.concatenate([np.linspace(0, 1, GRID)[1:-1], inside])))
        self._unseen: list[NDArray[np.float64]] = []
        """What the gamblers on the grid have not looked at: they are many, and only `interval` asks them."""
        self._sum, self.n = 0.0, 0

    def extend(self, values: ArrayLike) -> None:
        """Look at more values; raises `InvalidRequest` for one beyond the bounds."""
        x = (np.asarray(values, dtype=np.float64).ravel() - self._low) / self._width
        if x.size and not (x.min() >= -1e-12 and x.max() <= 1 + 1e-12):
            raise InvalidRequest(
                f"values must lie between {self._low:g} and {self._low + self._width:g}", param="values"
            )
        x = np.clip(x, 0, 1)
        self._margins.look(x)
        self._unseen.append(x)
        self._sum += float(x.sum())
        self.n += x.size

    @property
    def mean(self) -> float | None:
        """The values' own mean; `None` without values."""
        return None if not self.n else self._low + self._width * self._sum / self.n

    @property
    def interval(self) -> Interval:
        """The means that neither gambler got rich against; each end fails with at most `alpha`, at all times at once."""
        grid = self._grid
        if self._unseen:
            grid.look(np.concatenate(self._unseen))
            self._unseen.clear()
        alive = np.flatnonzero((grid.most_up < self._limit) & (grid.most_down < self._limit))
        if not alive.size:  # the two sides crossed: the values are not of one mean
            return Interval(self._low, self._low + self._width)
        below, above = alive[0] - 1, alive[-1] + 1
        low = 0.0 if below < 0 else float(grid.means[below])
        high = 1.0 if above >= grid.means.size else float(grid.means[above])
        return Interval(self._low + self._width * low, self._low + self._width * high)

    def above(self, mean: float) -> bool:
        """Whether "the mean is at most this" was ever refuted; the mean must be one of `margins`."""
        place = self._place(mean)
        return self._refuted(self._margins.most_up, place) if 0 < place < 1 else place < 0

    def below(self, mean: float) -> bool:
        """Whether "the mean is at least this" was ever refuted."""
        place = self._place(mean)
        return self._refuted(self._margins.most_down, place) if 0 < place < 1 else place > 1

    def _refuted(self, most: NDArray[np.float64], place: float) -> bool:
        return bool(most[np.searchsorted(self._margins.means, place)] >= self._limit)

    def _place(self, mean: float) -> float:
        return (mean - self._low) / self._width


class _Gamblers:
    """Two for each of some means in (0, 1): one bets that the mean is higher, the other that it is lower."""

    def __init__(self, means: NDArray[np.float64]) -> None:
        self.means = means
        self.most_up = np.zeros_like(means)
        """The log of the most that they ever had; shape (means,)."""
        self.most_down = np.zeros_like(means)
        self._up = np.zeros_like(means)
        self._down = np.zeros_like(means)
        self._sum, self._squares, self._n = 0.5, 0.25, 0  # as if one value had been 1/2, and far from it

    def look(self, values: NDArray[np.float64]) -> None:
        """Bet on each value, knowing those before it."""
        for start in range(0, values.size if self.means.size else 0, _CHUNK):
            self._bet(values[start : start + _CHUNK])

    def _bet(self, x: NDArray[np.float64]) -> None:
        count = self._n + np.arange(1, x.size + 1)
        sums = self._sum + np.cumsum(x)
        means = sums / (count + 1)
        squares = self._squares + np.cumsum((x - means) ** 2)
        # What was known before each value: shapes (values,).
        mean = np.concatenate(([self._sum / (self._n + 1)], means[:-1]))
        variance = np.concatenate(([self._squares], squares[:-1])) / count
        edge = mean[:, None] - self.means  # (values, means)
        bet = edge / (variance[:, None] + edge**2)
        gain = x[:, None] - self.means
        for bets, total, most in (
            (np.clip(bet, 0, TRUNCATION / self.means), self._up, self.most_up),
            (np.clip(bet, -TRUNCATION / (1 - self.means), 0), self._down, self.most_down),
        ):
            path = total + np.cumsum(np.log1p(bets * gain), axis=0)
            np.maximum(most, path.max(axis=0), out=most)
            total[:] = path[-1]
        self._sum, self._squares = float(sums[-1]), float(squares[-1])
        self._n += x.size

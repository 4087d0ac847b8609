r"""Means and differences of two runs over the same items, with errors that know which items resemble each other.

With clusters :math:`c = 1 \dots C`, items :math:`i` and :math:`\bar x` the mean over :math:`n` items,

.. math:: \widehat{\mathrm{Var}}(\bar x) = \frac{C}{C - 1} \frac{1}{n^2} \sum_c \Bigl(\sum_{i \in c} (x_i - \bar x)\Bigr)^2

(the cluster-robust variance with the correction of small numbers of clusters; Inspect #1251 left it out). The interval takes
Student's t with :math:`C - 1` degrees of freedom. Where every item is a cluster of its own and every difference is -1, 0 or
1, the interval of a paired difference is Agresti and Min's (2005, Statistics in Medicine 24, 729-740): two pseudo-pairs, half a
pair in each cell, so that no flips in thirty items do not make an interval of width zero. For the mean of zeros
and ones it is Wilson's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.proportions import wilson, z_of

Method = Literal["wilson", "agresti-min", "t-clustered", "none"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its interval."""

    mean: float
    error: float
    """Standard error, by clusters; NaN with fewer than two."""
    lower: float
    upper: float
    items: int
    clusters: int
    method: Method
    """How the interval was made; `none`: one cluster tells nothing of the spread, and the interval is all that is possible."""

    @property
    def decided(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.lower > 0 or self.upper < 0


@dataclass(frozen=True, slots=True)
class Flips:
    """Items on which two runs disagree; `p` is the exact two-sided probability of so uneven a split by chance (McNemar)."""

    won: int
    lost: int
    p: float


def clustered_error(values: NDArray[np.float64], clusters: Sequence[str]) -> tuple[float, int]:
    """Standard error of the mean of `values` `(items,)` and the number of clusters; NaN below two clusters."""
    _, members = np.unique(np.asarray(clusters), return_inverse=True)
    count = int(members.max(initial=-1)) + 1
    if count < 2:
        return math.nan, count
    residuals = np.bincount(members, weights=values - values.mean(), minlength=count)
    return math.sqrt(count / (count - 1) * float(residuals @ residuals)) / len(values), count


def mean_score(values: Sequence[float], clusters: Sequence[str], *, confidence: float = 0.95) -> Estimate:
    """Mean of scores from 0 to 1, an item each.

    >>> one = mean_score([1.0, 1.0, 0.0, 1.0], ["a", "b", "c", "d"])
    >>> one.mean, one.method, round(one.lower, 3), round(one.upper, 3)
    (0.75, 'wilson', 0.301, 0.954)
    """
    x = _checked(values, clusters, confidence)
    n, mean = len(x), float(x.mean())
    error, count = clustered_error(x, clusters)
    if count == n and bool(np.isin(x, (0.0, 1.0)).all()):
        return Estimate(mean, error, *wilson(mean, n, confidence), n, count, "wilson")
    return _by_t(mean, error, n, count, confidence, (0.0, 1.0))


def paired_difference(
    one: Sequence[float], other: Sequence[float], clusters: Sequence[str], *, confidence: float = 0.95
) -> Estimate:
    """Mean of `one - other` over items that both have scores for.

    >>> paired_difference([1, 1, 0], [1, 0, 0], ["a", "b", "c"]).mean
    0.3333333333333333
    """
    if len(one) != len(other):
        raise InvalidRequest(
            f"there are {len(one)} and {len(other)} scores; a pair has one of each.", param="scores"
        )
    x = _checked(np.asarray(one, np.float64) - np.asarray(other, np.float64), clusters, confidence)
    n, mean = len(x), float(x.mean())
    error, count = clustered_error(x, clusters)
    if count == n and bool(np.isin(x, (-1.0, 0.0, 1.0)).all()):
        won, lost = float((x > 0).sum()) + 0.5, float((x < 0).sum()) + 0.5
        size = n + 2
        centre = (won - lost) / size
        half = z_of(confidence) * math.sqrt(won + lost - (won - lost) ** 2 / size) / size
        return Estimate(
            mean, error, max(-1.0, centre - half), min(1.0, centre + half), n, count, "agresti-min"
        )
    return _by_t(mean, error, n, count, confidence, (-1.0, 1.0))


def flips(differences: Sequence[float]) -> Flips:
    """Count wins and losses and test their split.

    >>> flips([1.0] * 8 + [-1.0] + [0.0] * 20)
    Flips(won=8, lost=1, p=0.0390625)
    """
    won, lost = sum(one > 0 for one in differences), sum(one < 0 for one in differences)
    n = won + lost
    tail = sum(math.comb(n, k) for k in range(min(won, lost) + 1)) / 2**n
    return Flips(won, lost, min(1.0, 2 * tail))


def t_quantile(p: float, degrees: int) -> float:
    """The quantile of Student's t, by bisection on its distribution function.

    >>> round(t_quantile(0.975, 1), 4), round(t_quantile(0.975, 10), 4)
    (12.7062, 2.2281)
    """
    if p < 0.5:
        return -t_quantile(1 - p, degrees)
    low, high = 0.0, 1.0
    while _t_below(high, degrees) < p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _t_below(middle, degrees) < p else (low, middle)
    return (low + high) / 2


def _t_below(t: float, degrees: int) -> float:
    """P(T <= t) for t >= 0: 1 - I_x(v/2, 1/2) / 2 with x = v / (v + t^2) (Abramowitz and Stegun 26.5.27)."""
    return 1 - _beta_share(degrees / (degrees + t * t), degrees / 2, 0.5) / 2


def _beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(1 - x, b, a)
    front = (
        math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
        / a
    )
    tiny = 1e-300
    value, upper, lower = 1.0, 1.0, 0.0  # Lentz's method
    for step in range(400):
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        lower = 1 / (1 + term * lower or tiny)
        upper = 1 + term / upper or tiny
        value *= upper * lower
        if step and abs(upper * lower - 1) < 1e-15:
            break
    return front * (value - 1)


def _by_t(  # noqa: PLR0917  # the parts of one Estimate
    mean: float, error: float, n: int, count: int, confidence: float, bounds: tuple[float, float]
) -> Estimate:
    if count < 2:
        return Estimate(mean, error, *bounds, n, count, "none")
    half = t_quantile(0.5 + confidence / 2, count - 1) * error
    return Estimate(
        mean, error, max(bounds[0], mean - half), min(bounds[1], mean + half), n, count, "t-clustered"
    )


def _checked(
    values: Sequence[float] | NDArray[np.float64], clusters: Sequence[str], confidence: float
) -> NDArray[np.float64]:
    x = np.asarray(values, np.float64)
    if not len(x):
        raise InvalidRequest("there is no item with a score; a mean needs one.", param="scores")
    if len(x) != len(clusters):
        raise InvalidRequest(
            f"{len(x)} scores have {len(clusters)} clusters; each needs one.", param="clusters"
        )
    if not 0 < confidence < 1:
        raise InvalidRequest(f"confidence is {confidence}; it must be between 0 and 1.", param="confidence")
    return x

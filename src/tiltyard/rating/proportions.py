r"""Means with intervals of observations that may come in clusters.

With clusters c of observations `x_i` and their mean `m`, the variance of the mean is

    V = C / (C - 1) * sum_c (sum_{i in c} (x_i - m))^2 / n^2

(the sandwich with clusters; Miller, "Adding error bars to evals", 2024, equation 3; one observation a cluster gives the usual
standard error). A share, a mean of values from 0 to 1, gets Wilson's interval for the number of independent observations that
would have this variance, `n' = m (1 - m) / V`: it stays within 0 and 1, and a share of 0 or 1 still has a width.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tiltyard.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, its interval, and from how much it comes; NaN where there is nothing to estimate from."""

    estimate: float
    lower: float
    upper: float
    n: int
    """Observations."""
    clusters: int
    """Groups of observations that may resemble each other."""

    @property
    def half(self) -> float:
        """Half the width."""
        return (self.upper - self.lower) / 2


NOTHING = Interval(math.nan, math.nan, math.nan, 0, 0)


def z_of(confidence: float) -> float:
    """Two-sided normal quantile; raises `InvalidRequest` unless 0 < confidence < 1.

    >>> round(z_of(0.95), 4)
    1.96
    """
    if not 0 < confidence < 1:
        raise InvalidRequest(f"confidence is {confidence}; it must be between 0 and 1.", param="confidence")
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def cluster_numbers(clusters: Sequence[Hashable] | None, size: int) -> NDArray[np.intp]:
    """Number clusters from 0 in their order; `None`: each observation is one. Raises `InvalidRequest` (`clusters`)."""
    if clusters is None:
        return np.arange(size)
    if len(clusters) != size:
        raise InvalidRequest(f"clusters has {len(clusters)} values for {size}.", param="clusters")
    places: dict[Hashable, int] = {}
    return np.array([places.setdefault(one, len(places)) for one in clusters], dtype=np.intp)


def cluster_sums(values: NDArray[np.float64], numbers: NDArray[np.intp]) -> NDArray[np.float64]:
    """Add values up by cluster; shape `(clusters,)` or `(clusters, columns)`."""
    size = int(numbers.max()) + 1 if numbers.size else 0
    sums = np.zeros((size, *values.shape[1:]))
    np.add.at(sums, numbers, values)
    return sums


def mean_interval(
    values: ArrayLike,
    *,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Return the mean of any numbers with a normal interval; one cluster alone has no width to tell (NaN).

    >>> mean_interval([1.0, 2.0, 3.0]).estimate
    2.0
    """
    x = np.asarray(values, dtype=np.float64)
    if not x.size:
        return NOTHING
    numbers = cluster_numbers(clusters, x.size)
    mean, variance, count = _mean_variance(x, numbers)
    half = z_of(confidence) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half, x.size, count)


def share_interval(
    values: ArrayLike,
    *,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Return the mean of values from 0 to 1 with Wilson's interval; raises `InvalidRequest` for others.

    >>> found = share_interval([1] * 8 + [0] * 2)   # Wilson's interval for 8 of 10
    >>> round(found.lower, 3), round(found.upper, 3)
    (0.49, 0.943)
    """
    x = np.asarray(values, dtype=np.float64)
    if not x.size:
        return NOTHING
    if not ((x >= 0) & (x <= 1)).all():
        raise InvalidRequest("a share is the mean of values from 0 to 1.", param="values")
    numbers = cluster_numbers(clusters, x.size)
    mean, variance, count = _mean_variance(x, numbers)
    plain = mean * (1 - mean)
    # Without spread, or with one cluster, the clusters are all that is known; binary values alone keep their n.
    if clusters is None and np.isin(x, (0.0, 1.0)).all():
        effective = float(x.size)
    elif plain > 0 and math.isfinite(variance) and variance > 0:
        effective = plain / variance
    else:
        effective = float(count)
    lower, upper = wilson(mean, effective, confidence)
    return Interval(mean, lower, upper, x.size, count)


def wilson(share: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a share of `n` observations (Wilson, 1927)."""
    z = z_of(confidence)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(max(0.0, share * (1 - share)) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def _mean_variance(x: NDArray[np.float64], numbers: NDArray[np.intp]) -> tuple[float, float, int]:
    mean = float(x.mean())
    sums = cluster_sums(x - mean, numbers)
    count = len(sums)
    if count < 2:
        return mean, math.nan, count
    return mean, count / (count - 1) * float(sums @ sums) / x.size**2, count

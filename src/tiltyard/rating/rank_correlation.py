r"""How far two rankings of the same models agree: Spearman's rho and Kendall's tau-b, with intervals.

    rho = Pearson's correlation of the ranks, ties sharing their mean rank
    tau_b = (concordant - discordant) / sqrt((pairs - ties in x) (pairs - ties in y))      (Kendall, 1945)

Intervals by Fisher's transformation, `z = atanh(r)`, with variance `(1 + rho^2 / 2) / (n - 3)` for rho and `0.437 / (n - 4)` for tau
(Bonett and Wright, "Sample size requirements for estimating Pearson, Kendall and Spearman correlations", 2000).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.proportions import NOTHING, Interval, z_of


def spearman(x: ArrayLike, y: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Spearman's rho of two columns; NaN where one of them never differs.

    >>> spearman([1, 2, 3, 4, 5], [1, 2, 3, 5, 4]).estimate
    0.9
    """
    a, b = _columns(x, y)
    if not a.size:
        return NOTHING
    first, second = ranks(a), ranks(b)
    first, second = first - first.mean(), second - second.mean()
    spread = math.sqrt(float(first @ first) * float(second @ second))
    rho = float(first @ second) / spread if spread else math.nan
    return _interval(rho, (1 + rho**2 / 2) / (a.size - 3) if a.size > 3 else math.nan, a.size, confidence)


def kendall(x: ArrayLike, y: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Kendall's tau-b of two columns; NaN where one of them never differs.

    >>> round(kendall([1, 2, 3, 4, 5], [1, 2, 3, 5, 4]).estimate, 3)
    0.8
    """
    a, b = _columns(x, y)
    upper = np.triu_indices(a.size, 1)
    left = np.sign(a[:, None] - a[None, :])[upper]
    right = np.sign(b[:, None] - b[None, :])[upper]
    spread = math.sqrt(float(np.abs(left).sum()) * float(np.abs(right).sum()))
    tau = float(left @ right) / spread if spread else math.nan
    return _interval(tau, 0.437 / (a.size - 4) if a.size > 4 else math.nan, a.size, confidence)


def ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1; ties share their mean rank."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place.reshape(-1)], dtype=np.float64)


def _columns(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise InvalidRequest(f"the two rankings have {a.size} and {b.size} models.", param="y")
    return a, b


def _interval(r: float, variance: float, n: int, confidence: float) -> Interval:
    if math.isnan(r) or math.isnan(variance) or abs(r) >= 1:
        return Interval(r, math.nan if abs(r) < 1 or math.isnan(r) else r, r, n, n)
    half = z_of(confidence) * math.sqrt(variance)
    return Interval(r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half), n, n)

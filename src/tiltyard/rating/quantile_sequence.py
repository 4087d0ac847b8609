"""Quantiles (the median, the 99th percentile) with intervals that hold at every look.

Whether a value lies at or below the true p-quantile is a coin that falls so with probability p. The beta mixture of
likelihood ratios of that coin is a martingale, and a rank s of n is plausible while

    B(a + s, b + n - s) / ( B(a, b) * p^s * (1 - p)^(n - s) ) < 1 / alpha

so that the order statistics at the plausible ranks bracket the quantile at all n at once: S. Howard, A. Ramdas, *Sequential
estimation of quantiles with applications to A/B testing and best-arm identification*, Bernoulli 28 (2022), theorem 1 (b), with
the beta-binomial mixture of Howard et al., Annals of Statistics 49 (2021), proposition 7. Nothing is assumed of the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from tiltyard.errors import InvalidRequest
from tiltyard.rating.betting import Interval

STRENGTH = 30.0
"""a + b: how near to p the mixture expects the share to be."""


def quantile(values: ArrayLike, p: float) -> float:
    """The smallest value that at least a share `p` of the values does not exceed.

    >>> quantile([4, 1, 3, 2], 0.5)
    2.0
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    return float(x[max(0, math.ceil(p * x.size) - 1)])


def quantile_interval(values: ArrayLike, p: float, alpha: float) -> Interval:
    """The p-quantile's interval, each end failing with at most `alpha` at all times at once; infinite where unknown."""
    if not 0 < p < 1:
        raise InvalidRequest(f"p is {p:g}; it must be between 0 and 1", param="p")
    x = np.sort(np.asarray(values, dtype=np.float64))
    first, last = plausible_ranks(x.size, p, alpha)
    # At the true quantile q at least `first` values are <= q, and at most `last`: x[first] <= q < x[last + 1], from 1.
    low = -math.inf if first < 1 else float(x[first - 1])
    high = math.inf if last >= x.size else float(x[last])
    return Interval(low, high)


def plausible_ranks(n: int, p: float, alpha: float) -> tuple[int, int]:
    """How few and how many of `n` values may lie at or below the p-quantile, each bound failing with at most `alpha`."""
    a, b = STRENGTH * p, STRENGTH * (1 - p)
    limit = math.log(1 / alpha)

    def rich(s: int) -> bool:
        capital = _log_beta(a + s, b + n - s) - _log_beta(a, b) - s * math.log(p) - (n - s) * math.log1p(-p)
        return capital >= limit

    middle = min(n, max(0, round(n * p)))
    return _first_not_rich(rich, -1, middle), n - _first_not_rich(lambda s: rich(n - s), -1, n - middle)


def _first_not_rich(rich: Callable[[int], bool], low: int, high: int) -> int:
    """By halving: capital falls towards the middle. `high` is not rich."""
    while high - low > 1:
        half = (low + high) // 2
        low, high = (half, high) if rich(half) else (low, half)
    return high


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

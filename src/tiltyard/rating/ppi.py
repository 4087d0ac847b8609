r"""Prediction-powered inference: few human votes and many judgments make one interval that is valid and narrower.

Of `n` items there are a human value `Y_i` and a judge's value `f_i`, of `N` more items only the judge's `f'_j`. With a weight
lambda the estimate of the mean of Y is

    theta = lambda mean(f') + mean(Y - lambda f)
    Var(theta) = lambda^2 var(f') / N + var(Y - lambda f) / n

(Angelopoulos, Bates, Fannjiang, Jordan and Zrnic, "Prediction-powered inference", Science 382, 2023, equation 1, with
lambda = 1; Angelopoulos, Duchi and Zrnic, "PPI++: efficient prediction-powered inference", 2023, equation 3.) Whatever the
judge is worth, the estimate is unbiased: the second term takes the judge's bias out again. PPI++ takes the weight
that makes the variance least,

    lambda = cov(Y, f) / ((1 + n / N) var(f))

with var(f) over all items (their example of a mean, after equation 6), held between 0 and 1 here: a judge that says nothing about people gets
lambda = 0, and the interval is that of people alone. The human items have to be a random sample of all items.

With clusters (votes on one question) means are over items as before, and variances add up the residuals of a cluster first.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.proportions import (
    Interval,
    cluster_numbers,
    cluster_sums,
    mean_interval,
    share_interval,
    z_of,
)

MINIMUM = 2
"""Human values below which nothing can be said of their spread."""


@dataclass(frozen=True, slots=True)
class Powered:
    """What people and a judge say together, beside each alone."""

    together: Interval
    """Valid whatever the judge is worth; `n` counts human values."""
    people: Interval
    """From the human values alone."""
    judge: Interval
    """From all judgments alone: narrow, and off by the judge's bias."""
    weight: float
    """lambda: 0 where the judge says nothing about people."""
    correlation: float
    """Of human values and judgments; NaN where one of them never differs."""
    judged_only: int
    """N: items with a judgment and no human value."""

    @property
    def worth(self) -> float:
        """How many times as many human values alone would give as narrow an interval."""
        return (self.people.half / self.together.half) ** 2 if self.together.half else math.nan


def powered_mean(
    human: ArrayLike,
    judged: ArrayLike,
    judged_only: ArrayLike,
    *,
    weight: float | None = None,
    clusters: Sequence[Hashable] | None = None,
    clusters_only: Sequence[Hashable] | None = None,
    share: bool = False,
    confidence: float = 0.95,
) -> Powered:
    """Estimate the mean of human values; `human` and `judged` are of the same items, `weight` None is PPI++'s choice.

    A `share` has values from 0 to 1: estimate and intervals stay within, and people's own is Wilson's, so that ten votes for
    one side are not taken for certainty. Nor are ten votes with which the judge agrees: the variance of what people say
    beyond the judge is taken with two more clusters (items), one a whole vote above and one below it (as Agresti and Min add
    a half to each cell: "Simple improved confidence intervals for comparing matched proportions", Statistics in
    Medicine 24, 2005), and where that makes the interval wider than people's own, theirs stands.

    Raises `InvalidRequest` naming what does not fit: lengths that differ, fewer than two human values.

    >>> found = powered_mean([1, 0, 1, 1], [1, 0, 1, 0], [1, 0, 1, 0, 1, 0], weight=1.0)
    >>> round(found.together.estimate, 3)
    0.75
    """
    y, f, g = (np.asarray(one, dtype=np.float64) for one in (human, judged, judged_only))
    if y.shape != f.shape or y.ndim != 1:
        raise InvalidRequest(
            f"there are {y.size} human values and {f.size} judgments of the same items.", param="judged"
        )
    if y.size < MINIMUM:
        raise InvalidRequest(f"there are {y.size} human values; it takes {MINIMUM}.", param="human")
    numbers, numbers_only = cluster_numbers(clusters, y.size), cluster_numbers(clusters_only, g.size)
    if weight is None:
        weight = _least_variance(y, f, g)
    if len(cluster_sums(g, numbers_only)) < MINIMUM:
        weight = 0.0  # nothing is known of how they spread
    rest = y - weight * f
    estimate = float(rest.mean()) + (weight * float(g.mean()) if g.size else 0.0)
    variance = _variance(rest, numbers)
    if share:
        count = len(cluster_sums(rest, numbers))
        variance = variance * (count / (count + 2)) ** 2 + 2 / (count + 2) ** 2
    if g.size and weight:
        variance += weight**2 * _variance(g, numbers_only)
    half = z_of(confidence) * math.sqrt(variance)
    interval = share_interval if share else mean_interval
    people = interval(y, clusters=clusters, confidence=confidence)
    lower, upper = estimate - half, estimate + half
    if share:
        estimate, lower, upper = (min(1.0, max(0.0, bound)) for bound in (estimate, lower, upper))
        if half > people.half:
            weight = 0.0  # so few people that what the judge adds is lost in what they leave open
    together = Interval(estimate, lower, upper, people.n, people.clusters)
    spread = float(y.std() * f.std())
    return Powered(
        together=people if weight == 0 else together,
        people=people,
        judge=interval(
            np.concatenate([f, g]),
            clusters=None if clusters is None else [*clusters, *(clusters_only or ())],
            confidence=confidence,
        ),
        weight=weight,
        correlation=float(((y - y.mean()) * (f - f.mean())).mean()) / spread if spread else math.nan,
        judged_only=g.size,
    )


def _least_variance(y: NDArray[np.float64], f: NDArray[np.float64], g: NDArray[np.float64]) -> float:
    if not g.size:
        return 0.0
    variance = float(np.concatenate([f, g]).var(ddof=1))
    if variance <= 0:
        return 0.0
    covariance = float(((y - y.mean()) * (f - f.mean())).sum()) / (y.size - 1)
    return min(1.0, max(0.0, covariance / ((1 + y.size / g.size) * variance)))


def _variance(x: NDArray[np.float64], numbers: NDArray[np.intp]) -> float:
    """Of the mean, clusters added up first; 0 clusters beyond one tell nothing."""
    sums = cluster_sums(x - x.mean(), numbers)
    count = len(sums)
    return math.nan if count < 2 else count / (count - 1) * float(sums @ sums) / x.size**2

r"""Whether chances that are given come true: a calibration curve, Brier's score, and the mean gap.

Brier = mean (p_i - y_i)^2                                  (Brier, 1950)
gap   = sum_b n_b / n |mean p in b - mean y in b|           (expected calibration error; bins of equal count)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tiltyard.errors import InvalidRequest
from tiltyard.rating.proportions import Interval, mean_interval, share_interval


@dataclass(frozen=True, slots=True)
class Bin:
    """Predictions that lie together, and what came of them."""

    lowest: float
    highest: float
    predicted: float
    """Mean prediction."""
    observed: Interval
    """Share that came true."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How well chances hold."""

    bins: tuple[Bin, ...]
    brier: Interval
    gap: float
    """Mean distance of a bin's observed share from its prediction, weighted by size."""
    bias: Interval
    """Mean of prediction minus outcome; 0 where chances are right on average."""


def calibrate(
    chances: ArrayLike,
    outcomes: ArrayLike,
    *,
    bins: int = 10,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Calibration:
    """Compare chances with outcomes (0 to 1); equal chances stay in one bin. Raises `InvalidRequest` for shapes or ranges."""
    p, y = np.asarray(chances, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    if p.shape != y.shape or p.ndim != 1 or not p.size:
        raise InvalidRequest(f"there are {p.size} chances and {y.size} outcomes.", param="outcomes")
    if not ((p >= 0) & (p <= 1) & (y >= 0) & (y <= 1)).all():
        raise InvalidRequest("chances and outcomes lie from 0 to 1.", param="chances")
    edges = np.unique(np.quantile(p, np.linspace(0, 1, bins + 1)[1:-1]))
    place = np.searchsorted(edges, p, side="left")
    found: list[Bin] = []
    for number in np.unique(place):
        here = np.flatnonzero(place == number)
        of = None if clusters is None else [clusters[int(row)] for row in here]
        observed = share_interval(y[here], clusters=of, confidence=confidence)
        found.append(Bin(float(p[here].min()), float(p[here].max()), float(p[here].mean()), observed))
    return Calibration(
        bins=tuple(found),
        brier=mean_interval((p - y) ** 2, clusters=clusters, confidence=confidence),
        gap=sum(abs(one.predicted - one.observed.estimate) * one.observed.n for one in found) / p.size,
        bias=mean_interval(p - y, clusters=clusters, confidence=confidence),
    )

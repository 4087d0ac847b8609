"""Ranks that respect intervals: a model is behind only those that are surely better.

All functions return ranks counted from 1; ties share a rank and leave gaps, as in sport.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class RankRange(NamedTuple):
    """The ranks that the intervals leave open; both of shape `(models,)`."""

    best: NDArray[np.int64]
    worst: NDArray[np.int64]


def ranks_by_intervals(lower: NDArray[np.float64], upper: NDArray[np.float64]) -> RankRange:
    """Rank by separate intervals, the rule of the public boards.

    `best = 1 + #{m': lower(m') > upper(m)}` is the rank that is shown. `worst = #{m': upper(m') >= lower(m)}`,
    the model itself included, is the last place that its interval leaves open.

    >>> ranks_by_intervals(np.array([9.0, 8.0, 1.0]), np.array([11.0, 10.0, 2.0])).best.tolist()
    [1, 1, 3]
    """
    size = len(lower)
    best = 1 + size - np.searchsorted(np.sort(lower), upper, side="right")
    worst = size - np.searchsorted(np.sort(upper), lower, side="left")
    return RankRange(best.astype(np.int64), worst.astype(np.int64))


def ranks_by_differences(
    ratings: NDArray[np.float64], covariance: NDArray[np.float64], confidence: float = 0.95
) -> RankRange:
    """Rank by tests of each difference, which sees more than two separate intervals do.

    m' is ahead of m when `(R' - R) / sqrt(V'' + V - 2 V') > z`, with z the two-sided normal quantile;
    two intervals may overlap while their difference is clear, so this rank is often lower.
    """
    variance = np.diagonal(covariance)
    spread = np.sqrt(np.maximum(variance[:, None] + variance[None, :] - 2 * covariance, 0))
    margin = NormalDist().inv_cdf(0.5 + confidence / 2) * spread
    ahead = ratings[None, :] - ratings[:, None] > margin  # ahead[m, m']: m' is surely better than m
    np.fill_diagonal(ahead, False)
    return RankRange(1 + ahead.sum(axis=1), len(ratings) - ahead.sum(axis=0))


class SimultaneousRanks(NamedTuple):
    """Rank ranges that hold for all models at once."""

    ranks: RankRange
    critical: float
    """How many standard errors a difference must exceed; above the quantile that one single test needs."""


def ranks_simultaneously(
    ratings: NDArray[np.float64],
    covariance: NDArray[np.float64],
    confidence: float = 0.95,
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> SimultaneousRanks:
    """Rank by tests of all differences together, so that all ranges are right at once with `confidence`.

    m' is ahead of m when `(R' - R) / sqrt(V'' + V - 2 V')` exceeds the quantile of the *largest* such ratio among all
    pairs, found from `draws` of N(0, V) with NumPy's PCG64 from `seed` (max-t: T. Hothorn, F. Bretz and P. Westfall,
    "Simultaneous inference in general parametric models", Biometrical Journal 50, 2008). Chiang et al., "Chatbot
    Arena", 2024, section 5, ask for the same coverage. Takes `draws * models^2` steps and a few MiB.
    """
    size = len(ratings)
    variance = np.diagonal(covariance)
    spread = np.sqrt(np.maximum(variance[:, None] + variance[None, :] - 2 * covariance, 0))
    sure = np.triu(spread > 1e-9 * max(float(spread.max(initial=0)), 1e-300), 1)
    spread[~sure] = np.inf  # a difference without variance decides nothing
    critical = NormalDist().inv_cdf(0.5 + confidence / 2)
    if sure.sum() > 1:
        values, vectors = np.linalg.eigh(covariance)
        root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T  # symmetric, so no sign is left open
        rng = np.random.Generator(np.random.PCG64(seed))
        largest = np.zeros(draws)
        at_once = max(1, (1 << 18) // size)
        for start in range(0, draws, at_once):
            # A row for each model: then what is compared lies side by side in memory.
            drawn = (rng.standard_normal((min(at_once, draws - start), size)) @ root).T.copy()
            part = largest[start : start + drawn.shape[1]]
            for model in range(size - 1):
                ratios = np.abs(drawn[model + 1 :] - drawn[model])
                ratios /= spread[model, model + 1 :, None]
                np.maximum(part, ratios.max(axis=0), out=part)
        critical = float(np.quantile(largest, confidence))
    each = 2 * NormalDist().cdf(critical) - 1
    return SimultaneousRanks(ranks_by_differences(ratings, covariance, each), critical)

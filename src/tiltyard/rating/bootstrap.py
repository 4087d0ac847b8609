"""Bootstrap intervals: refit on votes drawn again from themselves.

A resample is one multinomial draw of all votes over the cells (pair, outcome), which is the same as drawing
votes with replacement. Reported are the quantiles of the refitted ratings about the mean of each connected part, or of
chosen models, so that neither an anchor nor a model with few votes can widen the other intervals (FastChat #3377).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.bradley_terry import (
    CENTRE,
    POINTS,
    Ratings,
    complete,
    component_labels,
    gauge,
    maximise,
    scores_of,
)
from tiltyard.rating.counts import BothBad, PairCounts


@dataclass(frozen=True, eq=False)
class BootstrapIntervals:
    """Quantiles over resamples; arrays follow `models`, NaN for a model without votes."""

    models: tuple[str, ...]
    lower: NDArray[np.float64]
    median: NDArray[np.float64]
    upper: NDArray[np.float64]
    seed: int
    resamples: int
    completed: int
    """Resamples in which some pair needed virtual half wins to stay finite."""
    converged: bool
    """Whether every refit converged."""


def bootstrap(
    votes: PairCounts,
    *,
    seed: int,
    resamples: int = 100,
    both_bad: BothBad = "tie",
    confidence: float = 0.95,
    about: Ratings | None = None,
    minimum_votes: int = 1,
) -> BootstrapIntervals:
    """Draw `resamples` times with NumPy's PCG64 from `seed`, and refit each draw.

    `about`, a fit of these votes, and `minimum_votes` choose the mean that is held, as `Ratings.about` does.
    The same votes, seed and count give the same intervals; fewer than two resamples raise `InvalidRequest`.
    """
    if resamples < 2:
        raise InvalidRequest(f"resamples is {resamples}; an interval needs 2 or more.", param="resamples")
    rng = np.random.Generator(np.random.PCG64(seed))
    size = len(votes.models)
    observed = scores_of(votes, both_bad, None)
    projector = gauge(component_labels(size, observed))
    start = maximise(complete(size, observed)[0], projector, np.zeros(size)).theta
    cells = np.stack([observed.wins, observed.losses, observed.ties], axis=1)
    total = int(cells.sum())
    shares = (cells / max(total, 1)).ravel()
    drawn = np.empty((resamples, size))
    completed, converged = 0, True
    for position in range(resamples):
        draw = rng.multinomial(total, shares) if total else np.zeros(cells.size)
        wins, losses, ties = draw.reshape(-1, 3).T.astype(np.float64)
        # A pair that this draw left without votes still counts as met, so no part falls in two.
        scores, unbounded = complete(size, observed._replace(wins=wins, losses=losses, ties=ties))
        optimum = maximise(scores, projector, start)
        drawn[position] = CENTRE + POINTS * optimum.theta
        completed += bool(unbounded)
        converged = converged and optimum.converged
    if about is not None and (held := about.held(minimum_votes)).any():
        part = about.component == 0
        drawn[:, part] += CENTRE - drawn[:, held].mean(axis=1, keepdims=True)
    drawn[:, votes.votes_used(both_bad) == 0] = np.nan
    tail = (1 - confidence) / 2
    lower, median, upper = np.quantile(drawn, [tail, 0.5, 1 - tail], axis=0)
    return BootstrapIntervals(votes.models, lower, median, upper, seed, resamples, completed, converged)

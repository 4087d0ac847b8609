r"""Logistic regression of shares with intervals that know of clusters: who wins, by what the two answers differ in.

Minimises `-sum_i [y_i log s(x_i b) + (1 - y_i) log(1 - s(x_i b))] + ridge/2 |b|^2` with s the logistic function and y from 0
to 1 (a tie is one half), by Newton's method. Covariance is the sandwich `H^-1 G H^-1`, G the outer products of the scores added
up by cluster, times C / (C - 1) (Liang and Zeger, 1986).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.proportions import Interval, cluster_numbers, cluster_sums, z_of

MOST_STEPS = 60
TOLERANCE = 1e-10
FLAT = 1e-9
"""Curvature a row below which an optimum is none."""


@dataclass(frozen=True, eq=False)
class LogisticFit:
    """Coefficients on the log-odds scale; arrays follow the columns of the design."""

    coefficients: NDArray[np.float64]
    covariance: NDArray[np.float64]
    """Sandwich; shape `(columns, columns)`."""
    n: int
    clusters: int
    converged: bool
    """False where the data separate the outcomes and no ridge holds the coefficients: they have no finite optimum."""

    def interval(self, column: int, *, confidence: float = 0.95) -> Interval:
        """One coefficient."""
        half = z_of(confidence) * math.sqrt(max(0.0, float(self.covariance[column, column])))
        estimate = float(self.coefficients[column])
        return Interval(estimate, estimate - half, estimate + half, self.n, self.clusters)

    def chances(self, design: NDArray[np.float64]) -> NDArray[np.float64]:
        """Chance of `y = 1` for each row."""
        return logistic(design @ self.coefficients)


def logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """`1 / (1 + exp(-x))`, without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(x / 2)), dtype=np.float64)


def fit_logistic(
    design: NDArray[np.float64],
    outcomes: NDArray[np.float64],
    *,
    ridge: float = 0.0,
    clusters: Sequence[Hashable] | None = None,
) -> LogisticFit:
    """Fit; `design` has shape `(rows, columns)`, `outcomes` `(rows,)` within 0 and 1, `ridge` is 1 / variance of a prior.

    Raises `InvalidRequest` for shapes that do not fit, outcomes out of range, and columns of which one says what others say.
    """
    rows, columns = design.shape
    if outcomes.shape != (rows,) or not rows:
        raise InvalidRequest(f"there are {rows} rows and {outcomes.size} outcomes.", param="outcomes")
    if not ((outcomes >= 0) & (outcomes <= 1)).all():
        raise InvalidRequest("an outcome is a share from 0 to 1.", param="outcomes")
    if ridge <= 0 and np.linalg.matrix_rank(design) < columns:
        raise InvalidRequest(
            f"the {columns} columns are not independent on these {rows} rows; leave one out, or give a ridge.",
            param="design",
        )
    beta = np.zeros(columns)
    converged = False
    for _ in range(MOST_STEPS):
        chances = logistic(design @ beta)
        gradient = design.T @ (outcomes - chances) - ridge * beta
        hessian = _hessian(design, chances, ridge)
        step = np.linalg.lstsq(hessian, gradient, rcond=None)[0]
        longest = float(np.abs(step).max(initial=0.0))
        beta = beta + step * min(1.0, 5.0 / longest if longest else 1.0)
        if longest < TOLERANCE:
            # Separated outcomes flatten the likelihood instead of ending its climb.
            converged = float(np.linalg.eigvalsh(hessian)[0]) > FLAT * rows
            break
    chances = logistic(design @ beta)
    bread = np.linalg.pinv(_hessian(design, chances, ridge))
    scores = cluster_sums(design * (outcomes - chances)[:, None], cluster_numbers(clusters, rows))
    count = len(scores)
    factor = count / (count - 1) if count > 1 else math.nan
    covariance = bread @ (scores.T @ scores) @ bread * factor
    return LogisticFit(beta, covariance, rows, count, converged)


def _hessian(design: NDArray[np.float64], chances: NDArray[np.float64], ridge: float) -> NDArray[np.float64]:
    weights = chances * (1 - chances)
    return np.asarray(design.T @ (design * weights[:, None]) + ridge * np.eye(design.shape[1]))

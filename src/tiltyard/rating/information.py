"""What one more vote on each pair would teach: the expected narrowing of all intervals.

With `w_ij = p_ij (1 - p_ij)` the information of one vote between i and j and `V` the covariance of the
ratings, one more vote on (i, j) leaves (Sherman and Morrison, 1950; `x = e_i - e_j`)

    V' = V - w V x x' V / (1 + w x' V x)        gain(i, j) = sum_m sqrt(V_mm) - sqrt(V'_mm)

which is the rule of Chiang et al., "Chatbot Arena" (2024), equation 9 (the pair whose interval narrows most),
with all intervals of the board counted instead of that of one pair. `V = (H + prior I)^-1`: a Gaussian prior
stands for what is known of a model without votes, so that neither a new model nor an unconnected one has an infinite
variance here. It plans votes; no rating is computed with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest

PRIOR: Final = 0.25
"""Precision of theta: a standard deviation of 2, which is 347 rating points."""
_ITERATIONS: Final = 50
_TOLERANCE: Final = 1e-9
_LONGEST_STEP: Final = 2.0


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What votes say about the skills so far."""

    theta: NDArray[np.float64]
    """Mean zero; shape `(models,)`."""
    covariance: NDArray[np.float64]
    """In the sum-zero gauge; shape `(models, models)`."""


def knowledge(wins: NDArray[np.float64], *, prior: float = PRIOR) -> Knowledge:
    """Estimate skills from `wins[i, j]`, how often i beat j with a tie as half for each; shape `(models, models)`.

    Raises `InvalidRequest` naming `wins` or `prior`.

    >>> knowledge(np.zeros((2, 2))).covariance.round(3).tolist()
    [[2.0, -2.0], [-2.0, 2.0]]
    """
    wins = np.asarray(wins, dtype=np.float64)
    if wins.ndim != 2 or wins.shape[0] != wins.shape[1] or not (np.isfinite(wins) & (wins >= 0)).all():
        raise InvalidRequest(
            f"wins has shape {wins.shape}; it needs a square of counts that are not negative.", param="wins"
        )
    if not prior > 0:
        raise InvalidRequest(f"prior is {prior}; it is a precision, above 0.", param="prior")
    size = len(wins)
    total = wins + wins.T
    theta = np.zeros(size)
    hessian = prior * np.eye(size)
    for _ in range(_ITERATIONS):
        p = win_probabilities(theta)
        hessian = _laplacian(total * p * (1 - p)) + prior * np.eye(size)
        step = np.linalg.solve(hessian, (wins - total * p).sum(axis=1) - prior * theta)
        longest = float(np.abs(step).max(initial=0.0))
        theta = theta + step * min(1.0, _LONGEST_STEP / longest if longest else 1.0)
        if longest < _TOLERANCE:
            break
    covariance = np.linalg.inv(hessian)
    covariance = covariance - covariance.mean(axis=0)
    covariance = covariance - covariance.mean(axis=1, keepdims=True)
    return Knowledge(theta - theta.mean() if size else theta, covariance)


def gains(known: Knowledge) -> NDArray[np.float64]:
    """Return by how much one more vote on each pair would narrow all intervals together, in theta.

    Symmetric with a zero diagonal; shape `(models, models)`. Time and memory grow with models cubed.
    """
    v = known.covariance
    variance = np.diagonal(v)
    p = win_probabilities(known.theta)
    weight = p * (1 - p)
    gain = np.zeros_like(v)
    for i in range(
        len(v)
    ):  # a row of pairs at a time: (models, models) numbers, not (models, models, models)
        moved = v[i][:, None] - v  # V x, a column for each rival j
        spread = variance[i] + variance - 2 * v[i]
        drop = weight[i] * moved**2 / (1 + weight[i] * spread)
        after = np.sqrt(np.maximum(variance[:, None] - drop, 0))
        gain[i] = np.maximum((np.sqrt(np.maximum(variance, 0))[:, None] - after).sum(axis=0), 0)
    np.fill_diagonal(gain, 0)
    return (gain + gain.T) / 2  # equal but for rounding


def win_probabilities(theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the chance that i beats j, a tie as half; shape `(models, models)`."""
    return 0.5 * (1 + np.tanh((theta[:, None] - theta[None, :]) / 2))


def _laplacian(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    off = weights - np.diag(np.diagonal(weights))
    laplacian: NDArray[np.float64] = np.diag(off.sum(axis=1)) - off
    return laplacian

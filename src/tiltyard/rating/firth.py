r"""Logistic regression of shares whose intervals hold near certainty too, where a normal interval covers far too little.

Maximises the likelihood under Jeffreys' prior (Firth, 1993), which is finite also where a cause decides every outcome:

    l*(b) = sum_i [y_i x_i b - log(1 + exp(x_i b))] + 1/2 log det I(b),    I(b) = X' diag(p (1 - p)) X

with y from 0 to 1 (a tie is one half). An interval is the profile's (Heinze and Schemper, 2002): every value at which l*, the other
coefficients at their best, is at most `phi q / 2` below its maximum; q is the quantile of chi-square with one degree. Observations of
one cluster resemble each other: phi is by how much the sandwich with clusters (Liang and Zeger, 1986) is larger than the inverse
of I(b) for that coefficient (the likelihood ratio so scaled: Rotnitzky and Jewell, 1990), and at least 1.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.logistic import logistic
from tiltyard.rating.proportions import Interval, cluster_numbers, cluster_sums, z_of

Floats = NDArray[np.float64]

LEAST_GAIN = 1e-11
"""Of l*: it moves a bound by less than a millionth of a standard error."""
MOST_STEPS = 100
MOST_HALVINGS = 30
LONGEST_STEP = 2.0
TOLERANCE = 1e-7
"""Of a coefficient."""
PRECISION = 1e-4
"""Of a bound, in standard errors."""


@dataclass(frozen=True, eq=False)
class FirthFit:
    """Coefficients on the log-odds scale; arrays follow the columns of the design."""

    coefficients: Floats
    design_effects: Floats
    """`phi` of each coefficient."""
    converged: bool
    n: int
    clusters: int
    _design: Floats
    _outcomes: Floats

    def interval(self, column: int, *, confidence: float = 0.95) -> Interval:
        """One coefficient; from one cluster alone nothing can be told (NaN)."""
        estimate = float(self.coefficients[column])
        if self.clusters < 2:
            return Interval(estimate, math.nan, math.nan, self.n, self.clusters)
        lower, upper = (self._bound(column, side, confidence) for side in (-1.0, 1.0))
        return Interval(estimate, lower, upper, self.n, self.clusters)

    def _bound(self, column: int, side: float, confidence: float) -> float:
        """Where the profile has fallen far enough; its root falls almost in a straight line, so secants find it soon."""
        allowed = float(self.design_effects[column]) * z_of(confidence) ** 2
        best = _height(self._design, self._outcomes, self.coefficients)
        free = np.arange(self._design.shape[1]) != column
        information = _information(self._design @ self.coefficients, self._design)
        reach = math.sqrt(allowed * float(np.linalg.inv(information)[column, column]))
        beta = self.coefficients.copy()

        def beyond(value: float) -> float:
            """How far beyond the bound, in standard errors."""
            beta[column] = value
            found, _ = _climb(self._design, self._outcomes, beta, free)
            beta[:] = found  # the next value is near
            fallen = 2 * (best - _height(self._design, self._outcomes, found))
            return math.sqrt(max(0.0, fallen)) - math.sqrt(allowed)

        near, at_near = float(self.coefficients[column]), -math.sqrt(allowed)
        far = near + side * reach
        while (at_far := beyond(far)) < 0:
            near, at_near, far = far, at_far, far + side * reach
        while abs(far - near) > TOLERANCE + PRECISION * reach:
            middle = far - at_far * (far - near) / (at_far - at_near)
            at_middle = beyond(middle)
            if abs(at_middle) < PRECISION:
                return middle
            if at_middle < 0:
                near, at_near, at_far = (
                    middle,
                    at_middle,
                    at_far / 2,
                )  # Illinois: neither end may stay for ever
            else:
                far, at_far, at_near = middle, at_middle, at_near / 2
        return (near + far) / 2


def fit_firth(design: Floats, outcomes: Floats, *, clusters: Sequence[Hashable] | None = None) -> FirthFit:
    """Fit; `design` has shape `(rows, columns)` with independent columns, `outcomes` `(rows,)` within 0 and 1.

    Raises `InvalidRequest` for shapes that do not fit, outcomes out of range, and columns of which one says what others say.
    """
    rows, columns = design.shape
    if outcomes.shape != (rows,) or not rows:
        raise InvalidRequest(f"there are {rows} rows and {outcomes.size} outcomes.", param="outcomes")
    if not ((outcomes >= 0) & (outcomes <= 1)).all():
        raise InvalidRequest("an outcome is a share from 0 to 1.", param="outcomes")
    if np.linalg.matrix_rank(design) < columns:
        raise InvalidRequest(
            f"the {columns} columns are not independent on these {rows} rows; leave one out.", param="design"
        )
    beta, converged = _climb(design, outcomes, np.zeros(columns), np.ones(columns, dtype=bool))
    chances = logistic(design @ beta)
    bread = np.linalg.pinv(_information(design @ beta, design))
    scores = cluster_sums(design * (outcomes - chances)[:, None], cluster_numbers(clusters, rows))
    count = len(scores)
    factor = count / (count - 1) if count > 1 else math.nan
    sandwich = bread @ (scores.T @ scores) @ bread * factor
    effects = np.maximum(1.0, np.diag(sandwich) / np.diag(bread))
    return FirthFit(beta, effects, converged, rows, count, design, outcomes)


def _climb(design: Floats, outcomes: Floats, start: Floats, free: NDArray[np.bool_]) -> tuple[Floats, bool]:
    """Move the free coefficients to where l* is highest; Fisher scoring, steps halved where they overshoot."""
    beta = start.copy()
    if not free.any():
        return beta, True
    height = _height(design, outcomes, beta)
    for _ in range(MOST_STEPS):
        chances = logistic(design @ beta)
        information = _information(design @ beta, design)
        weighted = design * np.sqrt(chances * (1 - chances))[:, None]
        leverage = np.einsum("ij,jk,ik->i", weighted, np.linalg.pinv(information), weighted)
        gradient = design.T @ (outcomes - chances + leverage * (0.5 - chances))
        step = np.zeros_like(beta)
        step[free] = np.linalg.lstsq(information[np.ix_(free, free)], gradient[free], rcond=None)[0]
        longest = float(np.abs(step).max())
        if longest < TOLERANCE:
            return beta, True
        step *= min(1.0, LONGEST_STEP / longest)
        for _ in range(MOST_HALVINGS):
            if (higher := _height(design, outcomes, beta + step)) >= height:
                break
            step /= 2
        else:
            return beta, longest < math.sqrt(TOLERANCE)  # as high as the arithmetic can tell
        beta, gained, height = beta + step, higher - height, higher
        if gained < LEAST_GAIN:
            return beta, True
    return beta, False


def _height(design: Floats, outcomes: Floats, beta: Floats) -> float:
    odds = design @ beta
    sign, log_determinant = np.linalg.slogdet(_information(odds, design))
    if sign <= 0:
        return -math.inf
    return float(outcomes @ odds - np.logaddexp(0, odds).sum()) + 0.5 * float(log_determinant)


def _information(odds: Floats, design: Floats) -> Floats:
    chances = logistic(odds)
    return np.asarray(design.T @ (design * (chances * (1 - chances))[:, None]))

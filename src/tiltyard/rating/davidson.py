r"""Davidson's ties: a third outcome with a strength of its own, instead of two half wins.

For `d = theta_i - theta_j` and a tie strength `nu > 0`

    P(i wins) = e^(d/2) / Z,   P(j wins) = e^(-d/2) / Z,   P(tie) = nu / Z,   Z = e^(d/2) + e^(-d/2) + nu

(R. R. Davidson, "On extending the Bradley-Terry model to accommodate ties in paired comparison experiments", JASA
65, 1970, equation 2.4). The log-likelihood is concave in `(theta, log nu)`. With the score s = 1/2, -1/2, 0 for a
win, a loss, a tie and `t` 1 for a tie, the gradient sums `s - E[s]` and `t - E[t]`, and H is their covariance
matrix under the model: `Var s = (P(i) + P(j)) / 4 - ((P(i) - P(j)) / 2)^2`, `Var t = P(tie) (1 - P(tie))` and
`Cov = -P(tie) (P(i) - P(j)) / 2`. Intervals are the same sandwich as elsewhere, over ratings and `log nu`.

Points mean odds *among decisive votes*: 400 are ten wins to one loss. Half-win ratings are therefore nearer to each
other on the same votes; the two scales must not be mixed on one board, and `method` says which it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.bradley_terry import (
    Optimum,
    Ratings,
    Scores,
    check,
    complete,
    component_labels,
    difference_sums,
    gauge,
    grounded,
    laplacian,
    present,
    scores_of,
)
from tiltyard.rating.counts import BothBad, PairCounts

METHOD: Final = "davidson/1"
_MAX_ITERATIONS = 100
_STEP_TOLERANCE = 1e-11
_LEAST_VARIANCE_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class DavidsonFit:
    """Ratings, and how strong ties are."""

    ratings: Ratings
    tie_strength: float
    """nu: between equals a tie has the probability `nu / (2 + nu)`; 0 when no vote was a tie."""
    tie_strength_lower: float
    tie_strength_upper: float

    def probabilities(self, model: str, rival: str) -> tuple[float, float, float]:
        """Predict `(win, tie, loss)` of `model` against `rival`; raises `InvalidRequest` across groups."""
        chance = self.ratings.win_probability(model, rival)  # among decisive votes
        root = (chance / (1 - chance)) ** 0.5
        total = root + 1 / root + self.tie_strength
        return root / total, self.tie_strength / total, 1 / root / total


class _Model(NamedTuple):
    win: NDArray[np.float64]
    loss: NDArray[np.float64]
    tie: NDArray[np.float64]

    @property
    def mean(self) -> NDArray[np.float64]:
        return (self.win - self.loss) / 2

    @property
    def variance(self) -> NDArray[np.float64]:
        return (self.win + self.loss) / 4 - self.mean**2


def fit_davidson(
    votes: PairCounts,
    *,
    both_bad: BothBad = "tie",
    anchor: tuple[str, float] | None = None,
    confidence: float = 0.95,
    weights: NDArray[np.float64] | None = None,
) -> DavidsonFit:
    """Fit ratings and the tie strength; arguments and errors are those of `bradley_terry.fit`.

    Votes that are all ties put the tie strength at infinity and raise `InvalidRequest` (param `ties`).

    >>> votes = PairCounts.from_votes(["x"] * 4, ["y"] * 4, ["a", "b", "tie", "tie"])
    >>> round(fit_davidson(votes).tie_strength, 6)
    2.0
    """
    check(both_bad, confidence)
    size = len(votes.models)
    scores = scores_of(votes, both_bad, weights)
    ties = bool((scores.ties > 0).any())
    if ties and not (scores.wins + scores.losses > 0).any():
        raise InvalidRequest(
            f"all {int(scores.ties.sum()):,} votes are ties, so Davidson's tie strength is infinite; "
            "use half wins.",
            param="ties",
        )
    labels = component_labels(size, scores)
    completed, unbounded = complete(size, scores)
    projector = gauge(labels)
    optimum, log_nu = _maximise(completed, projector, ties)
    covariance, poor = _sandwich(completed, projector, optimum.theta, log_nu)
    ratings = present(
        votes.models,
        optimum,
        covariance[:size, :size],
        labels=labels,
        votes=votes.votes_used(both_bad),
        unbounded=unbounded,
        model_based=poor,
        virtual_pairs=int(np.count_nonzero(completed.total > scores.total)),
        both_bad=both_bad,
        confidence=confidence,
        anchor=anchor,
        method=METHOD,
    )
    if not ties:
        return DavidsonFit(ratings, 0.0, 0.0, 0.0)
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * float(np.sqrt(covariance[-1, -1]))
    bounds = np.exp([log_nu, log_nu - half, log_nu + half]).tolist()
    return DavidsonFit(ratings, *bounds)


def _model(scores: Scores, theta: NDArray[np.float64], log_nu: float) -> _Model:
    half = (theta[scores.first] - theta[scores.second]) / 2
    exponents = np.stack([half, -half, np.full(len(half), log_nu)])
    top = exponents.max(axis=0) if len(half) else 0.0
    shares = np.exp(exponents - top)
    return _Model(*(shares / shares.sum(axis=0)))


def _log_likelihood(scores: Scores, theta: NDArray[np.float64], log_nu: float) -> float:
    half = (theta[scores.first] - theta[scores.second]) / 2
    log_z = np.logaddexp(np.logaddexp(half, -half), log_nu)
    ties = scores.ties * log_nu if np.isfinite(log_nu) else 0.0
    return float((scores.weight * ((scores.wins - scores.losses) * half + ties - scores.total * log_z)).sum())


def _information(scores: Scores, size: int, model: _Model) -> NDArray[np.float64]:
    many = scores.weight * scores.total
    block = laplacian(size, scores, many * model.variance)
    cross = _incidence(scores, -many * model.tie * model.mean, size)
    corner = float((many * model.tie * (1 - model.tie)).sum())
    return np.block([[block, cross[:, None]], [cross[None, :], np.array([[corner]])]])


def _incidence(scores: Scores, values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    return difference_sums(scores.first, scores.second, values, size)


def _regular(matrix: NDArray[np.float64], wide: NDArray[np.float64]) -> NDArray[np.float64]:
    # Without a tie log nu is held at -inf: its row is 0, and a 1 there leaves it alone.
    regular = grounded(matrix, wide)
    if matrix[-1, -1] == 0:
        regular[-1, -1] = 1.0
    return regular


def _maximise(scores: Scores, projector: NDArray[np.float64], ties: bool) -> tuple[Optimum, float]:
    size = len(projector)
    theta, wide = np.zeros(size), np.pad(projector, (0, 1))
    shared = float((scores.weight * scores.ties).sum())
    decided = float((scores.weight * (scores.wins + scores.losses)).sum())
    log_nu = float(np.log(2 * shared / decided)) if ties else -np.inf  # exact between equals
    best = _log_likelihood(scores, theta, log_nu)
    for iteration in range(1, _MAX_ITERATIONS + 1):
        model = _model(scores, theta, log_nu)
        residual = (scores.wins - scores.losses) / 2 - scores.total * model.mean
        tied = scores.weight * (scores.ties - scores.total * model.tie)
        gradient = np.append(_incidence(scores, scores.weight * residual, size), tied.sum())
        step = np.linalg.solve(_regular(_information(scores, size, model), wide), gradient)
        step -= wide @ step
        while (
            reached := _log_likelihood(scores, theta + step[:size], log_nu + float(step[size]))
        ) < best - 1e-12 * abs(best):
            step /= 2
        theta, log_nu, best = theta + step[:size], log_nu + float(step[size]), reached
        if np.abs(step).max() < _STEP_TOLERANCE:
            return Optimum(theta, True, iteration, best), log_nu
    return Optimum(theta, False, _MAX_ITERATIONS, best), log_nu


def _sandwich(
    scores: Scores, projector: NDArray[np.float64], theta: NDArray[np.float64], log_nu: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    size, model, squared = len(theta), _model(scores, theta, log_nu), scores.weight**2
    # Scores of one vote by outcome: in d, and in log nu.
    outcomes = (
        (scores.wins, 0.5 - model.mean, -model.tie),
        (scores.losses, -0.5 - model.mean, -model.tie),
        (scores.ties, -model.mean, 1 - model.tie),
    )
    observed = squared * sum(many * in_d**2 for many, in_d, _ in outcomes)
    expected = squared * scores.total * model.variance
    cross = squared * sum(many * in_d * in_nu for many, in_d, in_nu in outcomes)
    corner = float((squared * sum(many * in_nu**2 for many, _, in_nu in outcomes)).sum())
    per_model = [
        np.bincount(scores.first, values, size) + np.bincount(scores.second, values, size)
        for values in (observed, expected)
    ]
    poor = per_model[0] < _LEAST_VARIANCE_SHARE * per_model[1]
    leaning = poor[scores.first] | poor[scores.second]
    block = laplacian(size, scores, np.where(leaning, np.maximum(observed, expected), observed))
    side = _incidence(scores, cross, size)
    meat = np.block([[block, side[:, None]], [side[None, :], np.array([[corner]])]])
    wide = np.pad(projector, (0, 1))
    inverse = np.linalg.inv(_regular(_information(scores, size, model), wide))
    inverse -= wide @ inverse
    covariance: NDArray[np.float64] = inverse @ meat @ inverse.T
    return covariance, poor

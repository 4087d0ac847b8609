r"""Bradley-Terry from single votes: with weights, with intervals clustered by voter, with covariates.

Minimises, over ratings theta and coefficients beta,

    sum over votes  w * BCE(y, p)  +  ridge / 2 * |beta|^2,    p = 1 / (1 + exp(-(theta_a - theta_b + x' beta)))

with `y` 1, 0 or 1/2 and `x` the covariates of the vote (Chiang et al., "Chatbot Arena", 2024, and the LMSYS
blog "Does style matter?", 2024: style control). The loss is a sum, and the ridge touches beta alone: a prior
`beta ~ N(0, 1 / ridge)` in units of one standard deviation of the covariate. (arena-rank 0.1.1 sets its ridge against
the *mean* loss, which at its default multiplies the ridge by the number of votes and all but removes style.)

The covariance is `V = H^-1 G H^-1`, where `G` sums the outer products of scores `w (y - p) (e_a - e_b, x)`: of
single votes, or, clustered, of the sums within each voter (K.-Y. Liang and S. L. Zeger, Biometrika 73, 1986),
then times `C / (C - 1)` for C voters. Votes of one person resemble each other, so that interval is the honest one.
Undefeated models, groups and models whose votes hardly vary are treated as in `bradley_terry.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.bradley_terry import (
    POINTS,
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
    maximise,
    present,
)
from tiltyard.rating.counts import BothBad
from tiltyard.rating.outcomes import BOTH_BAD
from tiltyard.rating.votes import Votes
from tiltyard.rating.weights import effective_votes

_SCORE: Final = np.array([1.0, 0.0, 0.5, 0.5])  # by outcome code, for the left side
_MAX_ITERATIONS = 100
_STEP_TOLERANCE = 1e-11
_LEAST_VARIANCE_SHARE = 0.25
_MOST_LOG_ODDS = 30.0  # of a coefficient; beyond it p is 0 or 1 to the last bit
_LEAST_CURVATURE = 1e-9  # of a covariate, as a share of what it has before ratings explain it
_CHUNK_CELLS = 1 << 22  # cells of the table (voters, parameters) held at once: 32 MiB


@dataclass(frozen=True)
class Effect:
    """What one covariate does, with its interval."""

    name: str
    coefficient: float
    """Log-odds for the left side per standard deviation of the covariate."""
    lower: float
    upper: float
    middle: float
    deviation: float
    """Of the covariate, population; it entered as `(x - middle) / deviation`."""

    @property
    def points(self) -> float:
        """Rating points that one standard deviation is worth."""
        return POINTS * self.coefficient


@dataclass(frozen=True, eq=False)
class VoteFit:
    """Ratings, and what only single votes can tell."""

    ratings: Ratings
    effects: tuple[Effect, ...]
    voters: int | None
    """Clusters behind the intervals; `None` when each vote stood for itself."""
    effective_votes: float
    """Equal votes that would be as precise as the weighted ones (Kish)."""
    ridge: float

    def effect(self, name: str) -> Effect:
        """Return the effect of a covariate by its name."""
        return next(effect for effect in self.effects if effect.name == name)


class _Rows(NamedTuple):
    a: NDArray[np.intp]
    b: NDArray[np.intp]
    y: NDArray[np.float64]
    w: NDArray[np.float64]
    scale: NDArray[np.float64]  # of a score in G: w, and for a virtual half vote the root of 1/2
    x: NDArray[np.float64]  # (rows, covariates), standardised
    cluster: NDArray[np.intp]


def fit_votes(
    votes: Votes,
    *,
    weights: NDArray[np.float64] | None = None,
    by_voter: bool = False,
    covariates: Mapping[str, NDArray[np.float64]] | None = None,
    centre: bool = False,
    ridge: float = 0.0,
    both_bad: BothBad = "tie",
    anchor: tuple[str, float] | None = None,
    confidence: float = 0.95,
) -> VoteFit:
    """Fit single votes; without options the result equals `bradley_terry.fit` of their counts.

    `covariates` has one number a vote, positive where it speaks for the left side (`style.py` makes them). Each is
    divided by its standard deviation, but for one that is constant (such as 1 for every vote: the advantage of the
    left side). `centre` takes the mean away first, as arena-rank does; that hides a small advantage of one
    side in the covariate, so it is off unless asked for.

    Time grows with votes times covariates squared; memory holds a few arrays of votes and of models squared.
    Raises `InvalidRequest` naming `weights`, `covariates`, `ridge`, `voter` and what `fit` names.
    """
    check(both_bad, confidence)
    if ridge < 0:
        raise InvalidRequest(f"ridge is {ridge}; it starts at 0.", param="ridge")
    size = len(votes.models)
    weight = np.ones(len(votes)) if weights is None else np.asarray(weights, dtype=np.float64)
    if weight.shape != (len(votes),) or not (np.isfinite(weight) & (weight > 0)).all():
        raise InvalidRequest(
            f"weights has shape {weight.shape}; it needs one positive factor for each of {len(votes):,} votes.",
            param="weights",
        )
    voter = votes.need_voters() if by_voter else np.arange(len(votes), dtype=np.intp)
    columns = {name: _number(name, values, len(votes)) for name, values in (covariates or {}).items()}
    if both_bad == "drop":
        keep = votes.outcome != BOTH_BAD
        votes, weight, voter = votes.select(keep), weight[keep], voter[keep]
        columns = {name: values[keep] for name, values in columns.items()}

    standard = {name: _standardised(name, values, centre) for name, values in columns.items()}
    x = np.stack([scaled for scaled, _, _ in standard.values()], axis=1) if standard else None
    scores = _scores(votes, weight)
    labels = component_labels(size, scores)
    completed, unbounded = complete(size, scores)
    projector = gauge(labels)
    optimum = maximise(completed, projector, np.zeros(size))
    rows = _rows(votes, weight, voter, x, scores, completed)
    beta = np.zeros(rows.x.shape[1])
    if standard:
        optimum, beta = _maximise_rows(rows, projector, optimum.theta, ridge, tuple(standard))
    covariance, poor, clusters = _sandwich_rows(rows, projector, optimum.theta, beta, ridge, by_voter)

    ratings = present(
        votes.models,
        optimum,
        covariance[:size, :size],
        labels=labels,
        votes=np.bincount(np.concatenate([votes.a, votes.b]), minlength=size),
        unbounded=unbounded,
        model_based=poor,
        virtual_pairs=int(np.count_nonzero(completed.wins > scores.wins)),
        both_bad=both_bad,
        confidence=confidence,
        anchor=anchor,
    )
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    half = z * np.sqrt(np.diagonal(covariance)[size:])
    effects = tuple(
        Effect(name, value, value - width, value + width, middle, deviation)
        for (name, (_, middle, deviation)), value, width in zip(
            standard.items(), beta.tolist(), half.tolist(), strict=True
        )
    )
    return VoteFit(ratings, effects, clusters if by_voter else None, effective_votes(weight), ridge)


def _number(name: str, values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    column = np.asarray(values, dtype=np.float64)
    if column.shape != (size,) or not np.isfinite(column).all():
        raise InvalidRequest(
            f"the covariate {name} has shape {column.shape} and {int((~np.isfinite(column)).sum()):,} values that "
            f"are no number; it needs one number for each of {size:,} votes.",
            param="covariates",
        )
    return column


def _standardised(
    name: str, values: NDArray[np.float64], centre: bool
) -> tuple[NDArray[np.float64], float, float]:
    mean, deviation = (float(values.mean()), float(values.std())) if len(values) else (0.0, 0.0)
    if deviation > 1e-12 * max(1.0, abs(mean)):
        middle = mean if centre else 0.0
        return (values - middle) / deviation, middle, deviation
    if mean == 0:
        raise InvalidRequest(
            f"the covariate {name} is 0 on every vote, so these votes cannot say what it does; leave it out.",
            param="covariates",
        )
    return values, 0.0, 1.0


def _scores(votes: Votes, weight: NDArray[np.float64]) -> Scores:
    """Weighted sums by pair, the lower index first."""
    size = max(len(votes.models), 1)
    turned = votes.a > votes.b
    key = np.where(turned, votes.b * size + votes.a, votes.a * size + votes.b)
    code = np.where(turned & (votes.outcome < 2), 1 - votes.outcome, np.minimum(votes.outcome, 2))
    pairs, place = np.unique(key, return_inverse=True)
    cells = np.bincount(place * 3 + code, weight, 3 * len(pairs)).reshape(-1, 3).astype(np.float64)
    return Scores(pairs // size, pairs % size, cells[:, 0], cells[:, 1], cells[:, 2], np.ones(len(pairs)))


def _rows(  # noqa: PLR0917  # all of one call's intermediate values
    votes: Votes,
    weight: NDArray[np.float64],
    voter: NDArray[np.intp],
    x: NDArray[np.float64] | None,
    scores: Scores,
    completed: Scores,
) -> _Rows:
    # Virtual half wins become rows of weight 1/2, without covariates, each its own cluster.
    virtual = np.flatnonzero(completed.wins > scores.wins)
    many = len(virtual)
    first, second = scores.first[virtual], scores.second[virtual]
    next_cluster = int(voter.max()) + 1 if len(voter) else 0
    covariates = np.zeros((len(votes), 0)) if x is None else x
    return _Rows(
        a=np.concatenate([votes.a, first, first]),
        b=np.concatenate([votes.b, second, second]),
        y=np.concatenate([_SCORE[votes.outcome], np.ones(many), np.zeros(many)]),
        w=np.concatenate([weight, np.full(2 * many, 0.5)]),
        scale=np.concatenate([weight, np.full(2 * many, 0.5**0.5)]),
        x=np.concatenate([covariates, np.zeros((2 * many, covariates.shape[1]))]),
        cluster=np.concatenate([voter, next_cluster + np.arange(2 * many)]),
    )


def _odds(rows: _Rows, theta: NDArray[np.float64], beta: NDArray[np.float64]) -> NDArray[np.float64]:
    return theta[rows.a] - theta[rows.b] + rows.x @ beta


def _chance(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * (1 + np.tanh(odds / 2))


def _objective(rows: _Rows, theta: NDArray[np.float64], beta: NDArray[np.float64], ridge: float) -> float:
    odds = _odds(rows, theta, beta)
    terms = rows.y * np.logaddexp(0, -odds) + (1 - rows.y) * np.logaddexp(0, odds)
    return -float((rows.w * terms).sum()) - ridge / 2 * float(beta @ beta)


def _hessian(rows: _Rows, p: NDArray[np.float64], size: int, ridge: float) -> NDArray[np.float64]:
    curvature = rows.w * p * (1 - p)
    return _second_moments(rows, curvature, size) + np.diag(
        np.concatenate([np.zeros(size), np.full(rows.x.shape[1], ridge)])
    )


def _second_moments(rows: _Rows, values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    # sum of values * s s', s = (e_a - e_b, x)
    upper = np.bincount(rows.a * size + rows.b, values, size * size).reshape(size, size)
    both = upper + upper.T
    corner = rows.x.T @ (rows.x * values[:, None])
    cross = np.empty((size, rows.x.shape[1]))
    for number, column in enumerate(rows.x.T):
        cross[:, number] = _incidence(rows, values * column, size)
    return np.block([[np.diag(both.sum(axis=1)) - both, cross], [cross.T, corner]])


def _incidence(rows: _Rows, values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    return difference_sums(rows.a, rows.b, values, size)


def _widen(projector: NDArray[np.float64], covariates: int) -> NDArray[np.float64]:
    return np.pad(projector, (0, covariates))


def _maximise_rows(
    rows: _Rows,
    projector: NDArray[np.float64],
    start: NDArray[np.float64],
    ridge: float,
    names: tuple[str, ...],
) -> tuple[Optimum, NDArray[np.float64]]:
    """Newton's method as in `bradley_terry.maximise`, over ratings and coefficients together."""
    size, theta, beta = len(start), start, np.zeros(len(names))
    wide = _widen(projector, len(names))
    best = _objective(rows, theta, beta, ridge)
    for iteration in range(1, _MAX_ITERATIONS + 1):
        p = _chance(_odds(rows, theta, beta))
        residual = rows.w * (rows.y - p)
        gradient = np.concatenate([_incidence(rows, residual, size), rows.x.T @ residual - ridge * beta])
        hessian = grounded(_hessian(rows, p, size, ridge), wide)
        if iteration == 1:
            _refuse_collinear(hessian, size, ridge, names)
        if np.abs(beta).max() > _MOST_LOG_ODDS:
            _refuse_separated(names, beta)
        try:
            step = np.linalg.solve(hessian, gradient)
        except np.linalg.LinAlgError:
            _refuse_separated(names, beta)
        step -= wide @ step
        while (
            reached := _objective(rows, theta + step[:size], beta + step[size:], ridge)
        ) < best - 1e-12 * abs(best):
            step /= 2
        theta, beta, best = theta + step[:size], beta + step[size:], reached
        if np.abs(step).max() < _STEP_TOLERANCE:
            return Optimum(theta, True, iteration, best), beta
    return Optimum(theta, False, _MAX_ITERATIONS, best), beta


def _refuse_separated(names: tuple[str, ...], beta: NDArray[np.float64]) -> NoReturn:
    # As with undefeated models there is no finite optimum, but no pair to which a virtual vote would belong.
    furthest = names[int(np.argmax(np.abs(beta)))]
    raise InvalidRequest(
        f"{', '.join(names)} and the models together decide every vote, so the coefficient of {furthest} is "
        "infinite; give a ridge above 0, or leave it out.",
        param="covariates",
    )


def _refuse_collinear(hessian: NDArray[np.float64], size: int, ridge: float, names: tuple[str, ...]) -> None:
    # The curvature that ratings leave of the covariates (Schur's complement); a direction without any is confounded.
    cross, corner = hessian[:size, size:], hessian[size:, size:] - ridge * np.eye(len(names))
    left = corner - cross.T @ np.linalg.solve(hessian[:size, :size], cross)
    scale = np.sqrt(np.diagonal(corner))
    values, vectors = np.linalg.eigh(left / np.outer(scale, scale))
    involved = np.abs(vectors[:, values < _LEAST_CURVATURE]).max(axis=1, initial=0) > 0.1
    confounded = [name for name, part in zip(names, involved.tolist(), strict=True) if part]
    if confounded:
        raise InvalidRequest(
            f"the models and the other covariates already say all that {', '.join(confounded)} could, so no "
            "coefficient can be told apart (a ridge would only repeat its prior); leave one out.",
            param="covariates",
        )


def _sandwich_rows(  # noqa: PLR0917  # all of one call's intermediate values
    rows: _Rows,
    projector: NDArray[np.float64],
    theta: NDArray[np.float64],
    beta: NDArray[np.float64],
    ridge: float,
    by_voter: bool,
) -> tuple[NDArray[np.float64], NDArray[np.bool_], int]:
    """Return V, which models lean on the model's variance, and the number of clusters."""
    size = len(theta)
    p = _chance(_odds(rows, theta, beta))
    residual = rows.scale * (rows.y - p)
    clusters = len(np.unique(rows.cluster))
    if by_voter:
        meat = _clustered(rows, residual, size) * (clusters / max(clusters - 1, 1))
    else:
        meat = _second_moments(rows, residual**2, size)
    observed, expected = residual**2, rows.scale**2 * p * (1 - p)
    per_model = [
        np.bincount(rows.a, values, size) + np.bincount(rows.b, values, size)
        for values in (observed, expected)
    ]
    poor = per_model[0] < _LEAST_VARIANCE_SHARE * per_model[1]
    if poor.any():
        meat[:size, :size] += _missing_variance(rows, observed, expected, poor)
    wide = _widen(projector, len(beta))
    inverse = np.linalg.inv(grounded(_hessian(rows, p, size, ridge), wide))
    inverse -= wide @ inverse
    return inverse @ meat @ inverse.T, poor, clusters


def _missing_variance(
    rows: _Rows, observed: NDArray[np.float64], expected: NDArray[np.float64], poor: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """What pairs of the models in `poor` lack, as a Laplacian."""
    size = len(poor)
    key = np.minimum(rows.a, rows.b) * size + np.maximum(rows.a, rows.b)
    pairs, place = np.unique(key, return_inverse=True)
    lack = np.maximum(np.bincount(place, expected - observed), 0)
    first, second = pairs // size, pairs % size
    none = np.zeros(len(pairs), dtype=np.float64)
    scores = Scores(first, second, none, none, none, none)
    return laplacian(size, scores, np.where(poor[first] | poor[second], lack, 0))


def _clustered(rows: _Rows, residual: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Sum over clusters of the outer product of their summed scores, a slice of clusters at a time."""
    width = size + rows.x.shape[1]
    order = np.argsort(rows.cluster, kind="stable")
    cluster = np.unique(rows.cluster[order], return_inverse=True)[1]
    total = int(cluster[-1]) + 1 if len(cluster) else 0
    at_once = max(1, _CHUNK_CELLS // max(width, 1))
    meat = np.zeros((width, width))
    for start in range(0, total, at_once):
        stop = min(start + at_once, total)
        inside = order[np.searchsorted(cluster, start) : np.searchsorted(cluster, stop)]
        own = cluster[np.searchsorted(cluster, start) : np.searchsorted(cluster, stop)] - start
        cells = (stop - start) * size
        sums = np.bincount(own * size + rows.a[inside], residual[inside], cells)
        sums -= np.bincount(own * size + rows.b[inside], residual[inside], cells)
        covariate_sums = [
            np.bincount(own, residual[inside] * column[inside], stop - start) for column in rows.x.T
        ]
        scores = np.concatenate(
            [sums.reshape(-1, size), *(column[:, None] for column in covariate_sums)], axis=1
        )
        meat += scores.T @ scores
    return meat

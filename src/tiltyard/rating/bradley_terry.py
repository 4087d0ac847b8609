r"""Bradley-Terry ratings from pair counts, with intervals that do not trust the model.

Model i beats model j with probability `p_ij = 1 / (1 + exp(-(theta_i - theta_j)))`; a tie is half a win for
each (R. A. Bradley and M. E. Terry, "Rank analysis of incomplete block designs", Biometrika 39, 1952). With
`n` votes on a pair, of which i took the score `s` (wins and half the ties), the log-likelihood is

    l(theta) = sum over pairs  w * (s * log p_ij + (n - s) * log(1 - p_ij))

which is concave; Newton's step solves `H d = g`, where `g = sum w (s - n p) x`, `H = sum w n p (1 - p) x x'`
and `x` has +1 at i and -1 at j. Only differences matter, so each connected part of the graph is held at
mean theta 0 (the sum-zero gauge) and shown as `R = 1000 + 400 / ln 10 * theta`, the scale of Elo.

Intervals are Huber's sandwich `V = H^+ G H^+` with `G = sum w^2 (sum over votes (y - p)^2) x x'`: it stays
right when ties make votes less noisy than coin flips (P. J. Huber, 1967; Chiang et al., "Chatbot Arena",
2024, section 5). `H^+` is the pseudo-inverse: no ridge narrows the intervals of models with few votes.

Two cases have no honest answer in those formulas, and each is named in the result:

- `unbounded`: votes that all point one way (a model that never lost, or never won) push a rating to infinity.
  Each pair across which all votes point one way between two strongly connected parts then gets half
  a virtual win in each direction (the Haldane-Anscombe correction, which for two models is Firth's). No other
  pair is touched.
- `model_based`: a model whose votes vary less than a quarter of what the model expects (one vote, or nearly
  all ties) would get an interval near zero. The pairs of such a model enter G with the model's own variance
  `n p (1 - p)` where that is larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.counts import BothBad, PairCounts
from tiltyard.rating.graph import strong_parts

METHOD: Final = "bradley-terry/2"
"""Changes whenever the same votes could get another number."""

POINTS: Final = 400 / math.log(10)
"""Rating points per unit of theta: 400 points are odds of 10 to 1."""
CENTRE: Final = 1000.0
"""Mean rating of a connected part when there is no anchor."""

Unbounded: TypeAlias = Literal["undefeated", "winless", "separated"]
"""Why votes alone give no finite rating: never lost or tied, never won or tied, or in a group that is so."""

_MAX_ITERATIONS = 100
_STEP_TOLERANCE = 1e-11  # theta; 2e-9 rating points
_LEAST_VARIANCE_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Ratings:
    """A fit. Arrays follow `models`; a model without a vote has NaN for rating and bounds."""

    models: tuple[str, ...]
    ratings: NDArray[np.float64]
    """Points; shape `(models,)`."""
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    covariance: NDArray[np.float64]
    """Squared points, about the mean that is held (of each connected part's models, unless `about` chose others); zero
    across parts; `(models, models)`."""
    votes: NDArray[np.int64]
    """Votes that bear on each model under the policy for both bad."""
    components: tuple[tuple[str, ...], ...]
    """Connected parts, most votes first; ratings compare only within one. A model without votes is in none."""
    component: NDArray[np.intp]
    """Position in `components` of each model's part, -1 without votes."""
    converged: bool
    iterations: int
    log_likelihood: float
    unbounded: Mapping[str, Unbounded]
    """Models whose rating is finite only through virtual half wins."""
    model_based: frozenset[str]
    """Models whose interval leans on the model's variance."""
    virtual_pairs: int
    """Pairs that got half a virtual win in each direction."""
    both_bad: BothBad
    confidence: float
    anchor: tuple[str, float] | None
    method: str = METHOD

    @property
    def standard_errors(self) -> NDArray[np.float64]:
        """Points; shape `(models,)`."""
        return np.sqrt(np.diagonal(self.covariance))

    def about(self, minimum_votes: int) -> Ratings:
        """Hold the mean of those models of the largest part that have so many votes, and measure intervals from it.

        A rating is a distance from a mean. About the mean of all models, one with a handful of votes moves every
        rating and widens every interval, though no difference of two others is known less (FastChat #3377). Without a
        model of so many votes nothing is changed; an anchor goes on to decide the ratings themselves.
        """
        part, held = self.component == 0, self.held(minimum_votes)
        if not held.any() or held.sum() == part.sum():
            return self
        anchored = self.anchor is not None and bool(part[self.models.index(self.anchor[0])])
        ratings = self.ratings.copy()
        if not anchored:
            ratings[part] += CENTRE - ratings[held].mean()
        covariance = self.covariance.copy()
        within = np.ix_(part, part)
        with_mean = covariance[:, held].mean(axis=1)
        covariance[within] -= with_mean[part][:, None] + with_mean[part][None, :] - with_mean[held].mean()
        half = _half_widths(covariance, self.confidence)
        return replace(
            self, ratings=ratings, lower=ratings - half, upper=ratings + half, covariance=covariance
        )

    def held(self, minimum_votes: int) -> NDArray[np.bool_]:
        """The models of the largest connected part that have at least so many votes; shape `(models,)`."""
        inside: NDArray[np.bool_] = (self.component == 0) & (self.votes >= minimum_votes)
        return inside

    def refuse_unconnected(self) -> Ratings:
        """Return itself if one chain of votes connects all models that have votes.

        Else raises `InvalidRequest` (param `models`) that lists the connected parts.
        """
        if len(self.components) > 1:
            parts = "; ".join(
                f"({number}) " + ", ".join(part[:5]) + (f" and {len(part) - 5} more" if len(part) > 5 else "")
                for number, part in enumerate(self.components[:8], 1)
            )
            raise InvalidRequest(
                f"votes fall into {len(self.components)} groups that no battle connects, so their ratings do "
                f"not compare: {parts}. Let models of different groups meet, or rate each group alone.",
                param="models",
            )
        return self

    def win_probability(self, model: str, rival: str) -> float:
        """Predict how often `model` beats `rival`, a tie as half; raises `InvalidRequest` across parts."""
        i, j = self.models.index(model), self.models.index(rival)
        if self.component[i] < 0 or self.component[i] != self.component[j]:
            raise InvalidRequest(f"no chain of votes connects {model!r} and {rival!r}.", param="model")
        return float(1 / (1 + 10 ** ((self.ratings[j] - self.ratings[i]) / 400)))


class Scores(NamedTuple):
    """What the votes on each pair add up to; each of shape `(pairs,)`, for the pair's first model."""

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    wins: NDArray[np.float64]
    losses: NDArray[np.float64]
    ties: NDArray[np.float64]
    weight: NDArray[np.float64]

    @property
    def score(self) -> NDArray[np.float64]:
        """Wins and half the ties of the first model."""
        return self.wins + self.ties / 2

    @property
    def total(self) -> NDArray[np.float64]:
        """Votes on the pair."""
        return self.wins + self.losses + self.ties


class Optimum(NamedTuple):
    """Where Newton stopped."""

    theta: NDArray[np.float64]
    converged: bool
    iterations: int
    log_likelihood: float


def fit(
    votes: PairCounts,
    *,
    both_bad: BothBad = "tie",
    anchor: tuple[str, float] | None = None,
    confidence: float = 0.95,
    weights: NDArray[np.float64] | None = None,
) -> Ratings:
    """Fit ratings and intervals to votes.

    `anchor=(model, rating)` shifts all ratings of the anchor's part and changes no interval's width.
    `weights` has one factor for each pair of `votes`, shape `(pairs,)`. Memory grows with models squared.

    Raises `InvalidRequest` naming `both_bad`, `anchor`, `confidence` or `weights`.

    >>> votes = PairCounts.from_votes(["x"] * 4, ["y"] * 4, ["model_a"] * 3 + ["model_b"])
    >>> fit(votes).ratings.round(2).tolist()
    [1095.42, 904.58]
    """
    check(both_bad, confidence)
    size = len(votes.models)
    scores = scores_of(votes, both_bad, weights)
    labels = component_labels(size, scores)
    completed, unbounded = complete(size, scores)
    projector = gauge(labels)
    optimum = maximise(completed, projector, np.zeros(size))
    covariance, model_based = sandwich(completed, projector, optimum.theta)
    return present(
        votes.models,
        optimum,
        covariance,
        labels=labels,
        votes=votes.votes_used(both_bad),
        unbounded=unbounded,
        model_based=model_based,
        virtual_pairs=int(np.count_nonzero(completed.total > scores.total)),
        both_bad=both_bad,
        confidence=confidence,
        anchor=anchor,
    )


def check(both_bad: str, confidence: float) -> None:
    """Refuse a policy or a confidence that means nothing; raises `InvalidRequest`."""
    if both_bad not in ("tie", "drop"):
        raise InvalidRequest(f"both_bad is {both_bad!r}; it may be 'tie' or 'drop'.", param="both_bad")
    if not 0 < confidence < 1:
        raise InvalidRequest(f"confidence is {confidence}; it lies between 0 and 1.", param="confidence")


def present(
    models: tuple[str, ...],
    optimum: Optimum,
    covariance: NDArray[np.float64],
    *,
    labels: NDArray[np.intp],
    votes: NDArray[np.int64],
    unbounded: Mapping[int, Unbounded],
    model_based: NDArray[np.bool_],
    virtual_pairs: int,
    both_bad: BothBad,
    confidence: float,
    anchor: tuple[str, float] | None,
    method: str = METHOD,
) -> Ratings:
    """Turn theta and its covariance into points with intervals; raises `InvalidRequest` naming `anchor`."""
    component, components = _name_components(models, labels, votes)
    ratings = np.where(votes > 0, CENTRE + POINTS * optimum.theta, np.nan)
    if anchor is not None:
        ratings = _shift(ratings, models, component, anchor)
    covariance = covariance * POINTS**2
    half = _half_widths(covariance, confidence)
    return Ratings(
        models=models,
        ratings=ratings,
        lower=ratings - half,
        upper=ratings + half,
        covariance=covariance,
        votes=votes,
        components=components,
        component=component,
        converged=optimum.converged,
        iterations=optimum.iterations,
        log_likelihood=optimum.log_likelihood,
        unbounded={models[node]: why for node, why in unbounded.items()},
        model_based=frozenset(models[node] for node in np.flatnonzero(model_based)),
        virtual_pairs=virtual_pairs,
        both_bad=both_bad,
        confidence=confidence,
        anchor=anchor,
        method=method,
    )


def _half_widths(covariance: NDArray[np.float64], confidence: float) -> NDArray[np.float64]:
    return NormalDist().inv_cdf(0.5 + confidence / 2) * np.sqrt(np.maximum(np.diagonal(covariance), 0))


def scores_of(votes: PairCounts, both_bad: BothBad, weights: NDArray[np.float64] | None) -> Scores:
    """Apply the policy for both bad, and leave out pairs with no vote left."""
    wins, losses, ties, bad = votes.counts.T.astype(np.float64)
    if both_bad == "tie":
        ties = ties + bad
    weight = np.ones(len(wins)) if weights is None else np.asarray(weights, dtype=np.float64)
    if weight.shape != wins.shape or not (np.isfinite(weight) & (weight > 0)).all():
        raise InvalidRequest(
            f"weights has shape {weight.shape}; it needs one positive factor for each of {len(wins)} pairs.",
            param="weights",
        )
    met = wins + losses + ties > 0
    return Scores(votes.first[met], votes.second[met], wins[met], losses[met], ties[met], weight[met])


def component_labels(size: int, scores: Scores) -> NDArray[np.intp]:
    """Label models by connected part."""
    edges = np.zeros((size, size), dtype=np.bool_)
    edges[scores.first, scores.second] = True
    return strong_parts(edges | edges.T)


def complete(size: int, scores: Scores) -> tuple[Scores, dict[int, Unbounded]]:
    """Give half a virtual win each way to the pairs that keep ratings infinite; name the models concerned."""
    first, second = scores.first, scores.second
    took = np.zeros((size, size), dtype=np.bool_)  # took[i, j]: i has a win or a tie against j
    took[first, second] = scores.score > 0
    took[second, first] = scores.score < scores.total
    parts = strong_parts(took)
    blocked = parts[first] != parts[second]
    if not blocked.any():
        return scores, {}
    half = np.where(blocked, 0.5, 0.0)
    completed = scores._replace(wins=scores.wins + half, losses=scores.losses + half)
    met = np.zeros(size, dtype=np.bool_)
    met[first] = met[second] = True
    # The largest part of each component keeps its ratings; the others are placed by virtual wins.
    members = np.bincount(parts, minlength=size)
    components = component_labels(size, scores)
    unbounded: dict[int, Unbounded] = {}
    for component in np.unique(components[first[blocked]]):
        nodes = np.flatnonzero(components == component)
        largest = parts[nodes[np.argmax(members[parts[nodes]])]]
        for node in nodes[(parts[nodes] != largest) | (members[largest] == 1)]:
            unbounded[int(node)] = _why(bool(took[node].any()), bool(took[:, node].any()))
    return completed, unbounded


def _why(scored: bool, conceded: bool) -> Unbounded:
    if not conceded:
        return "undefeated"
    return "separated" if scored else "winless"


def gauge(labels: NDArray[np.intp]) -> NDArray[np.float64]:
    """Project onto the constants of each connected part: the directions in which the likelihood is flat."""
    same = labels[:, None] == labels[None, :]
    return same / np.bincount(labels)[labels][:, None] if len(labels) else np.zeros((0, 0))


def information(scores: Scores, theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """H, minus the second derivative of the log-likelihood; shape `(models, models)`."""
    p = win(scores, theta)
    return laplacian(len(theta), scores, scores.weight * scores.total * p * (1 - p))


def maximise(scores: Scores, projector: NDArray[np.float64], start: NDArray[np.float64]) -> Optimum:
    """Newton's method from `start`, each step halved until the likelihood does not fall."""
    theta, size = start, len(start)
    best = _log_likelihood(scores, theta)
    for iteration in range(1, _MAX_ITERATIONS + 1):
        p = win(scores, theta)
        residual = scores.weight * (scores.score - scores.total * p)
        gradient = difference_sums(scores.first, scores.second, residual, size)
        step = np.linalg.solve(grounded(information(scores, theta), projector), gradient)
        step -= projector @ step
        while (reached := _log_likelihood(scores, theta + step)) < best - 1e-12 * abs(best):
            step /= 2
        theta, best = theta + step, reached
        if not size or np.abs(step).max() < _STEP_TOLERANCE:
            return Optimum(theta, True, iteration, best)
    return Optimum(theta, False, _MAX_ITERATIONS, best)


def score_variances(scores: Scores, theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of squared residuals of the votes on each pair; shape `(pairs,)`."""
    p = win(scores, theta)
    return scores.wins * (1 - p) ** 2 + scores.losses * p**2 + scores.ties * (0.5 - p) ** 2


def sandwich(
    scores: Scores, projector: NDArray[np.float64], theta: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return V in theta squared, `(models, models)`, and which models lean on the model's variance."""
    size, p = len(theta), win(scores, theta)
    squared = scores.weight**2
    observed = squared * score_variances(scores, theta)
    expected = squared * scores.total * p * (1 - p)
    per_model = [
        np.bincount(scores.first, values, size) + np.bincount(scores.second, values, size)
        for values in (observed, expected)
    ]
    poor = per_model[0] < _LEAST_VARIANCE_SHARE * per_model[1]
    leaning = poor[scores.first] | poor[scores.second]
    meat = laplacian(size, scores, np.where(leaning, np.maximum(observed, expected), observed))
    inverse = np.linalg.inv(grounded(information(scores, theta), projector))
    inverse -= projector @ inverse  # now the pseudo-inverse of H
    return inverse @ meat @ inverse.T, poor


def grounded(matrix: NDArray[np.float64], projector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Make a matrix that is singular along the constants regular, without moving its sum-zero solutions."""
    # The projector is added there at H's own size.
    scale = float(np.diagonal(matrix).mean()) if len(matrix) else 1.0
    return matrix + (scale or 1.0) * projector


def laplacian(size: int, scores: Scores, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of `values * x x'` over pairs, x = e_first - e_second; shape `(models, models)`."""
    upper = np.bincount(scores.first * size + scores.second, values, size * size).reshape(size, size)
    both = upper + upper.T
    summed: NDArray[np.float64] = np.diag(both.sum(axis=1)) - both
    return summed


def difference_sums(
    first: NDArray[np.intp], second: NDArray[np.intp], values: NDArray[np.float64], size: int
) -> NDArray[np.float64]:
    """Return the sum of `values * x`, x = e_first - e_second; shape `(models,)`."""
    plus = np.bincount(first, values, size).astype(np.float64)
    return plus - np.bincount(second, values, size).astype(np.float64)


def win(scores: Scores, theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how likely the first model of each pair beats the second."""
    return 0.5 * (1 + np.tanh((theta[scores.first] - theta[scores.second]) / 2))


def _log_likelihood(scores: Scores, theta: NDArray[np.float64]) -> float:
    difference = theta[scores.first] - theta[scores.second]
    # log p = -log(1 + exp(-d)), and the same with the sign turned for the rival
    terms = -scores.score * np.logaddexp(0, -difference)
    terms -= (scores.total - scores.score) * np.logaddexp(0, difference)
    return float((scores.weight * terms).sum())


def _name_components(
    models: tuple[str, ...], labels: NDArray[np.intp], used: NDArray[np.int64]
) -> tuple[NDArray[np.intp], tuple[tuple[str, ...], ...]]:
    votes = np.bincount(labels, used, len(models)) if len(models) else np.zeros(0)
    order = [int(label) for label in np.argsort(-votes, kind="stable") if votes[label] > 0]
    place = np.full(len(models), -1, dtype=np.intp)
    place[order] = np.arange(len(order))
    component = place[labels]
    named = [tuple(models[node] for node in np.flatnonzero(labels == label)) for label in order]
    return component, tuple(named)


def _shift(
    ratings: NDArray[np.float64],
    models: tuple[str, ...],
    component: NDArray[np.intp],
    anchor: tuple[str, float],
) -> NDArray[np.float64]:
    name, value = anchor
    if name not in models or component[models.index(name)] < 0:
        raise InvalidRequest(f"the anchor {name!r} has no votes here; name a model that has.", param="anchor")
    node = models.index(name)
    return np.where(component == component[node], ratings + (value - ratings[node]), ratings)

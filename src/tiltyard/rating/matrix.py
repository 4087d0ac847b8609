"""Pair by pair: observed win rates, what the ratings predict, and which pairs know least of each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.bradley_terry import Ratings, scores_of
from tiltyard.rating.counts import PairCounts


@dataclass(frozen=True)
class PairCheck:
    """One pair, seen from `model`."""

    model: str
    rival: str
    votes: int
    """Between the two."""
    observed: float | None
    """Share of wins, a tie as half; `None` without votes."""
    predicted: float
    surprise: float
    """Standard errors between the two, `(s - n p) / sqrt(n p (1 - p))`; 0 without votes."""
    standard_error: float
    """Of the difference of the two ratings, in points; large where few chains of votes connect them."""


@dataclass(frozen=True, eq=False)
class WinMatrix:
    """Arrays of shape `(models, models)`: row against column, NaN on the diagonal."""

    models: tuple[str, ...]
    votes: NDArray[np.int64]
    observed: NDArray[np.float64]
    """Share of wins of the row, a tie as half; NaN without votes."""
    predicted: NDArray[np.float64]
    """`1 / (1 + 10^((R_column - R_row) / 400))` with ties as half; NaN where no chain of votes connects the two."""
    surprise: NDArray[np.float64]
    standard_error: NDArray[np.float64]
    """Points, of each difference."""

    def most_surprising(self, most: int = 10) -> tuple[PairCheck, ...]:
        """Return the pairs whose votes fit the ratings least: cycles, or votes that are no comparison."""
        return self._first(-np.abs(np.nan_to_num(self.surprise)), self.votes > 0, most)

    def worst_connected(self, most: int = 10) -> tuple[PairCheck, ...]:
        """Return the pairs whose difference is known least, connected pairs only.

        The variance of a difference is the effective resistance between the two in the network whose conductances
        are the votes' information (D. J. Klein and M. Randic, "Resistance distance", 1993).
        """
        return self._first(-np.nan_to_num(self.standard_error), np.isfinite(self.predicted), most)

    @property
    def calibration(self) -> float:
        """Mean squared surprise over pairs with votes: near 1 minus the share of ties when the model holds."""
        met = np.triu(self.votes > 0, 1) & np.isfinite(self.surprise)
        return float((self.surprise[met] ** 2).mean()) if met.any() else float("nan")

    def pair(self, model: str, rival: str) -> PairCheck:
        """Return one pair; raises `InvalidRequest` naming `model` for a name that is not here."""
        for name in (model, rival):
            if name not in self.models:
                raise InvalidRequest(f"{name!r} has no row here.", param="model")
        return self._check(self.models.index(model), self.models.index(rival))

    def _first(self, key: NDArray[np.float64], among: NDArray[np.bool_], most: int) -> tuple[PairCheck, ...]:
        first, second = np.nonzero(np.triu(among, 1))
        order = np.argsort(key[first, second], kind="stable")[:most]
        return tuple(self._check(int(first[place]), int(second[place])) for place in order)

    def _check(self, i: int, j: int) -> PairCheck:
        votes = int(self.votes[i, j])
        return PairCheck(
            model=self.models[i],
            rival=self.models[j],
            votes=votes,
            observed=float(self.observed[i, j]) if votes else None,
            predicted=float(self.predicted[i, j]),
            surprise=float(np.nan_to_num(self.surprise[i, j])),
            standard_error=float(self.standard_error[i, j]),
        )


def win_matrix(counts: PairCounts, ratings: Ratings, *, tie_strength: float = 0.0) -> WinMatrix:
    """Set observed beside predicted, under the ratings' own policy for both bad.

    `tie_strength` is Davidson's nu where the ratings are his: the predicted share is then `P(win) + P(tie) / 2`, and the
    surprise uses that model's variance. `counts` must be those of the ratings' models; anything else raises `InvalidRequest`.
    """
    if counts.models != ratings.models:
        raise InvalidRequest("the counts and the ratings have different models.", param="models")
    size = len(counts.models)
    scores = scores_of(counts, ratings.both_bad, None)
    won, votes = np.zeros((size, size)), np.zeros((size, size), dtype=np.int64)
    won[scores.first, scores.second] = scores.score
    won[scores.second, scores.first] = scores.total - scores.score
    votes[scores.first, scores.second] = votes[scores.second, scores.first] = scores.total.astype(np.int64)
    together = (ratings.component[:, None] == ratings.component[None, :]) & (ratings.component >= 0)[:, None]
    np.fill_diagonal(together, False)
    gap = np.where(together, ratings.ratings[:, None] - ratings.ratings[None, :], np.nan)
    root = 10 ** (gap / 800)
    total = root + 1 / root + tie_strength
    predicted = (root + tie_strength / 2) / total
    variance_of_vote = (root + tie_strength / 4) / total - predicted**2
    met = votes > 0
    many = np.where(met, votes, 1)
    surprise = np.where(met, (won - many * predicted) / np.sqrt(many * variance_of_vote), np.nan)
    variance = np.diagonal(ratings.covariance)
    spread = np.sqrt(np.maximum(variance[:, None] + variance[None, :] - 2 * ratings.covariance, 0))
    return WinMatrix(
        models=counts.models,
        votes=votes,
        observed=np.where(met, won / many, np.nan),
        predicted=predicted,
        surprise=surprise,
        standard_error=np.where(together, spread, np.nan),
    )

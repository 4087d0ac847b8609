"""Online Elo: one pass over votes in the order they came, and how much that order decides.

Kept because people ask for it. Its result depends on the order (on a real 25,938-vote file, shuffling moves
ratings with a standard deviation of 12.6 points), which is why the leaderboard uses Bradley-Terry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.outcomes import FILE_LABELS, encode
from tiltyard.rating.votes import Votes

_SCORE = (1.0, 0.0, 0.5, 0.5)  # by outcome code, for the left side


@dataclass(frozen=True)
class EloConstants:
    """`E_a = 1 / (1 + base^((R_b - R_a) / scale))`, then `R_a += k (y - E_a)`; defaults are FastChat's."""

    k: float = 4.0
    base: float = 10.0
    scale: float = 400.0
    initial: float = 1000.0

    def __post_init__(self) -> None:
        for name, value, least in (("k", self.k, 0), ("base", self.base, 1), ("scale", self.scale, 0)):
            if not value > least:
                raise InvalidRequest(f"Elo's {name} is {value}; it must be above {least}.", param=name)


@dataclass(frozen=True, eq=False)
class EloSpread:
    """Elo of the votes as they came, and of the same votes otherwise; arrays follow `models`."""

    models: tuple[str, ...]
    as_they_came: NDArray[np.float64]
    reversed: NDArray[np.float64]
    shuffled_deviation: NDArray[np.float64]
    """Standard deviation over random orders of the same votes."""
    median: NDArray[np.float64]
    """Of resamples with replacement, as FastChat quotes it."""
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    seed: int
    runs: int


def online_elo(
    model_a: Sequence[str],
    model_b: Sequence[str],
    winner: Sequence[str],
    *,
    k: float = 4.0,
    base: float = 10.0,
    scale: float = 400.0,
    initial: float = 1000.0,
) -> dict[str, float]:
    """Rate models vote by vote: `E = 1 / (1 + base^((R_b - R_a) / scale))`, then `R_a += k (y - E)`.

    Ties and both bad score half (A. E. Elo, "The Rating of Chessplayers", 1978; constants as FastChat's).
    Raises `InvalidRequest` for an unknown outcome and for constants out of range.

    >>> online_elo(["x"], ["y"], ["model_a"])
    {'x': 1002.0, 'y': 998.0}
    """
    EloConstants(k, base, scale, initial)  # refuses what means nothing
    ratings: dict[str, float] = {}
    codes: Iterable[int] = encode(winner, FILE_LABELS).tolist()
    for a, b, code in zip(model_a, model_b, codes, strict=True):
        rating_a, rating_b = ratings.setdefault(a, initial), ratings.setdefault(b, initial)
        expected = 1 / (1 + base ** ((rating_b - rating_a) / scale))
        change = k * (_SCORE[code] - expected)
        ratings[a], ratings[b] = rating_a + change, rating_b - change
    return ratings


def elo_spread(
    votes: Votes,
    *,
    seed: int,
    runs: int = 100,
    constants: EloConstants | None = None,
    confidence: float = 0.95,
) -> EloSpread:
    """Rate the votes in their order, backwards, in `runs` random orders and in `runs` resamples.

    NumPy's PCG64 from `seed` draws orders first, then resamples. Holds `4 * runs * votes` bytes of indices
    and takes one step a vote for all runs together. Raises `InvalidRequest` for fewer than two runs.
    """
    if runs < 2:
        raise InvalidRequest(f"runs is {runs}; a spread needs 2 or more.", param="runs")
    constants = constants or EloConstants()
    rng = np.random.Generator(np.random.PCG64(seed))
    size = len(votes)
    forward = np.arange(size, dtype=np.int32)
    both = _run(votes, np.stack([forward, forward[::-1]], axis=1), constants)
    orders = np.stack([rng.permutation(size).astype(np.int32) for _ in range(runs)], axis=1)
    shuffled = _run(votes, orders, constants)
    drawn = _run(votes, rng.integers(0, max(size, 1), (size, runs), dtype=np.int32), constants)
    tail = (1 - confidence) / 2
    lower, median, upper = np.quantile(drawn, [tail, 0.5, 1 - tail], axis=0)
    return EloSpread(
        votes.models, both[0], both[1], shuffled.std(axis=0, ddof=1), median, lower, upper, seed, runs
    )


def _run(votes: Votes, order: NDArray[np.int32], constants: EloConstants) -> NDArray[np.float64]:
    """Rate each column of `order`, shape `(votes, runs)`; returns `(runs, models)`."""
    runs, size = order.shape[1], len(votes.models)
    ratings = np.full(runs * size, constants.initial, dtype=np.float64)
    row = np.arange(runs) * size
    score = np.array(_SCORE)[votes.outcome]
    rate = np.log(constants.base) / constants.scale
    for step in order:
        a, b = row + votes.a[step], row + votes.b[step]
        expected = 1 / (1 + np.exp((ratings[b] - ratings[a]) * rate))
        change = constants.k * (score[step] - expected)
        ratings[a] += change
        ratings[b] -= change
    return ratings.reshape(runs, size)

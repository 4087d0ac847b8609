"""What one vote weighs: each function returns factors of shape `(votes,)`; multiply them and call `to_mean_one`.

Weights say which population of battles the ratings describe; they are no way to repair bad votes. Their price
is precision: `effective_votes` says how many equal votes would know as much.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.admission import MICROSECONDS_PER_DAY
from tiltyard.rating.votes import Votes


def inverse_probability(votes: Votes) -> NDArray[np.float64]:
    """Undo unequal sampling: `w = 1 / P(pair)`, as if all pairs had been served alike.

    Chiang et al., "Chatbot Arena", 2024, equation 7. `P` is the logged probability of the unordered pair when
    it was drawn. Raises `InvalidRequest` when the votes do not carry it.
    """
    if votes.pair_probability is None:
        raise InvalidRequest(
            "these votes do not say with which probability their pair was drawn; give a pair_probability "
            "column, or leave inverse-probability weights out.",
            param="pair_probability",
        )
    return 1 / votes.pair_probability


def pair_balance(votes: Votes, least: int = 50) -> NDArray[np.float64]:
    """Let every pair weigh alike without logged probabilities: `w = 1 / max(n_pair, least)`.

    This is arena-rank's `reweighted`; `least` keeps a pair of few votes from deciding much.
    """
    if least < 1:
        raise InvalidRequest(f"least is {least}; it starts at 1.", param="least")
    size = len(votes.models)
    key = np.minimum(votes.a, votes.b) * size + np.maximum(votes.a, votes.b)
    _, pair, count = np.unique(key, return_inverse=True, return_counts=True)
    return 1 / np.maximum(count[pair], least).astype(np.float64)


def recency(votes: Votes, *, half_life_days: float, now_us: int) -> NDArray[np.float64]:
    """Let old votes fade: `w = 2 ** -(age / half-life)`, age at `now_us`; a vote from later raises.

    >>> day = MICROSECONDS_PER_DAY
    >>> two = Votes.from_columns(["x"] * 2, ["y"] * 2, ["tie"] * 2, time_us=[0, 30 * day])
    >>> recency(two, half_life_days=30, now_us=30 * day).tolist()
    [0.5, 1.0]
    """
    if not half_life_days > 0:
        raise InvalidRequest(
            f"half_life_days is {half_life_days}; it must be above 0.", param="half_life_days"
        )
    age = now_us - votes.need_times()
    if len(age) and age.min() < 0:
        raise InvalidRequest(
            f"{int((age < 0).sum()):,} votes are later than now_us {now_us}; their age would be negative.",
            param="now_us",
        )
    return np.exp2(-age / (half_life_days * MICROSECONDS_PER_DAY))


def voter_cap(votes: Votes, most: int) -> NDArray[np.float64]:
    """Let no voter weigh more than `most` votes: `w = min(1, most / votes of that voter)`."""
    if most < 1:
        raise InvalidRequest(f"the cap of a voter is {most}; it starts at 1.", param="voter_cap")
    voter = votes.need_voters()
    cast = np.bincount(voter)[voter] if len(voter) else np.zeros(0)
    return np.minimum(1.0, most / np.maximum(cast, 1))


def to_mean_one(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale to mean 1, so that half a virtual win still means half a vote."""
    return weights / weights.mean() if len(weights) else weights


def effective_votes(weights: NDArray[np.float64]) -> float:
    """Kish's effective size `(sum w)^2 / sum w^2` (L. Kish, "Survey Sampling", 1965).

    >>> effective_votes(np.array([1.0, 1.0, 0.0]))
    2.0
    """
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0

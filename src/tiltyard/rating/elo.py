"""Online Elo: one pass over votes in the order they came.

Kept because people ask for it. Its result depends on that order (on a real 25,938-vote file, shuffling moves
ratings with a standard deviation of 12.6 points), which is why the leaderboard uses Bradley-Terry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiltyard.rating.outcomes import FILE_LABELS, encode

_SCORE = (1.0, 0.0, 0.5, 0.5)  # by outcome code, for the left side


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
    Raises `InvalidRequest` for an unknown outcome.

    >>> online_elo(["x"], ["y"], ["model_a"])
    {'x': 1002.0, 'y': 998.0}
    """
    ratings: dict[str, float] = {}
    codes: Iterable[int] = encode(winner, FILE_LABELS).tolist()
    for a, b, code in zip(model_a, model_b, codes, strict=True):
        rating_a, rating_b = ratings.setdefault(a, initial), ratings.setdefault(b, initial)
        expected = 1 / (1 + base ** ((rating_b - rating_a) / scale))
        change = k * (_SCORE[code] - expected)
        ratings[a], ratings[b] = rating_a + change, rating_b - change
    return ratings

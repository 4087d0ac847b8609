"""Voters who are known to be honest or not, to measure how often `voter_tests` flags each kind on the pairs of a real board.

Pairs come as often as in the votes given, with sides drawn evenly; an honest outcome is drawn from what those votes
said on its pair.

- `honest`: votes as the board does.
- `random`: clicks left and right twice in five each, tie once in five, whatever it sees.
- `left`: always the left side.
- `contrarian`: the opposite of an honest vote; ties stay.
- `booster`: votes for its model whenever it meets it, else honestly. It meets it in three battles of ten, which it may reach by
  recognising its model's style and leaving other battles without a vote.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tiltyard.rating.counts import PairCounts
from tiltyard.rating.outcomes import BOTH_BAD, TIE, A, B
from tiltyard.rating.voter_tests import OutcomeChances, examine

Kind: TypeAlias = Literal["honest", "random", "left", "contrarian", "booster"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
BOOSTER_MEETS: Final = 0.3
_RANDOM_CLICKS: Final = (0.4, 0.4, 0.2, 0.0)
_SWAPPED: Final = np.array([B, A, TIE, BOTH_BAD])


class FlagRates(NamedTuple):
    """Share of the voters that each test flags."""

    surprise: float
    side: float
    model: float


class SimulatedVotes(NamedTuple):
    """One voter's votes: left model, right model, outcome code and the chances of the outcomes."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    outcomes: NDArray[np.int64]
    chances: NDArray[np.float64]


def flag_rates(
    board: PairCounts,
    kind: Kind,
    *,
    votes: int,
    voters: int,
    alpha: float,
    seed: int,
    boosted: str | None = None,
) -> FlagRates:
    """Return how many of so many simulated voters each test flags at `alpha`."""
    flags = np.zeros(3)
    for one in simulate(board, kind, votes=votes, voters=voters, seed=seed, boosted=boosted):
        found = examine(one.chances, one.a, one.b, one.outcomes)
        flags += np.array([found.surprise, found.side, found.model]) < alpha
    return FlagRates(*(flags / voters).tolist())


def simulate(
    board: PairCounts, kind: Kind, *, votes: int, voters: int, seed: int, boosted: str | None = None
) -> Iterator[SimulatedVotes]:
    """Yield the votes of each voter; `boosted` is the booster's model, the most voted one if left out."""
    rng = np.random.default_rng(seed)
    known = OutcomeChances.from_counts(board)
    often = board.counts.sum(axis=1) / board.votes
    target = board.models.index(boosted) if boosted else int(board.tally.sum(axis=1).argmax())
    with_target = np.where((board.first == target) | (board.second == target), often, 0.0)
    for _ in range(voters):
        pair = rng.choice(len(often), votes, p=often)
        if kind == "booster":
            meets = rng.random(votes) < BOOSTER_MEETS
            pair = np.where(meets, rng.choice(len(often), votes, p=with_target / with_target.sum()), pair)
        swap = rng.random(votes) < 0.5
        a = np.where(swap, board.second[pair], board.first[pair])
        b = np.where(swap, board.first[pair], board.second[pair])
        chances = known.of(a, b)
        outcomes = (rng.random((votes, 1)) > chances.cumsum(axis=1)).sum(axis=1).clip(A, BOTH_BAD)
        match kind:
            case "honest":
                pass
            case "random":
                outcomes = rng.choice(4, votes, p=_RANDOM_CLICKS)
            case "left":
                outcomes = np.full(votes, A)
            case "contrarian":
                outcomes = _SWAPPED[outcomes]
            case "booster":
                outcomes = np.where(a == target, A, np.where(b == target, B, outcomes))
        yield SimulatedVotes(a, b, outcomes, chances)

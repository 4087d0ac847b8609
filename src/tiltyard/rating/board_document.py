"""The document that a leaderboard's digest names, as it is read back out of an event (`Leaderboard.document`)."""

from __future__ import annotations

from pydantic import JsonValue

from tiltyard.identity.manifest import Frozen
from tiltyard.rating.bradley_terry import Unbounded
from tiltyard.rating.counts import BothBad
from tiltyard.rating.leaderboard import Status


class RowNumbers(Frozen):
    """One model's numbers; fields as in `LeaderboardRow`."""

    status: Status
    rank: int | None
    rank_worst: int | None
    rank_by_differences: int | None
    rank_by_differences_worst: int | None
    ranks_simultaneous: tuple[int, int] | None = None
    rating: float | None
    lower: float | None
    upper: float | None
    votes: int
    wins: int
    losses: int
    ties: int
    both_bad: int
    votes_needed: int
    notes: tuple[str, ...]


class BoardDocument(Frozen):
    """A whole leaderboard; fields as in `Leaderboard`, `Ratings` and `Evidence`."""

    format: str
    method: str
    ruleset: str
    window: str
    first_sequence: int
    last_sequence: int
    excluded: dict[str, int]
    both_bad: BothBad
    confidence: float
    anchor: tuple[str, float] | None
    minimum_votes: int
    votes: int
    counts_digest: str
    data_digest: str
    question: dict[str, JsonValue]
    converged: bool
    components: tuple[tuple[int, ...], ...]
    unbounded: dict[str, Unbounded]
    model_based: tuple[str, ...]
    details: dict[str, JsonValue]
    models: tuple[str, ...]
    rows: tuple[RowNumbers, ...]
    """One for each of `models`, in its order."""
    pairs: tuple[tuple[int, int, int, int, int, int], ...]
    """`[i, j, wins of i, wins of j, ties, both bad]`."""

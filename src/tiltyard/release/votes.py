"""The votes between two identities that count, read as the leaderboard reads them: by the ruleset in force and people's reviews."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from tiltyard.arena.recorded_votes import RecordedVotes

CHEAP_S: Final = 0.1
REST: Final = 20
"""Judging a long log takes a second: what was dear rests so many times as long, and takes a twentieth of the time at most."""
_SCORE: Final = {"a": 1.0, "b": -1.0}


class Counted(NamedTuple):
    """Votes on one pair of behaviours, oldest first."""

    scores: tuple[float, ...]
    """1 for the candidate, -1 for the other, 0 for a tie or two bad answers."""
    left_out: int
    """Votes on the same pair that were taken back or do not count."""


class CountedVotes:
    """The votes on a pair since a place in the log; each reading is a new one, since votes stop counting later, too."""

    def __init__(
        self,
        recorded: RecordedVotes,
        candidate: str,
        other: str,
        *,
        after: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recorded = recorded
        self._candidate, self._pair = candidate, {candidate, other}
        self._after = after
        self._clock_s = clock_s
        self._rests_until_s = float("-inf")
        self._read = Counted((), 0)

    def read(self) -> Counted:
        """Read them now, or return the last reading while a dear one rests. Blocks."""
        began_s = self._clock_s()
        if began_s < self._rests_until_s:
            return self._read
        votes = self._recorded.votes()
        reasons = self._recorded.judged(votes).reasons
        scores: list[float] = []
        left_out = 0
        for vote in votes:
            if vote.sequence <= self._after or {vote.behaviour_a, vote.behaviour_b} != self._pair:
                continue
            if vote.sequence in reasons:
                left_out += 1
                continue
            score = _SCORE.get(vote.choice, 0.0)
            scores.append(score if vote.behaviour_a == self._candidate else -score)
        self._read = Counted(tuple(scores), left_out)
        took_s = self._clock_s() - began_s
        self._rests_until_s = began_s + took_s * (1 + REST) if took_s > CHEAP_S else float("-inf")
        return self._read

"""The votes between two identities that count: by the rules that the log adopted last, and people's reviews."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from pydantic import ValidationError

from tiltyard.arena.adoption import last_adopted
from tiltyard.arena.recorded_votes import RecordedVoteRow, RecordedVotes
from tiltyard.rating.ruleset import Ruleset

CHEAP_S: Final = 0.1
REST: Final = 20
"""Judging a long log takes a second: what was dear rests so many times as long, and takes a twentieth of the time at most."""
_SCORE: Final = {"a": 1.0, "b": -1.0}


class CountedVote(NamedTuple):
    """A vote on the pair."""

    score: float
    """1 for the candidate, -1 for the other, 0 for a tie or two bad answers."""
    row: RecordedVoteRow
    """How it came about."""
    counts: bool
    """Whether it counts: it was not taken back, and rules and reviews let it in."""


class Counted(NamedTuple):
    """Votes on one pair of behaviours, oldest first."""

    votes: tuple[CountedVote, ...]
    unknown: str = ""
    """Why nobody can say which count; empty: it is known."""


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
        """The rules of `recorded` hold only as long as the log has adopted none: those are everybody's, whoever reads."""
        self._recorded = recorded
        self._adopted = recorded
        self._candidate, self._pair = candidate, {candidate, other}
        self._after = after
        self._clock_s = clock_s
        self._rests_until_s = float("-inf")
        self._read = Counted(())

    def read(self) -> Counted:
        """Read them now, or return the last reading while a dear one rests. Blocks."""
        began_s = self._clock_s()
        if began_s < self._rests_until_s:
            return self._read
        self._read = self._reading()
        took_s = self._clock_s() - began_s
        self._rests_until_s = began_s + took_s * (1 + REST) if took_s > CHEAP_S else float("-inf")
        return self._read

    def _reading(self) -> Counted:
        recorded = self._under_the_rules_in_force()
        if recorded is None:
            return Counted((), "the rules that were adopted last are of another version of tiltyard")
        votes = recorded.votes()
        reasons = recorded.judged(votes).reasons
        return Counted(
            tuple(
                CountedVote(self._score(vote), vote, vote.sequence not in reasons)
                for vote in votes
                if vote.sequence > self._after and {vote.behaviour_a, vote.behaviour_b} == self._pair
            )
        )

    def _under_the_rules_in_force(self) -> RecordedVotes | None:
        """`None`: this version cannot read them."""
        adopted = last_adopted(self._recorded.log)
        if adopted is None or adopted.digest == self._recorded.ruleset.digest:
            return self._recorded
        if adopted.digest != self._adopted.ruleset.digest:
            try:
                rules = Ruleset.model_validate(adopted.rules)
            except ValidationError:
                return None
            if (
                rules.digest != adopted.digest
            ):  # a rule that this version does not know has another default here
                return None
            self._adopted = RecordedVotes(self._recorded.log, rules)
        return self._adopted

    def _score(self, vote: RecordedVoteRow) -> float:
        score = _SCORE.get(vote.choice, 0.0)
        return score if vote.behaviour_a == self._candidate else -score

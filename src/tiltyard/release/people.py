"""What people said of the two identities of a release: the votes that count, by the rules that the leaderboard goes by.

Rules come from the log's newest `RulesetAdopted`, so that every reconciler reads the same ones. A vote that is taken back, reviewed
away or caught by a rule later leaves the evidence again.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import ValidationError

from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.events.log import EventLog
from tiltyard.events.schema import EventData, RulesetAdopted, VoteCast, VoteReviewed, VoteWithdrawn
from tiltyard.rating.ruleset import Ruleset

OF_PEOPLE = (VoteCast, VoteWithdrawn, VoteReviewed, RulesetAdopted)
"""What may change which votes count."""

_SCORE = {"a": 1.0, "b": -1.0}


class Counted(NamedTuple):
    """The votes between two identities at one moment."""

    scores: tuple[float, ...]
    """1 where the candidate won, -1 where it lost, 0 for ties, in the order of the log."""
    left_out: int
    """Votes between the two that do not count."""
    unreadable: bool
    """Whether the rules in force are of a version that cannot be applied here: then nothing counts."""


class PeoplesVotes:
    """The votes between two behaviours after a place in the log."""

    def __init__(self, log: EventLog, candidate: str, production: str, *, began: int) -> None:
        """Votes up to sequence `began` do not count, but voters are tested on all that they did."""
        self._recorded = RecordedVotes(log, Ruleset())
        self._candidate = candidate
        self._pair = frozenset({candidate, production})
        self._began = began
        self._changed = True

    def note(self, data: EventData) -> None:
        """Hear of an event; `recount` is due after one that may change something."""
        if isinstance(data, VoteCast):
            self._changed |= {data.behaviour_a, data.behaviour_b} == self._pair
        else:
            self._changed |= isinstance(data, OF_PEOPLE)

    def recount(self) -> Counted | None:
        """Count again; `None` where nothing may have changed. Blocks."""
        if not self._changed:
            return None
        rules = self._rules()
        votes = self._recorded.votes()
        own = [
            vote
            for vote in votes
            if vote.sequence > self._began and {vote.behaviour_a, vote.behaviour_b} == self._pair
        ]
        self._changed = False
        if rules is None:
            return Counted((), len(own), True)
        judged = self._recorded.judged(votes, rules)
        counted = [vote for vote in own if vote.sequence not in judged.reasons]
        scores = tuple(
            _SCORE.get(vote.choice, 0.0) * (1 if vote.behaviour_a == self._candidate else -1)
            for vote in counted
        )
        return Counted(scores, len(own) - len(counted), False)

    def _rules(self) -> Ruleset | None:
        newest = self._recorded.log.read(types=(RulesetAdopted,), newest_first=True, limit=1)
        adopted = next((event.data for event in newest if isinstance(event.data, RulesetAdopted)), None)
        if adopted is None:
            return Ruleset()
        try:
            return Ruleset.model_validate(adopted.rules)
        except ValidationError:
            return None

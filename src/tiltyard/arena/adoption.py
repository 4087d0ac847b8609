"""A change of ruleset is an event: the rules, why, and by how much each rating moved on the day it came."""

from __future__ import annotations

from pydantic import ValidationError

from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.events.log import EventLog
from tiltyard.events.schema import RatingMoved, RulesetAdopted
from tiltyard.rating.admission import Admitted, Window, admit
from tiltyard.rating.leaderboard import Evidence, Leaderboard, make_leaderboard
from tiltyard.rating.movement import movement
from tiltyard.rating.rated_models import rated_models
from tiltyard.rating.ruleset import Ruleset


def adoption(recorded: RecordedVotes, *, minimum_votes: int, now_us: int) -> RulesetAdopted | None:
    """Make the event of the ruleset in force, or return `None` when the log's latest adoption is of the same rules.

    Movements are of the board of all time, from the rules adopted before; from every vote, when there were none.
    """
    ruleset = recorded.ruleset
    last = last_adopted(recorded.log)
    if last is not None and last.digest == ruleset.digest:
        return None
    before = board_of(recorded, _admitted_before(recorded, last, now_us), minimum_votes)
    after = board_of(recorded, recorded.admit(Window(), now_us), minimum_votes)
    return RulesetAdopted(
        ruleset=ruleset.label,
        digest=ruleset.digest,
        rules=ruleset.model_dump(mode="json"),
        why=ruleset.why,
        previous=None if last is None else last.ruleset,
        votes_before=before.votes,
        votes_after=after.votes,
        moved=tuple(
            RatingMoved(behaviour=one.model, before=one.rating_before, after=one.rating_after)
            for one in movement(before, after)
            if one.rating_before != one.rating_after
        ),
    )


def last_adopted(log: EventLog) -> RulesetAdopted | None:
    """The rules that the log adopted last; `None`: none ever were. Blocks."""
    newest = log.read(types=(RulesetAdopted,), newest_first=True, limit=1)
    return next((event.data for event in newest if isinstance(event.data, RulesetAdopted)), None)


def board_of(recorded: RecordedVotes, admitted: Admitted, minimum_votes: int) -> Leaderboard:
    """Compute the leaderboard that admitted votes give."""
    evidence = Evidence(
        ruleset=admitted.ruleset,
        first_sequence=admitted.first_sequence,
        last_sequence=admitted.last_sequence,
        excluded=admitted.excluded,
    )
    return make_leaderboard(
        admitted.counts,
        models=rated_models(recorded.log.identities()),
        evidence=evidence,
        minimum_votes=minimum_votes,
    )


def _admitted_before(recorded: RecordedVotes, last: RulesetAdopted | None, now_us: int) -> Admitted:
    if last is not None:
        try:
            return recorded.admit(Window(), now_us, Ruleset.model_validate(last.rules))
        except ValidationError:
            # Rules of another version of tiltyard, which this one cannot apply: compare with every vote.
            return admit(recorded.votes(), window=Window(), now_us=now_us)
    return admit(recorded.votes(), window=Window(), now_us=now_us)

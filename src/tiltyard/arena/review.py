"""The review queue: suspected voters and votes, each for somebody to look at and decide; a decision is an event."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from tiltyard.arena.recorded_votes import RecordedVoteRow, RecordedVotes, in_force
from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.schema import VoteReviewed
from tiltyard.identity.canonical import Json
from tiltyard.rating.reviews import Decision
from tiltyard.rating.ruleset import Reason

Verdict: TypeAlias = Literal["keep", "exclude", "withdraw"]
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)
SOURCE: Final = "tiltyard/arena"

ABOUT_VOTERS: Final[tuple[Reason, ...]] = ("voter_surprise", "voter_side", "voter_model")
ABOUT_VOTES: Final[tuple[Reason, ...]] = (
    "identity_leak",
    "too_fast",
    "beyond_voter_day",
    "beyond_network_day",
    "duplicate_prompt",
)
NEAR: Final = 10.0
"""A voter whose smallest p-value is within so many times the ruleset's alpha is worth a look, though his votes count."""


@dataclass(frozen=True)
class Case:
    """One voter, or one vote, to look at."""

    of: Literal["vote", "voter"]
    name: str
    """Battle id, or voter id."""
    reason: str
    """Why it is here: a reason of the ruleset, `near_the_line`, or `decided` where no rule speaks of it any more."""
    votes: int
    """How many votes it is about."""
    battles: tuple[str, ...]
    """The newest of them, to look at with `tiltyard events show`."""
    p: float | None
    """Smallest p-value of the tests of a voter."""
    counts: bool
    """Whether its votes count now."""
    decided: Decision | None
    why: str
    """What was said with the decision."""
    by: str

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "of": self.of,
            "name": self.name,
            "reason": self.reason,
            "votes": self.votes,
            "battles": list(self.battles),
            "p": self.p,
            "counts": self.counts,
            "decided": self.decided,
            "why": self.why,
            "by": self.by,
        }


def cases(recorded: RecordedVotes, *, waiting_only: bool = False) -> list[Case]:
    """Return every case: voters by p-value, then votes, the newest first; those without a decision come first.

    Voters are suspected without regard to what was decided about them, so that a decision can be looked at again.
    """
    rows = recorded.votes()
    judged = recorded.judge()
    said = {(review.of, review.name): review for _, review in recorded.reviews()}
    ruled = recorded.judged_by_rules_alone()
    by_voter: defaultdict[str, list[RecordedVoteRow]] = defaultdict(list)
    for row in rows:
        by_voter[row.voter].append(row)

    def case(of: Literal["vote", "voter"], name: str, reason: str, own: Sequence[RecordedVoteRow]) -> Case:
        review = said.get((of, name))
        held = review is not None and review.decision != "withdraw"
        found = ruled.findings.get(name) if of == "voter" else None
        return Case(
            of=of,
            name=name,
            reason=reason,
            votes=len(own),
            battles=tuple(row.battle for row in reversed(own[-5:])),
            p=None if found is None else found.least,
            counts=any(row.sequence not in judged.reasons for row in own),
            decided=None if review is None or review.decision == "withdraw" else review.decision,
            why=review.reason if review is not None and held else "",
            by=review.by if review is not None and held else "",
        )

    found: list[Case] = []
    alpha = recorded.ruleset.voter_alpha
    for voter, own in by_voter.items():
        reasons = Counter(
            reason for row in own if (reason := ruled.reasons.get(row.sequence)) in ABOUT_VOTERS
        )
        tested = ruled.findings.get(voter)
        if reasons:
            found.append(case("voter", voter, reasons.most_common(1)[0][0], own))
        elif tested is not None and tested.least < NEAR * alpha:
            found.append(case("voter", voter, "near_the_line", own))
        elif _holds(said.get(("voter", voter))):
            found.append(case("voter", voter, "decided", own))
    for row in reversed(rows):
        reason = ruled.reasons.get(row.sequence)
        if reason in ABOUT_VOTES:
            found.append(case("vote", row.battle, reason, [row]))
        elif _holds(said.get(("vote", row.battle))):
            found.append(case("vote", row.battle, "decided", [row]))
    if waiting_only:
        found = [one for one in found if one.decided is None]
    # a stable sort: the newest votes stay first
    found.sort(
        key=lambda one: (one.decided is not None, one.of == "vote", one.p if one.p is not None else 1.0)
    )
    return found


def decision(recorded: RecordedVotes, name: str, verdict: str, *, reason: str, by: str) -> VoteReviewed:
    """Make the event of a decision about a voter (`voter…`) or a vote (`bat_…`).

    Raises `InvalidRequest` for an unknown verdict or a missing reason or name, `NotFound` when nobody of that name voted, or
    nothing was decided that could be withdrawn.
    """
    if verdict not in VERDICTS:
        raise InvalidRequest(
            f"decision is {verdict[:40]!r}; it must be one of {', '.join(VERDICTS)}.", param="decision"
        )
    for field, text in (("reason", reason), ("by", by)):
        if not 1 <= len(text.strip()) <= 2000 or re.search(r"[\x00-\x1f]", text):
            raise InvalidRequest(
                f"{field} has {len(text):,} characters; say in 1 to 2,000, on one line, "
                f"{'why' if field == 'reason' else 'who decides'}.",
                param=field,
            )
    rows = recorded.votes()
    of: Literal["vote", "voter"]
    if any(row.battle == name for row in rows):
        of = "vote"
    elif any(row.voter == name for row in rows):
        of = "voter"
    else:
        raise NotFound(
            f"no vote of the log has the battle or the voter {name[:80]!r}; `tiltyard rules queue` lists both.",
            param="name",
        )
    force = in_force(recorded.reviews())
    if verdict == "withdraw" and name not in (force.votes if of == "vote" else force.voters):
        raise NotFound(f"nothing was decided about {name}; there is nothing to withdraw.", param="name")
    chosen = next(one for one in VERDICTS if one == verdict)
    return VoteReviewed(of=of, name=name, decision=chosen, reason=reason.strip(), by=by.strip())


def _holds(review: VoteReviewed | None) -> bool:
    return review is not None and review.decision != "withdraw"

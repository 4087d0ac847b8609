"""The votes of a log with how each came about, as rulesets judge them; follows the log from where it last stood."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from sys import intern
from threading import Lock
from typing import Final, NamedTuple

from tiltyard.events.log import EventLog
from tiltyard.events.queries import VoteRow
from tiltyard.events.schema import (
    BattleOpened,
    IdentityRegistered,
    SubjectErased,
    VoteCast,
    VoteReviewed,
    VoteWithdrawn,
)
from tiltyard.rating.admission import Admitted, Window
from tiltyard.rating.category import OTHER
from tiltyard.rating.language import UNDECIDED
from tiltyard.rating.reviews import Decision, Reviews
from tiltyard.rating.ruleset import Judged, Ruleset, admit_judged, admit_under, judge

_KEPT: Final = (BattleOpened, VoteCast, VoteWithdrawn, VoteReviewed, IdentityRegistered, SubjectErased)


@dataclass(frozen=True, slots=True)
class RecordedVoteRow(VoteRow):
    """One vote, and what its battle's events say about it."""

    network: str
    prompt_digest: str
    leaked: bool
    withdrawn: bool
    seconds: float | None
    """From the opening of the battle to the vote; `None` when no opening is in the log."""
    language: str
    """Of the first message; `und` where nobody could or did tell."""
    category: str
    """Kind of the first message; `other` where nobody told."""
    generations_a: tuple[str, ...]
    """Generations of side a that the voter saw last, a turn each."""
    generations_b: tuple[str, ...]


class Reading(NamedTuple):
    """What boards are made of, in the order of the log."""

    votes: list[RecordedVoteRow]
    identities: list[tuple[int, IdentityRegistered]]
    """With the log position of each registration."""
    erasures: int
    """How many people's words were erased."""
    position: int
    """Of the last event among them, or of a battle's opening."""


@dataclass(frozen=True, slots=True)
class _Opening:
    time_us: int
    network: str
    prompt_digest: str
    language: str
    category: str


class RecordedVotes:
    """All votes of one log, read once. `admit` and `judge` may be called from several threads; they block."""

    def __init__(self, log: EventLog, ruleset: Ruleset) -> None:
        self.ruleset = ruleset
        self.log = log
        self._votes: dict[str, RecordedVoteRow] = {}
        """By battle, oldest first."""
        self._withdrawn: dict[str, int] = {}
        """Log position of each withdrawal, by battle."""
        self._identities: list[tuple[int, IdentityRegistered]] = []
        self._openings: dict[str, _Opening] = {}
        """Of battles without a vote yet."""
        self._reviews: list[tuple[int, VoteReviewed]] = []
        self._erasures = 0
        self._sequence = 0
        self._one_reader = Lock()
        self._judged: tuple[tuple[int, int, int], Judged] | None = None
        """How many votes, withdrawals and reviews were judged last, and the judgement."""
        self._one_judge = Lock()

    def votes(self, *, read_to: int | None = None) -> list[RecordedVoteRow]:
        """Return every vote so far, or up to a log position, whether it counts or not, oldest first."""
        votes = self.read().votes
        if read_to is None:
            return votes
        known = votes[: bisect_right(votes, read_to, key=lambda vote: vote.sequence)]
        return [self._as_of(vote, read_to) for vote in known]

    def _as_of(self, vote: RecordedVoteRow, read_to: int) -> RecordedVoteRow:
        """The vote as the log had it then: one that was taken back later still stood."""
        later = vote.withdrawn and self._withdrawn[vote.battle] > read_to
        return replace(vote, withdrawn=False) if later else vote

    def read(self) -> Reading:
        """Follow the log to its end; return all that boards are made of, and the log position of the last of it."""
        with self._one_reader:
            for event in self.log.read(after=self._sequence, types=_KEPT):
                self._sequence = event.sequence
                match event.data:
                    case IdentityRegistered() as registered:
                        self._identities.append((event.sequence, registered))
                    case VoteReviewed() as reviewed:
                        self._reviews.append((event.sequence, reviewed))
                    case SubjectErased():
                        self._erasures += 1
                    case BattleOpened() as opened:
                        self._openings[opened.battle] = _Opening(
                            event.time_us,
                            intern(opened.network),
                            opened.prompt_digest,
                            intern(opened.language),
                            intern(opened.category),
                        )
                    case VoteCast() as vote:
                        opening = self._openings.pop(vote.battle, None)
                        self._votes[vote.battle] = _row(
                            vote, opening, event.sequence, event.time_us, event.tenant
                        )
                    case VoteWithdrawn() as taken_back if taken_back.battle in self._votes:
                        row = self._votes[taken_back.battle]
                        self._votes[taken_back.battle] = replace(row, withdrawn=True)
                        self._withdrawn[taken_back.battle] = event.sequence
                    case _:
                        pass  # a later version of either, which this one cannot read
            return Reading(list(self._votes.values()), list(self._identities), self._erasures, self._sequence)

    def reviews(self, *, read_to: int | None = None) -> list[tuple[int, VoteReviewed]]:
        """Return every review so far, or up to a log position, with its place in the log."""
        self.read()
        with self._one_reader:
            return [
                (place, reviewed) for place, reviewed in self._reviews if read_to is None or place <= read_to
            ]

    def judged(
        self,
        votes: list[RecordedVoteRow],
        ruleset: Ruleset | None = None,
        *,
        read_to: int | None = None,
    ) -> Judged:
        """Say which of the votes count, under the ruleset in force or another; the first `len(votes)` of the log.

        Reviews up to `read_to` are heeded, or all.
        """
        reviews = self.reviews(read_to=read_to)
        if ruleset is None or ruleset == self.ruleset:
            return self._judge(votes, reviews)
        return judge(votes, ruleset, in_force(reviews))

    def admit(self, window: Window, now_us: int, ruleset: Ruleset | None = None) -> Admitted:
        """Add up the votes that count under the ruleset in force, or under another."""
        votes, reviews = self.votes(), self.reviews()
        if (ruleset is None or ruleset == self.ruleset) and all(vote.time_us < now_us for vote in votes):
            return admit_judged(self._judge(votes, reviews), votes, window=window, now_us=now_us)
        return admit_under(
            ruleset or self.ruleset, votes, window=window, now_us=now_us, reviews=in_force(reviews)
        )

    def judge(self) -> Judged:
        """Say which votes count, and why the others do not."""
        return self._judge(self.votes(), self.reviews())

    def judged_by_rules_alone(self) -> Judged:
        """Say what the ruleset in force alone would say, had nobody decided anything; not kept."""
        votes, reviews = self.votes(), self.reviews()
        return judge(votes, self.ruleset) if reviews else self._judge(votes, reviews)

    def _judge(self, votes: list[RecordedVoteRow], reviews: list[tuple[int, VoteReviewed]]) -> Judged:
        """Judge once for each number of votes, withdrawals and reviews: the log only grows."""
        size = len(votes), sum(vote.withdrawn for vote in votes), len(reviews)
        with self._one_judge:
            if self._judged is None or self._judged[0] != size:
                self._judged = size, judge(votes, self.ruleset, in_force(reviews))
            return self._judged[1]


def in_force(reviews: Iterable[tuple[int, VoteReviewed]]) -> Reviews:
    """Take the newest decision about each vote and voter; one that was withdrawn is none."""
    votes: dict[str, Decision] = {}
    voters: dict[str, Decision] = {}
    for _, review in reviews:
        of = votes if review.of == "vote" else voters
        if review.decision == "withdraw":
            of.pop(review.name, None)
        else:
            of[review.name] = review.decision
    return Reviews(votes, voters)


def _row(
    vote: VoteCast, opening: _Opening | None, sequence: int, time_us: int, tenant: str
) -> RecordedVoteRow:
    return RecordedVoteRow(
        sequence=sequence,
        time_us=time_us,
        # Parsed, each vote would have texts of its own; most are the same few in all.
        tenant=intern(tenant),
        battle=vote.battle,
        voter=intern(vote.voter),
        choice=vote.choice,
        identity_a=intern(vote.identity_a),
        identity_b=intern(vote.identity_b),
        behaviour_a=intern(vote.behaviour_a),
        behaviour_b=intern(vote.behaviour_b),
        pair_probability=vote.pair_probability,
        side_probability=vote.side_probability,
        turns=vote.turns,
        network="" if opening is None else opening.network,
        prompt_digest="" if opening is None else opening.prompt_digest,
        leaked=bool(vote.leaks),
        withdrawn=False,
        seconds=None if opening is None else (time_us - opening.time_us) / 1e6,
        language=(opening.language if opening is not None else "") or UNDECIDED,
        category=(opening.category if opening is not None else "") or OTHER,
        generations_a=vote.generations_a,
        generations_b=vote.generations_b,
    )

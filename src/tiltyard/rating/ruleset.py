"""Rulesets: data with a version that says which votes count, and why each of the others does not.

A ruleset is named `<name>/<version>@<digest>`, the digest being that of its canonical JSON, so a changed rule cannot keep an
old name. The rules are applied in the order of `Reason`; the first that a vote breaks is its reason. The tests of
voters come last and see only what the other rules left.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, Literal, Protocol, TypeAlias, get_args

import numpy as np
from pydantic import Field

from tiltyard.identity.canonical import Digest, digest_of_json
from tiltyard.identity.manifest import Frozen, Number, Whole
from tiltyard.rating.admission import MICROSECONDS_PER_DAY, Admitted, VoteLike, Window, admit
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.outcomes import EVENT_LABELS, encode
from tiltyard.rating.reviews import Reviews
from tiltyard.rating.voter_tests import Findings, OutcomeChances, examine

Reason: TypeAlias = Literal[
    "withdrawn",
    "same_behaviour_on_both_sides",
    "excluded_by_review",
    "identity_leak",
    "too_fast",
    "beyond_voter_day",
    "beyond_network_day",
    "duplicate_prompt",
    "voter_surprise",
    "voter_side",
    "voter_model",
]
"""Why a vote does not count; in the order in which the rules are applied."""
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)


class Ruleset(Frozen):
    """Which votes count. Each rule can be turned off; the defaults are `standard/1`."""

    name: str = Field(default="standard", pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    version: Whole = Field(default=1, ge=1)
    why: str = Field(default="", max_length=2000)
    """What a reader should know about the change; names and digests leave it out."""
    exclude_leaks: bool = True
    """Leave out a vote on an answer that named its maker or itself."""
    least_seconds: Number = Field(default=1.0, ge=0)
    """From the opening of the battle to the vote: who is faster cannot have read two answers."""
    votes_per_voter_day: Whole = Field(default=200, ge=0)
    """Of one voter in one day of UTC; later ones are left out. 0: no limit."""
    votes_per_network_day: Whole = Field(default=1000, ge=0)
    """Of one network key, which lives for a day. 0: no limit."""
    prompt_quantile: Number = Field(default=0.999, gt=0, le=1)
    """A first message that came more often than this quantile of all messages' frequencies is thinned out to it."""
    prompt_repeats: Whole = Field(default=25, ge=0)
    """But never below so many. 0: no thinning."""
    voter_alpha: Number = Field(default=0.001, ge=0, lt=1)
    """A voter with a smaller p-value in a test is left out. 0: no tests."""
    voter_votes: Whole = Field(default=20, ge=5)
    """Votes before a voter is tested."""

    @property
    def digest(self) -> Digest:
        """Names the content."""
        return digest_of_json(self.model_dump(mode="json", exclude={"why"}))

    @property
    def label(self) -> str:
        """`standard/1@` and 12 digits of the digest; part of a leaderboard's method."""
        return f"{self.name}/{self.version}@{self.digest.removeprefix('sha256:')[:12]}"


class RecordedVote(VoteLike, Protocol):
    """A vote with what the log knows of how it came about."""

    @property
    def battle(self) -> str:
        """Battle id."""

    @property
    def voter(self) -> str:
        """Pseudonymous voter id."""

    @property
    def network(self) -> str:
        """Network key of the day; empty where none was taken."""

    @property
    def prompt_digest(self) -> str:
        """Keyed digest of the first message; empty where none was taken."""

    @property
    def leaked(self) -> bool:
        """Whether an answer named its maker or itself."""

    @property
    def withdrawn(self) -> bool:
        """Whether the voter took it back."""

    @property
    def seconds(self) -> float | None:
        """From the opening of the battle to the vote."""


@dataclass(frozen=True, eq=False)
class Judged:
    """Each vote's reason, and what the tests found of each voter whom they looked at."""

    ruleset: Ruleset
    reasons: Mapping[int, Reason]
    """By the vote's sequence; votes that count are not in it."""
    findings: Mapping[str, Findings]
    """By voter, also of those who passed."""
    models: tuple[str, ...]
    """What `Findings.worst_model` counts in."""


NO_REVIEWS: Final = Reviews()


def judge(votes: Sequence[RecordedVote], ruleset: Ruleset, reviews: Reviews = NO_REVIEWS) -> Judged:
    """Say which of the votes count; the same votes, rules and reviews give the same answer, in whatever order they come.

    Who decided to keep a vote, or a voter's votes, is believed before any rule but the first: a battle of a model against itself
    compares nothing. Such votes are still evidence in the tests of voters.

    Raises `InvalidRequest` when a vote says something that is no outcome.
    """
    reasons: dict[int, Reason] = {}
    left = sorted(votes, key=lambda vote: vote.sequence)
    decided = {vote.sequence: reviews.of(vote.battle, vote.voter) for vote in left}

    def leave_out(
        reason: Reason, broken: Iterable[RecordedVote], *, whatever_was_decided: bool = False
    ) -> None:
        nonlocal left
        found = {vote.sequence for vote in broken if whatever_was_decided or decided[vote.sequence] != "keep"}
        reasons.update(dict.fromkeys(found, reason))
        left = [vote for vote in left if vote.sequence not in found]

    # under any rules: it is no vote any more
    leave_out("withdrawn", [v for v in left if v.withdrawn], whatever_was_decided=True)
    leave_out(
        "same_behaviour_on_both_sides",
        [v for v in left if v.behaviour_a == v.behaviour_b],
        whatever_was_decided=True,
    )
    leave_out("excluded_by_review", [v for v in left if decided[v.sequence] == "exclude"])
    if ruleset.exclude_leaks:
        leave_out("identity_leak", [v for v in left if v.leaked])
    leave_out("too_fast", [v for v in left if v.seconds is not None and v.seconds < ruleset.least_seconds])
    if ruleset.votes_per_voter_day:
        leave_out("beyond_voter_day", _beyond(((v.voter, v) for v in left), ruleset.votes_per_voter_day))
    if ruleset.votes_per_network_day:
        leave_out(
            "beyond_network_day",
            _beyond(((v.network, v) for v in left if v.network), ruleset.votes_per_network_day),
        )
    if ruleset.prompt_repeats:
        leave_out("duplicate_prompt", _repeats(left, ruleset))
    models, findings = _examine_voters(left, ruleset)
    flagged = {voter: _flag(found, ruleset.voter_alpha) for voter, found in findings.items()}
    for reason in ("voter_surprise", "voter_side", "voter_model"):
        leave_out(reason, [v for v in left if flagged.get(v.voter) == reason])
    return Judged(ruleset, reasons, findings, models)


def admit_under(
    ruleset: Ruleset,
    votes: Sequence[RecordedVote],
    *,
    window: Window,
    now_us: int,
    reviews: Reviews = NO_REVIEWS,
) -> Admitted:
    """Add up the votes that count under a ruleset and lie in the window; all votes before `now_us` are judged.

    A voter is tested on all that he did, so that a short window does not make him innocent.
    """
    known = [vote for vote in votes if vote.time_us < now_us]
    return admit_judged(judge(known, ruleset, reviews), known, window=window, now_us=now_us)


def admit_judged(judged: Judged, votes: Sequence[RecordedVote], *, window: Window, now_us: int) -> Admitted:
    """Do as `admit_under` does, with votes before `now_us` that were judged already."""
    counted = [vote for vote in votes if vote.sequence not in judged.reasons]
    excluded = Counter(
        reason
        for vote in votes
        if (reason := judged.reasons.get(vote.sequence)) and window.holds(vote.time_us, now_us)
    )
    return replace(
        admit(counted, window=window, now_us=now_us),
        excluded={reason: excluded[reason] for reason in REASONS if excluded[reason]},
        ruleset=judged.ruleset.label,
    )


def _beyond(votes: Iterable[tuple[str, RecordedVote]], limit: int) -> list[RecordedVote]:
    seen: Counter[tuple[str, int]] = Counter()
    beyond = []
    for key, vote in votes:
        day = key, vote.time_us // MICROSECONDS_PER_DAY
        seen[day] += 1
        if seen[day] > limit:
            beyond.append(vote)
    return beyond


def _repeats(votes: Sequence[RecordedVote], ruleset: Ruleset) -> list[RecordedVote]:
    """Choose the votes by which frequent prompts are thinned: by a digest of the battle, so that nobody can aim."""
    by_prompt: defaultdict[str, list[RecordedVote]] = defaultdict(list)
    for vote in votes:
        if vote.prompt_digest:
            by_prompt[vote.prompt_digest].append(vote)
    if not by_prompt:
        return []
    sizes = [len(same) for same in by_prompt.values()]
    kept = max(ruleset.prompt_repeats, int(np.quantile(sizes, ruleset.prompt_quantile, method="lower")))
    repeats = []
    for same in by_prompt.values():
        same.sort(key=lambda vote: sha256(vote.battle.encode()).digest())
        repeats += same[kept:]
    return repeats


def _examine_voters(
    votes: Sequence[RecordedVote], ruleset: Ruleset
) -> tuple[tuple[str, ...], dict[str, Findings]]:
    by_voter: defaultdict[str, list[RecordedVote]] = defaultdict(list)
    for vote in votes:
        by_voter[vote.voter].append(vote)
    tested = {voter: own for voter, own in by_voter.items() if len(own) >= ruleset.voter_votes}
    if not ruleset.voter_alpha or not tested:
        return (), {}
    counts = PairCounts.from_votes(
        [vote.behaviour_a for vote in votes],
        [vote.behaviour_b for vote in votes],
        [vote.choice for vote in votes],
        vocabulary=EVENT_LABELS,
    )
    everybody = OutcomeChances.from_counts(counts)
    place = {model: number for number, model in enumerate(counts.models)}
    findings = {}
    for voter, own in tested.items():
        a = np.array([place[vote.behaviour_a] for vote in own])
        b = np.array([place[vote.behaviour_b] for vote in own])
        outcomes = encode([vote.choice for vote in own], EVENT_LABELS).astype(np.int64)
        others = everybody.without(a, b, outcomes)
        findings[voter] = examine(others.of(a, b), a, b, outcomes, others=others.votes(a, b))
    return counts.models, findings


def _flag(found: Findings, alpha: float) -> Reason | None:
    """Name the test that a voter fails most clearly."""
    tests: tuple[tuple[float, Reason], ...] = (
        (found.side, "voter_side"),
        (found.model, "voter_model"),
        (found.surprise, "voter_surprise"),
    )
    p, reason = min(tests, key=lambda test: test[0])
    return reason if p < alpha else None

"""What happens in the arena, and to its votes."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from tiltyard.events.schema.consenting import DataPolicy
from tiltyard.events.schema.record import Choice, ContentRef, EventData, FinishReason, Side
from tiltyard.identity.canonical import Digest
from tiltyard.identity.manifest import Frozen

Pace = Literal["as_written", "equal"]
"""Whether a voter sees each side as fast as it writes, or both at the pace of the slower."""


WithdrawalReason = Literal["slip", "misread", "other"]
"""Why a voter took a vote back: a wrong key or button, an answer read wrongly, or something else."""


class Contestant(Frozen):
    """One side of a battle."""

    side: Side
    """`a` (left) or `b` (right)."""
    identity: str
    """Identity name."""
    behaviour: Digest
    """Behaviour digest."""


class BattleOpened(EventData):
    """Written by the arena before either side is asked."""

    TYPE: ClassVar[str] = "tiltyard.battle.opened.v1"
    battle: str
    """Battle id, `bat_…`; also the event's subject."""
    voter: str
    """Pseudonymous voter id."""
    contestants: tuple[Contestant, Contestant]
    """Who stood on which side."""
    pair_probability: float
    """Probability of this unordered pair under the policy that drew it."""
    side_probability: float
    """Probability of this left-right order given the pair."""
    policy: str
    """Name and version of the pairing policy."""
    slice: str = ""
    """The slice of the battle, where targets are set for slices; empty otherwise."""
    network: str = ""
    """Pseudonym of the voter's network for this day, `net_…`; no address can be told from it. Empty where none was taken."""
    language: str = ""
    """Language of the first message (`rating/language.py`), `und` where it is undecided; empty where nobody guessed."""
    category: str = ""
    """Kind of the first message (`rating/category.py`); empty where nobody guessed."""
    prompt_digest: str = ""
    """Keyed digest of the first message, shortened: tells that two battles began alike. Empty where none was taken."""
    pace: Pace = "as_written"
    """How the answers were shown: as they were written, or both no faster than the slower one."""
    redraws: int = 0
    """How many battles with this question were voided before this one, because a side failed."""
    redrawn_after: str = ""
    """Why the last of them was voided, in one word; empty for a first draw."""
    vote_token_digest: Digest
    """Digest of the single-use token with which the vote must come."""

    def unique_key(self) -> str | None:
        """A battle opens once."""
        return f"battle:{self.battle}"


class BattleTurnStarted(EventData):
    """Written by the arena for each user message, and for each regeneration of the last one."""

    TYPE: ClassVar[str] = "tiltyard.battle.turn.started.v1"
    battle: str
    """Battle id."""
    turn: int
    """Number of the user message in the battle."""
    attempt: int
    """0 at first, then one more for each regeneration."""
    message: ContentRef
    """What the user said, as the models were asked: after `policy`."""
    policy: DataPolicy | None = None
    """What the deployment did with personal data; `None`: an earlier version, which did nothing."""
    found: dict[str, int] = Field(default_factory=dict)
    """How much of each kind of personal data was found, such as `{"EMAIL": 1}`."""

    def unique_key(self) -> str | None:
        """An attempt starts once."""
        return f"turn-started:{self.battle}:{self.turn}:{self.attempt}"


class BattleTurnFinished(EventData):
    """Written by the arena when both sides of a turn have ended."""

    TYPE: ClassVar[str] = "tiltyard.battle.turn.finished.v1"
    battle: str
    """Battle id."""
    turn: int
    """Number of the user message in the battle."""
    attempt: int
    """Which attempt ended."""
    generation_a: str | None
    """Generation of side a; `None` when none was started."""
    generation_b: str | None
    """Generation of side b; `None` when none was started."""
    finish_a: FinishReason
    """How side a ended."""
    finish_b: FinishReason
    """How side b ended."""

    def unique_key(self) -> str | None:
        """An attempt ends once."""
        return f"turn-finished:{self.battle}:{self.turn}:{self.attempt}"


class VoteCast(EventData):
    """Written by the arena; durable before the browser hears of it."""

    TYPE: ClassVar[str] = "tiltyard.vote.cast.v1"
    battle: str
    """Battle id; also the event's subject."""
    voter: str
    """Pseudonymous voter id."""
    choice: Choice
    """`a`, `b`, `tie` or `both_bad`."""
    identity_a: str
    """Identity name of side a."""
    identity_b: str
    """Identity name of side b."""
    behaviour_a: Digest
    """Behaviour digest of side a."""
    behaviour_b: Digest
    """Behaviour digest of side b."""
    pair_probability: float
    """As in `BattleOpened`."""
    side_probability: float
    """As in `BattleOpened`."""
    turns: int
    """User messages answered before the vote."""
    generations_a: tuple[str, ...]
    """Generations of side a that the voter saw last, a turn each."""
    generations_b: tuple[str, ...]
    """Generations of side b that the voter saw last, a turn each."""
    leaks: tuple[Side, ...] = ()
    """Sides whose answers said who wrote them."""
    cut: tuple[Side, ...] = ()
    """Sides that were still answering; the vote stopped them, and counts what they had said."""

    def unique_key(self) -> str | None:
        """One vote a battle."""
        return f"vote:{self.battle}"


class RatingMoved(Frozen):
    """One rating under the rules before and after."""

    behaviour: Digest
    """Behaviour digest."""
    before: float | None
    """Points; `None` without a rating."""
    after: float | None
    """Points; `None` without a rating."""


class RulesetAdopted(EventData):
    """Written by `tiltyard up` when it starts with other rules than the log's latest adoption says."""

    TYPE: ClassVar[str] = "tiltyard.ruleset.adopted.v1"
    ruleset: str
    """Label of the rules, as leaderboards carry it."""
    digest: Digest
    """Digest of the rules."""
    rules: dict[str, JsonValue]
    """The rules themselves, so that a board can be computed again."""
    why: str
    """What the operator wrote about the change."""
    previous: str | None
    """Label of the rules adopted before; `None`: every vote counted."""
    votes_before: int
    """Votes that counted under the rules before."""
    votes_after: int
    """Votes that count now."""
    moved: tuple[RatingMoved, ...]
    """Ratings that moved, the farthest first."""


class PublishedName(Frozen):
    """What a model was called when a leaderboard was published."""

    name: str
    """Name of the identity."""
    organization: str = ""
    """Who made the model."""
    license: str = ""
    """Under which licence."""
    description: str = ""
    """What set it apart."""
    registered: bool = True
    """Whether an identity explains it."""
    superseded: bool = False
    """Whether the name meant another behaviour by then."""


class LeaderboardPublished(EventData):
    """Written by `tiltyard leaderboard publish`, and by the arena's page when its board is shown after a change."""

    TYPE: ClassVar[str] = "tiltyard.leaderboard.published.v1"
    digest: Digest
    """Digest of `board` in canonical JSON: the leaderboard's name; also the event's subject."""
    method: str
    """Name and version of the rating method."""
    ruleset: str
    """Name and version of the rules that say which votes count."""
    votes: int
    """Votes counted."""
    first_sequence: int
    """First event of the range that was read."""
    last_sequence: int
    """Last event of the range that was read."""
    board: dict[str, JsonValue] = Field(default_factory=dict)
    """Every number and setting (`rating/leaderboard.py:Leaderboard.document`); empty in boards of earlier versions."""
    names: dict[str, PublishedName] = Field(default_factory=dict)
    """What the models were called that day, by behaviour digest; no part of the digest."""

    def unique_key(self) -> str | None:
        """One publication per content."""
        return f"leaderboard:{self.digest}"


class BattleVoided(EventData):
    """Written by the arena when a model failed to answer the first message: nobody loses, and the pair is drawn again."""

    TYPE: ClassVar[str] = "tiltyard.battle.voided.v1"
    battle: str
    """Battle id; also the event's subject."""
    attempt: int
    """Attempt at the first message that failed."""
    failed: tuple[Side, ...]
    """Sides that failed."""
    causes: tuple[str, ...]
    """Why each of them did, in one word."""
    redraw: str
    """Id that the battle drawn in its place has, if the voter stays."""

    def unique_key(self) -> str | None:
        """A battle is voided once."""
        return f"voided:{self.battle}"


class SidesRevealed(EventData):
    """Written by the arena before it says for the first time who was who in a battle; without a vote before it, that came too early."""

    TYPE: ClassVar[str] = "tiltyard.sides.revealed.v1"
    battle: str
    """Battle id; also the event's subject."""
    vote: str
    """Receipt of the vote that stood."""

    def unique_key(self) -> str | None:
        """The first time counts."""
        return f"sides-revealed:{self.battle}"


class VotesNotWritten(EventData):
    """Written by the arena once the log takes events again after it refused votes: each voter was told so, and may vote again."""

    TYPE: ClassVar[str] = "tiltyard.votes.not_written.v1"
    votes: int
    """How many were refused."""
    first_us: int
    """Microseconds since 1970 of the first refusal."""
    last_us: int
    """And of the last."""
    why: str
    """What the log said to the last one."""


class VoteWithdrawn(EventData):
    """Written by the arena when a voter takes a vote back in time: it no longer counts, and stays in the log."""

    TYPE: ClassVar[str] = "tiltyard.vote.withdrawn.v1"
    battle: str
    """Battle id; also the event's subject."""
    voter: str
    """Pseudonymous voter id."""
    vote: str
    """Id of the `VoteCast` event."""
    reason: WithdrawalReason
    """Why, as the voter said."""

    def unique_key(self) -> str | None:
        """One withdrawal a battle."""
        return f"vote-withdrawn:{self.battle}"


class BattleShared(EventData):
    """Written by the arena when a voter makes a link under which others may read a battle that has its vote."""

    TYPE: ClassVar[str] = "tiltyard.battle.shared.v1"
    battle: str
    """Battle id; also the event's subject."""
    voter: str
    """Pseudonymous voter id."""
    link_digest: Digest
    """Digest of the secret part of the link."""

    def unique_key(self) -> str | None:
        """A battle has one link."""
        return f"shared:{self.battle}"


class VoteReviewed(EventData):
    """Written by `tiltyard rules decide` and by `POST /api/arena/review` when somebody has looked at a vote or a voter."""

    TYPE: ClassVar[str] = "tiltyard.vote.reviewed.v1"
    of: Literal["vote", "voter"]
    """What was looked at."""
    name: str
    """Battle id of the vote, or pseudonymous voter id; also the event's subject."""
    decision: Literal["keep", "exclude", "withdraw"]
    """Let it count whatever the rules say, leave it out, or leave it to the rules again; the newest one holds."""
    reason: str
    """Why, in words."""
    by: str
    """Who decided: a name that was given, or the id of an API key."""

"""Every event type: past tense, one writer each, small, keyed, versioned by suffix.

Text never sits in an event: `ContentRef`s point into the vault. Field names of generation data follow
the OpenTelemetry GenAI conventions where one exists (`docs/events.md` has the table).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, PlainSerializer

from tiltyard.identity.canonical import Digest
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Deployment, Frozen

Side = Literal["a", "b"]
Choice = Literal["a", "b", "tie", "both_bad"]
FinishReason = Literal["stop", "length", "cancelled", "failed"]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64), PlainSerializer(str, return_type=str, when_used="json")]
"""A 64-bit integer; a decimal string in JSON, where numbers beyond 2^53 would lose bits."""


class ContentRef(Frozen):
    """A pointer into the content vault, with a keyed digest that proves which words it means."""

    id: str
    """Vault row (UUIDv7)."""
    subject: str
    """The data subject under whose key the words are encrypted."""
    digest: str
    """`hmac-sha256:<hex>` of the plain bytes under the subject's key; useless once the key is destroyed."""
    size_bytes: int


class EventData(Frozen):
    """The `data` of one event; `TYPE` is its CloudEvents `type`."""

    TYPE: ClassVar[str]

    def unique_key(self) -> str | None:
        """A key that may occur once in the log (a vote per battle); `None` when anything goes."""
        return None


class IdentityRegistered(EventData):
    """Written by the process that first serves an identity."""

    TYPE: ClassVar[str] = "tiltyard.identity.registered.v1"
    name: str
    behaviour: Digest
    deployment: Digest
    behaviour_manifest: Behaviour
    deployment_manifest: Deployment
    declaration: IdentityDeclaration

    def unique_key(self) -> str | None:
        """One registration per name, behaviour and deployment."""
        return f"identity:{self.name}:{self.behaviour}:{self.deployment}"


class ChoiceOutcome(Frozen):
    """How one of the `n` answers of a generation ended."""

    index: int
    finish_reason: FinishReason
    stop_match: str | None = None
    completion_tokens: int


class GenerationFinished(EventData):
    """Written by the gateway, once for each request that reached a worker, however it ended."""

    TYPE: ClassVar[str] = "tiltyard.generation.finished.v1"
    generation: str
    endpoint: Literal["chat.completions", "completions"]
    behaviour: Digest
    deployment: Digest
    alias: str
    """The model name that the client asked for."""
    identity: str
    """The identity name that it was resolved to."""
    worker: str
    service_class: Literal["interactive", "agent", "batch"] = "interactive"
    prompt: ContentRef | None
    """The request as served: messages or prompt, in canonical JSON."""
    response: ContentRef | None
    """`{"choices": [{"index", "text", "token_ids", "finish_reason"}]}` in canonical JSON."""
    prompt_token_digest: Digest | None
    sampling: DefaultSampling
    """Effective values: the request's over the identity's defaults."""
    seed: Seed
    stop: tuple[str, ...] = ()
    logit_bias: dict[str, float] = Field(default_factory=dict)
    n: int = 1
    ignore_eos: bool = False
    """Whether end-of-text tokens were ordinary ones (load tests ask for it)."""
    stream: bool
    choices: tuple[ChoiceOutcome, ...]
    error: str | None = None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    time_to_first_token_ms: float | None = None
    total_ms: float
    peak_kv_blocks: int | None = None

    def unique_key(self) -> str | None:
        """One ending a generation."""
        return f"generation:{self.generation}"


class Contestant(Frozen):
    """One side of a battle."""

    side: Side
    identity: str
    behaviour: Digest


class BattleOpened(EventData):
    """Written by the arena before either side is asked."""

    TYPE: ClassVar[str] = "tiltyard.battle.opened.v1"
    battle: str
    voter: str
    """Pseudonymous voter id."""
    contestants: tuple[Contestant, Contestant]
    pair_probability: float
    """Probability of this unordered pair under the policy that drew it."""
    side_probability: float
    """Probability of this left-right order given the pair."""
    policy: str
    """Name and version of the pairing policy."""
    vote_token_digest: Digest

    def unique_key(self) -> str | None:
        """A battle opens once."""
        return f"battle:{self.battle}"


class BattleTurnStarted(EventData):
    """Written by the arena for each user message, and for each regeneration of the last one."""

    TYPE: ClassVar[str] = "tiltyard.battle.turn.started.v1"
    battle: str
    turn: int
    attempt: int
    """0 at first, then one more for each regeneration."""
    message: ContentRef

    def unique_key(self) -> str | None:
        """An attempt starts once."""
        return f"turn-started:{self.battle}:{self.turn}:{self.attempt}"


class BattleTurnFinished(EventData):
    """Written by the arena when both sides of a turn have ended."""

    TYPE: ClassVar[str] = "tiltyard.battle.turn.finished.v1"
    battle: str
    turn: int
    attempt: int
    generation_a: str | None
    generation_b: str | None
    finish_a: FinishReason
    finish_b: FinishReason

    def unique_key(self) -> str | None:
        """An attempt ends once."""
        return f"turn-finished:{self.battle}:{self.turn}:{self.attempt}"


class VoteCast(EventData):
    """Written by the arena; durable before the browser hears of it."""

    TYPE: ClassVar[str] = "tiltyard.vote.cast.v1"
    battle: str
    voter: str
    choice: Choice
    identity_a: str
    identity_b: str
    behaviour_a: Digest
    behaviour_b: Digest
    pair_probability: float
    side_probability: float
    turns: int
    generations_a: tuple[str, ...]
    generations_b: tuple[str, ...]

    def unique_key(self) -> str | None:
        """One vote a battle."""
        return f"vote:{self.battle}"


class LeaderboardPublished(EventData):
    """Written when a computed leaderboard is shown for the first time after a change."""

    TYPE: ClassVar[str] = "tiltyard.leaderboard.published.v1"
    digest: Digest
    method: str
    ruleset: str
    votes: int
    first_sequence: int
    last_sequence: int

    def unique_key(self) -> str | None:
        """One publication per content."""
        return f"leaderboard:{self.digest}"


class WorkerReady(EventData):
    """Written by the fleet's owner when a worker answers ready."""

    TYPE: ClassVar[str] = "tiltyard.worker.ready.v1"
    worker: str
    identities: dict[str, Digest]
    load_ms: float


class WorkerStopped(EventData):
    """Written by the fleet's owner when a worker has ended."""

    TYPE: ClassVar[str] = "tiltyard.worker.stopped.v1"
    worker: str
    reason: str


class SubjectErased(EventData):
    """Written by the log when a data subject's keys were destroyed: the tombstone of their words."""

    TYPE: ClassVar[str] = "tiltyard.subject.erased.v1"
    erased: str
    """The data subject, a pseudonymous id."""
    keys_destroyed: int
    reason: str


class Unrecognised(EventData):
    """Stands in for an event of a type that this version does not know; never written."""

    TYPE: ClassVar[str] = ""
    document: dict[str, JsonValue]


EVENT_TYPES: tuple[type[EventData], ...] = (
    IdentityRegistered,
    GenerationFinished,
    BattleOpened,
    BattleTurnStarted,
    BattleTurnFinished,
    VoteCast,
    LeaderboardPublished,
    WorkerReady,
    WorkerStopped,
    SubjectErased,
)

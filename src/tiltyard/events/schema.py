"""Every event type: past tense, one writer each, small, keyed, versioned by suffix.

Text never sits in an event: `ContentRef`s point into the vault. Field names of generation data follow
the OpenTelemetry GenAI conventions where one exists (`docs/events.md` has the table).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, PlainSerializer, SerializerFunctionWrapHandler, model_serializer

from tiltyard.identity.canonical import Digest
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Deployment, Frozen

Side = Literal["a", "b"]
Choice = Literal["a", "b", "tie", "both_bad"]
FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "failed", "deadline"]
Pace = Literal["as_written", "equal"]
"""Whether a voter sees each side as fast as it writes, or both at the pace of the slower."""
WithdrawalReason = Literal["slip", "misread", "other"]
"""Why a voter took a vote back: a wrong key or button, an answer read wrongly, or something else."""
Credential = Literal["production", "research"]
"""What an API key is for: to serve people, or to learn about models."""
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
    """Length of the plain bytes."""


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
    """The name in `tiltyard.toml`."""
    behaviour: Digest
    """Behaviour digest."""
    deployment: Digest
    """Deployment digest."""
    behaviour_manifest: Behaviour
    """What the behaviour digest names."""
    deployment_manifest: Deployment
    """What the deployment digest names."""
    declaration: IdentityDeclaration
    """What the user wrote."""

    def unique_key(self) -> str | None:
        """One registration per name, behaviour and deployment."""
        return f"identity:{self.name}:{self.behaviour}:{self.deployment}"


class StructureRef(Frozen):
    """A demand on the form of an answer; its text is in the vault, beside the prompt."""

    kind: str
    """`json_object`, `json_schema`, `regex`, `choice` or `grammar`."""
    digest: Digest
    """Names kind and text."""
    engine: str | None = None
    """Library and version that made the masks; a replay with another one may differ."""


class ToolRef(Frozen):
    """One function that a request offered; how it is described is in the vault, beside the prompt."""

    name: str
    """Its name."""
    side_effects: bool | None = None
    """Whether running it changes something; `None`: nobody said, so it may."""


class ToolsRef(Frozen):
    """The tools that a request offered."""

    functions: tuple[ToolRef, ...]
    """In the request's order."""
    choice: Literal["auto", "required", "named"]
    """What the model was to do with them."""
    name: str | None = None
    """The function that had to be called, if one was named."""
    only: tuple[str, ...] | None = None
    """The functions that might be called, if not all."""
    parallel: bool
    """Whether more than one call might come."""
    digest: Digest
    """Names tools and choice."""
    engine: str | None = None
    """Library and version that held a forced call to its form; a replay with another one may differ."""


class ChoiceOutcome(Frozen):
    """How one of the `n` answers of a generation ended."""

    index: int
    """0 to `n` - 1."""
    finish_reason: FinishReason
    """`stop`, `length`, `tool_calls`, `cancelled`, `failed` or `deadline`."""
    stop_match: str | None = None
    """The stop string that ended it, if one did."""
    completion_tokens: int
    """Tokens of this answer."""
    called: tuple[str, ...] = ()
    """Functions that it called, in order."""


class GenerationFinished(EventData):
    """Written by the gateway, once for each request that reached a worker, however it ended."""

    TYPE: ClassVar[str] = "tiltyard.generation.finished.v1"
    generation: str
    """Generation id, `gen_…`; also the event's subject and the response's `id`."""
    endpoint: Literal["chat.completions", "completions", "responses", "messages"]
    """Which door was used."""
    behaviour: Digest
    """Behaviour digest of the identity that answered."""
    deployment: Digest
    """Deployment digest of the identity that answered."""
    alias: str
    """The model name that the client asked for."""
    identity: str
    """The identity name that it was resolved to."""
    worker: str
    """Name of the worker process."""
    service_class: Literal["interactive", "agent", "batch"] = "interactive"
    """Scheduling class."""
    api_key: str | None = None
    """Id of the API key that asked; `None` where none is needed."""
    prompt: ContentRef | None
    """The request as served: messages or prompt, in canonical JSON; beside them what a response told of its request
    (`response`) and the digest of a request that brought a key (`idempotency`)."""
    response: ContentRef | None
    """`{"choices": [{"index", "text", "token_ids", "finish_reason"}]}` in canonical JSON; `message` where tools are called."""
    prompt_token_digest: Digest | None
    """Digest of the prompt's token ids as the engine saw them."""
    sampling: DefaultSampling
    """Effective values: the request's over the identity's defaults."""
    seed: Seed
    """Seed of the first choice; drawn by the gateway when the request brought none."""
    stop: tuple[str, ...] = ()
    """Stop strings."""
    logit_bias: dict[str, float] = Field(default_factory=dict)
    """Bias by token id (in decimal)."""
    n: int = 1
    """Answers asked for."""
    ignore_eos: bool = False
    """Whether end-of-text tokens were ordinary ones (load tools ask for it)."""
    stop_token_ids: tuple[int, ...] = ()
    """More tokens that end an answer."""
    include_stop_str_in_output: bool = False
    """Whether what ended the answer is part of its text."""
    min_tokens: int = 0
    """Tokens before which nothing ends the answer."""
    bad_words: tuple[str, ...] = ()
    """Words that may not come."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that may come; `None`: any."""
    skip_special_tokens: bool = True
    """Whether control tokens are left out of the text."""
    truncate_prompt_tokens: int | None = None
    """Tokens of the prompt's end that were kept; `None`: all."""
    structure: StructureRef | None = None
    """The grammar that every token was held to."""
    tools: ToolsRef | None = None
    """The functions that might be called; `None`: none."""
    stream: bool
    """Whether it was streamed."""
    choices: tuple[ChoiceOutcome, ...]
    """One for each answer."""
    error: str | None = None
    """Code of the error that ended it, if one did."""
    prompt_tokens: int
    """Tokens of the prompt."""
    cached_tokens: int
    """Prompt tokens whose KV came from the prefix cache."""
    completion_tokens: int
    """Tokens of all answers."""
    queue_ms: float | None = None
    """Waiting for the scheduler."""
    prefill_ms: float | None = None
    """From the first prefill chunk to the first token."""
    decode_ms: float | None = None
    """From the first token to the last."""
    time_to_first_token_ms: float | None = None
    """From arrival at the gateway to the first token."""
    total_ms: float
    """From arrival at the gateway to the end."""
    peak_kv_blocks: int | None = None
    """Most KV blocks held at once."""
    drafted_tokens: int | None = None
    """Tokens guessed ahead by speculation."""
    accepted_tokens: int | None = None
    """Those of them that were right: each saved a step."""
    arm: str | None = None
    """The arm of a release's `TrafficSplit` that it was drawn for; `shadow`: a copy that no user saw; `None`: no split."""
    release: str | None = None
    """The release of that split."""
    diverted_from: str | None = None
    """The arm that should have answered and had no living worker."""
    shadow_of: str | None = None
    """The generation of which this is the shadow copy."""

    def unique_key(self) -> str | None:
        """One ending a generation."""
        return f"generation:{self.generation}"


class TextsEmbedded(EventData):
    """Written by the gateway once for each request for embeddings that was answered; the texts are kept nowhere."""

    TYPE: ClassVar[str] = "tiltyard.texts.embedded.v1"
    alias: str
    """The model name that the client asked for."""
    identity: str
    """The identity name that it was resolved to."""
    behaviour: Digest
    """Behaviour digest of the identity that answered."""
    worker: str
    """Name of the worker process."""
    api_key: str | None = None
    """Id of the API key that asked; `None` where none is needed."""
    texts: int
    """How many."""
    prompt_tokens: int
    """Tokens of all texts."""
    total_ms: float
    """From arrival at the gateway to the end."""


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
    """Language of the first message (`arena/language.py`), `und` where it is undecided; empty where nobody guessed."""
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
    """What the user said."""

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


class ApiKeyIssued(EventData):
    """Written by the key ring when an API key is made; the key itself is kept nowhere."""

    TYPE: ClassVar[str] = "tiltyard.api.key.issued.v1"
    key: str
    """Key id, `key_…`; also the event's subject."""
    tenant: str
    """Whose key it is."""
    label: str
    """What people call it."""
    credential: Credential
    """`production` or `research`."""
    scopes: tuple[str, ...]
    """What it may do: `inference`, `evaluate`, `vote`, `release`, `admin`."""
    digest: str
    """HMAC-SHA256 of the key under a key derived from the master key, in hexadecimal."""
    expires_us: int | None = None
    """Microseconds since 1970 from which it is refused; `None`: never by itself."""
    replaces: str | None = None
    """The key of which this is the rotation."""

    def unique_key(self) -> str | None:
        """A key is issued once."""
        return f"api-key:{self.key}"


class ApiKeyEnded(EventData):
    """Written by the key ring when an API key is revoked, or gets its last day because it was rotated."""

    TYPE: ClassVar[str] = "tiltyard.api.key.ended.v1"
    key: str
    """Key id; also the event's subject."""
    at_us: int
    """Microseconds since 1970 from which it is refused."""
    reason: Literal["revoked", "rotated"]
    """Why."""

    def unique_key(self) -> str | None:
        """A key is revoked once, and rotated once."""
        return f"api-key-ended:{self.key}:{self.reason}"


class TenantSet(EventData):
    """Written by `tiltyard tenants` when a tenant's terms are set, or left to `tiltyard.toml` again."""

    TYPE: ClassVar[str] = "tiltyard.tenant.set.v1"
    tenant: str
    """Name of the tenant; also the event's subject."""
    terms: dict[str, JsonValue] | None
    """As in `[tenants.NAME]`, which they replace as a whole; `None`: what the file says."""


class ConsentGiven(EventData):
    """Written by the arena before a voter's first battle under a text of consent."""

    TYPE: ClassVar[str] = "tiltyard.consent.given.v1"
    voter: str
    """Pseudonymous voter id; also the event's subject."""
    version: str
    """Version of the text; another version asks again."""
    language: str
    """Language in which it was shown, such as `zh-Hant`."""
    wording: Digest
    """Digest of the words that were shown, in that language."""

    def unique_key(self) -> str | None:
        """A voter agrees once to a version."""
        return f"consent:{self.voter}:{self.version}"


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


class WorkerReady(EventData):
    """Written by the fleet's owner when a worker answers ready."""

    TYPE: ClassVar[str] = "tiltyard.worker.ready.v1"
    worker: str
    """Name of the worker; also the event's subject."""
    identities: dict[str, Digest]
    """Behaviour digest by identity name."""
    load_ms: float
    """From the start of the process to ready."""


class WorkerStopped(EventData):
    """Written by the fleet's owner when a worker has ended."""

    TYPE: ClassVar[str] = "tiltyard.worker.stopped.v1"
    worker: str
    """Name of the worker; also the event's subject."""
    reason: str
    """Why, in words."""


class SubjectErased(EventData):
    """Written by the log when a data subject's keys were destroyed: the tombstone of their words."""

    TYPE: ClassVar[str] = "tiltyard.subject.erased.v1"
    erased: str
    """The data subject, a pseudonymous id."""
    keys_destroyed: int
    """How many keys the person had."""
    reason: str
    """Why, in words."""


class RubricRegistered(EventData):
    """Written by a judge run before its first judgment under a rubric."""

    TYPE: ClassVar[str] = "tiltyard.rubric.registered.v1"
    rubric: Digest
    """Digest of the rubric in canonical JSON."""
    name: str
    """What people call it."""
    rules: dict[str, JsonValue]
    """The rubric itself, so that a judgment can be understood, and asked for again."""

    def unique_key(self) -> str | None:
        """A rubric is registered once."""
        return f"rubric:{self.rubric}"


class JudgeRegistered(EventData):
    """Written by a judge run before the first judgment of a judge."""

    TYPE: ClassVar[str] = "tiltyard.judge.registered.v1"
    judge: Digest
    """Digest of the specification in canonical JSON."""
    name: str
    """The model name that is asked."""
    specification: dict[str, JsonValue]
    """Server, model, behaviour digest where the server names one, pin, sampling, how the verdict is had."""

    def unique_key(self) -> str | None:
        """A judge is registered once."""
        return f"judge:{self.judge}"


class JudgedSide(Frozen):
    """One of the answers that a judgment is about."""

    side: Side
    """`a` or `b`: the item's sides, whatever order the judge saw; a single answer is `a`."""
    identity: str
    """Identity or model name."""
    behaviour: Digest | None = None
    """Behaviour digest, where it is known."""
    generations: tuple[str, ...] = ()
    """Generations that made the answer, a turn each, where they are known."""
    words: int = 0
    """Words of the answer, all turns; a Chinese character or a kana is one."""
    markup: int = 0
    """Headers, bold passages and list items of the answer."""
    tokens_neutralised: int = 0
    """Verdict tokens and fences in the answer that were made harmless before the judge saw it."""


class JudgmentMade(EventData):
    """Written by a judge run for each answer of a judge, whether a verdict could be read from it or not."""

    TYPE: ClassVar[str] = "tiltyard.judgment.made.v1"
    judgment: str
    """Judgment id, `jdg_…`, made of what it is once for; also the event's subject."""
    judge: Digest
    """Who judged."""
    judge_name: str
    """The model name that was asked."""
    answered_as: str
    """What the server called the model that answered."""
    judge_generation: str | None = None
    """Generation of the judge's answer, where the server is a tiltyard."""
    rubric: Digest
    """Under which rubric."""
    mode: Literal["pairwise", "single"]
    """Two answers compared, or one rated."""
    item: str
    """Keyed digest of what was judged, `itm_…`: question, answers, who gave them, reference."""
    item_id: str
    """What the set calls it."""
    question: str
    """Keyed digest of the question, `qst_…`: tells which items are about the same."""
    collection: Digest
    """Digest of the set's file."""
    sides: tuple[JudgedSide, ...]
    """The answers."""
    slices: dict[str, str] = Field(default_factory=dict)
    """Slices of the item."""
    order: Literal["ab", "ba", "single"]
    """The order in which the judge saw the answers."""
    asked: Literal["first", "second", "only"]
    """Which of the two orders was asked first; drawn from `seed` and the item."""
    seed: Seed
    """Seed of the run's draws."""
    sample: int = 0
    """0, or the number of a repetition."""
    verdict: Choice | None
    """The winner, by the item's sides; `None`: unscored, or a single answer."""
    score: float | None
    """Rating of a single answer; `None`: unscored, or a pair."""
    scores: tuple[float, float] | None = None
    """Ratings of sides a and b, under a rubric that asks for both."""
    unscored: str | None = None
    """Why no verdict could be read: `no_verdict`, `cut`, `out_of_range`, `form_not_held`, `refused`; `None`: it could."""
    purpose: Literal["verdict", "attack", "check"] = "verdict"
    """`attack`: the item was spoiled on purpose; `check`: it is an answer of a fixed set. Neither counts in the judge's own rates."""
    held: Literal["grammar", "text"]
    """Whether the engine held the verdict to its form, or it was read from the text."""
    prompt: ContentRef
    """The conversation as the judge saw it, in canonical JSON."""
    raw: ContentRef
    """What the judge said, to the letter."""
    prompt_tokens: int
    """Tokens that the judge read."""
    completion_tokens: int
    """Tokens that the judge wrote."""
    cost_usd: float | None = None
    """By the prices that the run was given; `None`: none were."""
    total_ms: float
    """From the question to the end of the answer."""

    def unique_key(self) -> str | None:
        """One judgment for each judge, rubric, item, order and repetition."""
        return f"judgment:{self.judgment}"


class JudgesBridged(EventData):
    """Written by `tiltyard judge bridge`: from here on the new one's line is read in place of the old one's."""

    TYPE: ClassVar[str] = "tiltyard.judges.bridged.v1"
    old: Digest
    """The judge that was followed."""
    new: Digest
    """The judge that follows."""
    old_label: str
    """Label of the old one's line: judge and rubric."""
    new_label: str
    """Label of the new one's line."""
    measure: Literal["verdict", "rating"]
    """What both gave."""
    items: int
    """Items that both scored."""
    shift: float
    """Mean of new minus old: rating, or points of side a from 0 to 1."""
    shift_lower: float
    """Lower end of its 95 % interval."""
    shift_upper: float
    """Upper end of its 95 % interval."""
    agreement: float
    """Share of items on which both say the same."""
    map: dict[str, JsonValue]
    """`offset` and `slope` with their variances and covariance, or `chances` of the new verdict by the old one."""


class AnswerScored(EventData):
    """Written by a reward scorer for each answer that it scored."""

    TYPE: ClassVar[str] = "tiltyard.answer.scored.v1"
    scorer: Digest
    """Digest of the scorer's specification."""
    scorer_name: str
    """What people call it."""
    kind: Literal["likelihood", "http", "preference"]
    """A model's own log-likelihoods, a reward model behind HTTP, or a model trained on the arena's votes."""
    item: str
    """Keyed digest of question and answers, `itm_…`."""
    item_id: str
    """What the set calls it."""
    question: str
    """Keyed digest of the question, `qst_…`."""
    side: Side
    """Which answer of the item."""
    identity: str
    """Identity or model name that answered."""
    behaviour: Digest | None = None
    """Behaviour digest of who answered, where it is known."""
    generations: tuple[str, ...] = ()
    """Generations that made the answer, where they are known."""
    score: float
    """Higher is better; comparable only with other scores of this scorer."""
    slices: dict[str, str] = Field(default_factory=dict)
    """Slices of the item."""

    def unique_key(self) -> str | None:
        """One score for each scorer, item and side."""
        return f"score:{self.scorer}:{self.item}:{self.side}"


class PreferenceModelTrained(EventData):
    """Written by `tiltyard judge train`; the event is the model."""

    TYPE: ClassVar[str] = "tiltyard.preference.model.trained.v1"
    model: Digest
    """Digest of features, weights and lineage; also the event's subject."""
    method: str
    """Name and version of features and fit."""
    features: tuple[str, ...]
    """What it looks at in an answer."""
    weights: tuple[float, ...]
    """Log-odds for one standard deviation of each feature's difference."""
    scales: tuple[float, ...]
    """Standard deviation of each feature's difference among the votes."""
    temperature: float
    """By which log-odds are divided so that chances hold on votes that it was not fitted to."""
    ridge: float
    """1 / variance of the prior on the weights."""
    votes: int
    """Votes that it was fitted to."""
    battles: Digest
    """Digest of the battles' ids, sorted: the lineage."""
    first_sequence: int
    """First event of the votes' range."""
    last_sequence: int
    """Last event of the votes' range."""
    accuracy: float
    """Share of decided votes that it foretold, out of fold."""
    brier: float
    """Mean squared error of its chances, out of fold."""
    brier_of_ignorance: float
    """The same of a chance of one half for every vote."""
    gap: float
    """Mean distance of chances from shares, out of fold."""


class ReviewerNamed(EventData):
    """Written by `tiltyard judge experts name`: who may review, and for what; the latest one about a reviewer holds."""

    TYPE: ClassVar[str] = "tiltyard.reviewer.named.v1"
    reviewer: str
    """Pseudonymous id, `rev_…`; also the event's subject."""
    name: ContentRef
    """Name and qualification, in the vault under the reviewer's own key."""
    roles: tuple[str, ...]
    """Slices that the reviewer may review (`medicine`), and `adjudicator`; empty: none any more."""


class ReviewAssigned(EventData):
    """Written by `tiltyard judge experts assign`: one expert is to review one item, blind."""

    TYPE: ClassVar[str] = "tiltyard.review.assigned.v1"
    item: str
    """Keyed digest of what is reviewed, `itm_…`; also the event's subject."""
    item_id: str
    """What the set calls it."""
    reviewer: str
    """Who is to review it."""
    role: str
    """In which role."""
    order: Literal["ab", "ba", "single"]
    """The order in which the answers are shown; drawn."""
    form: Digest
    """Digest of the rubric that is the review's form."""
    seed: Seed
    """Seed of the draws of reviewers and order."""

    def unique_key(self) -> str | None:
        """An expert reviews an item under a form once."""
        return f"review-assigned:{self.form}:{self.item}:{self.reviewer}"


class ReviewGiven(EventData):
    """Written by `tiltyard judge experts give`: what one expert said, before hearing of any other."""

    TYPE: ClassVar[str] = "tiltyard.review.given.v1"
    item: str
    """Keyed digest of what was reviewed; also the event's subject."""
    item_id: str
    """What the set calls it."""
    reviewer: str
    """Who reviewed it."""
    role: str
    """In which role."""
    form: Digest
    """Digest of the rubric that is the review's form."""
    sides: tuple[JudgedSide, ...]
    """The answers."""
    slices: dict[str, str] = Field(default_factory=dict)
    """Slices of the item."""
    question: str
    """Keyed digest of the question, `qst_…`."""
    verdict: Choice | None
    """The winner, by the item's sides; `None`: a single answer."""
    score: float | None
    """Rating of a single answer; `None`: a pair."""
    adjudicates: bool
    """Whether it decides between two reviews that differ."""
    reasons: ContentRef | None
    """Why, in the vault."""

    def unique_key(self) -> str | None:
        """One review for each form, item and expert, and one adjudication for each form and item."""
        if self.adjudicates:
            return f"adjudication:{self.form}:{self.item}"
        return f"review:{self.form}:{self.item}:{self.reviewer}"


class EvalVerdict(Frozen):
    """What one check of an item said; its words are in the vault, with the answer."""

    kind: str
    """Kind of the check, such as `numeric`."""
    score: float | None
    """0 (wrong) to 1 (right); `None`: the check could not say."""
    code: str | None = None
    """Why it could not, or what was wrong: `no_number`, `no_judge`, `code_not_allowed`."""


class EvalRunStarted(EventData):
    """Written by the runner of fixed sets before the first item of a run is asked."""

    TYPE: ClassVar[str] = "tiltyard.eval.run.started.v1"
    run: str
    """Run id, `evr_…`, derived from set, identity, settings and seed; also the event's subject."""
    set_name: str
    """What people call the set."""
    set_digest: Digest
    """Digest of the set's items in canonical JSON."""
    items: int
    """Items of the set."""
    alias: str
    """The model name that was asked for."""
    behaviour: Digest
    """Behaviour digest of the identity; of server and model name where the server tells none."""
    identified: bool
    """Whether the server told the behaviour digest."""
    settings: dict[str, JsonValue]
    """Fields of every request, such as `temperature`."""
    marking: dict[str, JsonValue] = Field(default_factory=dict)
    """What the set leaves open: whether `code` runs, digest of the `judge`; empty where no check depends on it."""
    seed: Seed
    """From which the seed of each sample is derived."""
    repeat: int
    """0, and one more for each time that the same run was asked for afresh."""

    def unique_key(self) -> str | None:
        """A run starts once, however often it is resumed."""
        return f"eval-run:{self.run}"


class EvalItemFinished(EventData):
    """Written by the runner of fixed sets when an item was answered and marked, or can never be."""

    TYPE: ClassVar[str] = "tiltyard.eval.item.finished.v1"
    run: str
    """Run id; also the event's subject."""
    item: str
    """Id of the item in its set."""
    item_digest: Digest
    """Digest of the item in canonical JSON."""
    alias: str
    """The model name that was asked for."""
    behaviour: Digest
    """As in `EvalRunStarted`."""
    sample: int
    """0 to one less than the samples of an item."""
    generations: tuple[str, ...]
    """Generations of its answers, a turn each."""
    transcript: ContentRef
    """Answers, calls, scores of choices and the words of each check, in canonical JSON."""
    output_digest: str
    """Keyed digest of what the model said, shortened; equal for equal outputs in one log."""
    score: float | None
    """The least score of its checks; `None`: unscored."""
    verdicts: tuple[EvalVerdict, ...]
    """In the order of the item's checks."""
    finish_reason: str | None
    """How its last answer ended."""
    error: str | None = None
    """Code of the refusal for which the item can never be answered, such as `context_length_exceeded`."""
    prompt_tokens: int
    """Tokens of all its prompts."""
    cached_tokens: int
    """Of them, those whose KV came from the prefix cache."""
    completion_tokens: int
    """Tokens of all its answers."""
    total_ms: float
    """From the first question to the last word, waiting included."""
    tries: int
    """Requests beyond the first one of each turn."""

    def unique_key(self) -> str | None:
        """One ending for each item, identity and sample of a run."""
        return f"eval-item:{self.run}:{self.sample}:{self.item}"


class EvalItemFailed(EventData):
    """Written by the runner of fixed sets when an item got no answer that another try may bring; it counts nowhere."""

    TYPE: ClassVar[str] = "tiltyard.eval.item.failed.v1"
    run: str
    """Run id; also the event's subject."""
    item: str
    """Id of the item in its set."""
    sample: int
    """As in `EvalItemFinished`."""
    error: str
    """Code of the failure."""


class EvalRunFinished(EventData):
    """Written by the runner of fixed sets when nothing was left to ask."""

    TYPE: ClassVar[str] = "tiltyard.eval.run.finished.v1"
    run: str
    """Run id; also the event's subject."""
    samples: int
    """Samples that are finished, of this and earlier sittings."""
    scored: int
    """Those of them that have a score."""
    failed: int
    """Samples without an answer; the next sitting tries them again."""
    mean: float | None
    """Mean score over items; `None` without any."""
    outputs_digest: str
    """Keyed digest of all outputs, by item and sample."""


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


class ImportedVote(Frozen):
    """One person's vote from a file that others made; its models are names that the file declares, no identities."""

    line: int
    """Line of the file; number of the record where a format has no lines (a JSON array, Parquet)."""
    a: str
    """Name of the model on side a, as the file has it."""
    b: str
    """Name of the model on side b."""
    choice: Choice
    """`a`, `b`, `tie` or `both_bad`."""
    voter: str | None = None
    """Pseudonym of the voter, `ext_…`, or what the file says where it was imported with `--voters as-given`."""
    time_us: int | None = None
    """When the file says that the vote was cast: microseconds since 1970, UTC."""
    turns: int | None = None
    """User messages before the vote."""
    id: str | None = None
    """The file's own id of the battle."""
    key: str | None = None
    """Tells that two rows are one vote: a digest of id, models, voter, time and turns. Without id and time there is none."""
    anonymous: bool | None = None
    """Whether the voter could not see the names."""
    pair_probability: float | None = None
    """Probability of the pair, where the file has it."""
    traits: dict[str, bool | float | str] = Field(default_factory=dict)
    """Language, marks and counts of the battle; never its words."""
    text: ContentRef | None = None
    """Both conversations, in canonical JSON, if the file had them and they were kept."""

    @model_serializer(mode="wrap")
    def _without_what_is_not_known(self, write: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        return _known(write(self))


class ImportedJudgment(Frozen):
    """One verdict of a judge model from a file that others made; it is nobody's vote."""

    line: int
    """Line of the file, or number of the record."""
    judge: str
    """Name of the judge model, as the file has it."""
    template: str | None = None
    """Name of the judge's prompt."""
    question: str | None = None
    """Id of the question."""
    turn: int | None = None
    """Which turn was judged."""
    a: str
    """Name of the model that was judged, or that the judge saw first."""
    b: str | None = None
    """Name of the other one; `None` where one answer was given a score."""
    verdict: Choice | None = None
    """With `a` shown first; `None`: the judge's answer could not be read, or a score was asked for."""
    verdict_swapped: Choice | None = None
    """With `b` shown first, in terms of the same `a` and `b`."""
    both_orders: bool = False
    """Whether the file has a verdict for each order."""
    score: float | None = None
    """Score of one answer; `None`: it could not be read, or two were compared."""
    time_us: int | None = None
    """When it was judged."""
    key: str | None = None
    """Tells that two rows are one verdict."""
    text: ContentRef | None = None
    """The judge's prompts and raw answers, in canonical JSON, if they were kept."""

    @model_serializer(mode="wrap")
    def _without_what_is_not_known(self, write: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        return _known(write(self))


class ImportedPair(Frozen):
    """How the votes of one pair fell, from a file that has only counts."""

    line: int
    """Number of the record."""
    a: str
    """Name of the first model."""
    b: str
    """Name of the second model."""
    wins_a: int
    """Votes for the first."""
    wins_b: int
    """Votes for the second."""
    ties: int
    """Ties."""
    both_bad: int
    """Votes that called both bad."""


def _known(fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: value for name, value in fields.items() if value not in (None, {})}


class Refused(Frozen):
    """Rows of a file that are no votes, for one reason."""

    reason: str
    """`unknown_outcome`, `same_model`, `repeated`, …: a code, never the file's words."""
    rows: int
    """How many."""
    first_line: int
    """Line of the first of them."""


class VoteImportStarted(EventData):
    """Written by `tiltyard votes import` before the first batch of a file."""

    TYPE: ClassVar[str] = "tiltyard.vote.import.started.v1"
    import_id: str
    """Import id, `imp_…`, drawn from the file's digest and the terms; also the event's subject."""
    source: str
    """Where the votes come from, in the importer's words; boards ask for it by this name."""
    licence: str
    """SPDX id of the licence of the file, as the importer says."""
    format: str
    """`lmarena`, `fastchat`, `mtbench`, `csv` or `counts`."""
    file_name: str
    """Its name, without the folder."""
    file_digest: Digest
    """SHA-256 of its bytes."""
    file_bytes: int
    """Its length."""
    terms: dict[str, JsonValue]
    """Everything else that decides how its rows are read: columns, labels, judge, pseudonyms, whether text is kept."""

    def unique_key(self) -> str | None:
        """An import starts once; the same file under the same terms is the same import."""
        return f"import:{self.import_id}"


class VotesImported(EventData):
    """Written by `tiltyard votes import`: the next votes of a file."""

    TYPE: ClassVar[str] = "tiltyard.votes.imported.v1"
    import_id: str
    """Import id; also the event's subject."""
    batch: int
    """1, 2, 3, …: batches of one import have no gaps."""
    last_line: int
    """Every line up to this one has been dealt with; an import that was cut goes on behind it."""
    votes: tuple[ImportedVote, ...]
    """In the file's order."""

    def unique_key(self) -> str | None:
        """A batch of an import is written once."""
        return f"import-batch:{self.import_id}:{self.batch}"


class JudgmentsImported(EventData):
    """Written by `tiltyard votes import`: the next verdicts of a file."""

    TYPE: ClassVar[str] = "tiltyard.judgments.imported.v1"
    import_id: str
    """Import id; also the event's subject."""
    batch: int
    """1, 2, 3, …: batches of one import have no gaps."""
    last_line: int
    """Every line up to this one has been dealt with."""
    judgments: tuple[ImportedJudgment, ...]
    """In the file's order."""

    def unique_key(self) -> str | None:
        """A batch of an import is written once."""
        return f"import-batch:{self.import_id}:{self.batch}"


class PairCountsImported(EventData):
    """Written by `tiltyard votes import`: the next pairs of a file that has only counts."""

    TYPE: ClassVar[str] = "tiltyard.pair.counts.imported.v1"
    import_id: str
    """Import id; also the event's subject."""
    batch: int
    """1, 2, 3, …: batches of one import have no gaps."""
    last_line: int
    """Every record up to this one has been dealt with."""
    pairs: tuple[ImportedPair, ...]
    """In the file's order."""

    def unique_key(self) -> str | None:
        """A batch of an import is written once."""
        return f"import-batch:{self.import_id}:{self.batch}"


class VoteImportFinished(EventData):
    """Written by `tiltyard votes import` when every row of a file has been dealt with; before, none of them counts."""

    TYPE: ClassVar[str] = "tiltyard.vote.import.finished.v1"
    import_id: str
    """Import id; also the event's subject."""
    rows: int
    """Rows in the file."""
    votes: int
    """Votes of people that were taken in, those in pair counts among them."""
    judgments: int
    """Verdicts of judge models that were taken in."""
    refused: tuple[Refused, ...]
    """What was left out, and why."""

    def unique_key(self) -> str | None:
        """An import finishes once."""
        return f"import-finished:{self.import_id}"


class VoteImportWithdrawn(EventData):
    """Written by `tiltyard votes withdraw`: nothing of an import counts from here on; its events stay."""

    TYPE: ClassVar[str] = "tiltyard.vote.import.withdrawn.v1"
    import_id: str
    """Import id; also the event's subject."""
    reason: str
    """Why, in words."""

    def unique_key(self) -> str | None:
        """An import is withdrawn once."""
        return f"import-withdrawn:{self.import_id}"


class TrafficArm(Frozen):
    """One of the identities that share an alias."""

    arm: str
    """`candidate`, `production` or `baseline` (production again, as small as the candidate, to compare with)."""
    identity: str
    """Identity name."""
    behaviour: Digest
    """Behaviour digest; a worker that serves other bytes under the name gets nothing of this arm."""
    weight: float
    """Share of the requests, 0 to 1."""


class TrafficRule(Frozen):
    """Requests that go to one arm whatever the weights; all that is said must hold."""

    arm: str
    """The arm."""
    tenant: str | None = None
    """Only of this tenant; `None`: of any."""
    channel: str | None = None
    """Only with this word in `x-tiltyard-channel`; `None`: with any or none."""


class ShadowCopies(Frozen):
    """Copies of finished requests for an identity whose answers nobody sees."""

    identity: str
    """Identity name."""
    behaviour: Digest
    """Behaviour digest."""
    share: float
    """Share of the requests that are copied, 0 to 1."""


class TrafficSplit(EventData):
    """Written by the release reconciler and by `tiltyard rollback`: who answers to an alias from now on."""

    TYPE: ClassVar[str] = "tiltyard.traffic.split.v1"
    alias: str
    """The public model name; also the event's subject."""
    arms: tuple[TrafficArm, ...]
    """In an order in which a growing candidate keeps those it has; empty: as `[aliases]` of `tiltyard.toml` says."""
    rules: tuple[TrafficRule, ...] = ()
    """The first one that holds decides."""
    shadow: ShadowCopies | None = None
    """Who gets copies, if anybody."""
    release: str | None = None
    """The release that asks for it; `None`: a person."""
    step: int | None = None
    """Number of this split in its release."""
    by: str
    """Who."""
    why: str
    """In words."""

    def unique_key(self) -> str | None:
        """A release takes each of its steps once."""
        return None if self.release is None else f"split:{self.release}:{self.step}"


class ReleaseStarted(EventData):
    """Written by `tiltyard release start`."""

    TYPE: ClassVar[str] = "tiltyard.release.started.v1"
    release: str
    """Release id, `rel_…`; also the event's subject."""
    alias: str
    """The alias."""
    number: int
    """1, 2, 3, … within the alias."""
    candidate: str
    """Identity name of the candidate."""
    candidate_behaviour: Digest
    """Its behaviour digest."""
    production: str
    """Identity name of what answers to the alias now."""
    production_behaviour: Digest
    """Its behaviour digest."""
    plan: dict[str, JsonValue]
    """The plan, with every default written out."""
    plan_digest: Digest
    """Digest of the plan."""
    by: str
    """Who."""
    why: str
    """In words."""

    def unique_key(self) -> str | None:
        """One release has a number: of two that start at once, one is refused."""
        return f"release:{self.alias}:{self.number}"


class StageEntered(EventData):
    """Written by the release reconciler when a stage begins."""

    TYPE: ClassVar[str] = "tiltyard.release.stage.entered.v1"
    release: str
    """Release id; also the event's subject."""
    index: int
    """Place in the plan, from 0."""
    stage: str
    """`evals`, `shadow`, `canary`, `preference` or `promote`."""

    def unique_key(self) -> str | None:
        """A stage is entered once."""
        return f"stage:{self.release}:{self.index}"


class GateJudged(EventData):
    """Written by the release reconciler when a gate's verdict changes, its evidence has grown by half, or a stage ends."""

    TYPE: ClassVar[str] = "tiltyard.release.gate.judged.v1"
    release: str
    """Release id; also the event's subject."""
    index: int
    """Place of the stage in the plan."""
    gate: str
    """Name of the gate: metric, comparison, slice."""
    number: int
    """1, 2, 3, … within the gate."""
    verdict: Literal["pass", "fail", "hold"]
    """`hold` also where data is missing or could not be read; that is never a pass."""
    effect: float | None
    """Estimate; `None`: no data."""
    low: float | None
    """Lower end of the interval, which holds at all times at once."""
    high: float | None
    """Upper end."""
    samples: int
    """What the estimate rests on."""
    samples_other: int = 0
    """The same of what it is compared with."""
    through: int
    """Sequence of the last event that was read."""
    words: str
    """Effect, interval, sample and verdict."""

    def unique_key(self) -> str | None:
        """A gate's judgments are numbered."""
        return f"gate:{self.release}:{self.index}:{self.gate}:{self.number}"


class ReleaseOrdered(EventData):
    """Written by `tiltyard release approve`, `pause`, `resume` and `abort`: what a person told a release."""

    TYPE: ClassVar[str] = "tiltyard.release.ordered.v1"
    release: str
    """Release id; also the event's subject."""
    order: Literal["approve", "pause", "resume", "abort"]
    """What."""
    index: int
    """The stage that it was said in."""
    by: str
    """Who."""
    why: str
    """In words."""


class ReleaseEnded(EventData):
    """Written by the release reconciler, once the traffic is where it shall be."""

    TYPE: ClassVar[str] = "tiltyard.release.ended.v1"
    release: str
    """Release id; also the event's subject."""
    outcome: Literal["promoted", "rolled_back", "aborted"]
    """How."""
    why: str
    """In words."""

    def unique_key(self) -> str | None:
        """A release ends once."""
        return f"release-ended:{self.release}"


class Unrecognised(EventData):
    """Stands in for an event of a type that this version does not know; never written."""

    TYPE: ClassVar[str] = ""
    document: dict[str, JsonValue]


EVENT_TYPES: tuple[type[EventData], ...] = (
    IdentityRegistered,
    GenerationFinished,
    TextsEmbedded,
    BattleOpened,
    BattleTurnStarted,
    BattleTurnFinished,
    VoteCast,
    ConsentGiven,
    BattleVoided,
    VoteWithdrawn,
    BattleShared,
    RulesetAdopted,
    LeaderboardPublished,
    ApiKeyIssued,
    ApiKeyEnded,
    TenantSet,
    WorkerReady,
    WorkerStopped,
    SubjectErased,
    RubricRegistered,
    JudgeRegistered,
    JudgmentMade,
    JudgesBridged,
    AnswerScored,
    PreferenceModelTrained,
    ReviewerNamed,
    ReviewAssigned,
    ReviewGiven,
    EvalRunStarted,
    EvalItemFinished,
    EvalItemFailed,
    EvalRunFinished,
    VoteReviewed,
    VoteImportStarted,
    VotesImported,
    JudgmentsImported,
    PairCountsImported,
    VoteImportFinished,
    VoteImportWithdrawn,
    TrafficSplit,
    ReleaseStarted,
    StageEntered,
    GateJudged,
    ReleaseOrdered,
    ReleaseEnded,
)

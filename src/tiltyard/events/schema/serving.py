"""What happens when models are served: identities, answers, vectors, workers, keys, tenants."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from tiltyard.events.schema.consenting import DataPolicy
from tiltyard.events.schema.record import ContentRef, EventData, FinishReason, Seed
from tiltyard.identity.canonical import Digest
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Deployment, Frozen

Credential = Literal["production", "research"]
"""What an API key is for: to serve people, or to learn about models."""


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


class StepWork(Frozen):
    """What the engine ran, for all requests together, in the steps of one phase of an answer; `tiltyard plan` reads it."""

    steps: int
    """Steps."""
    prompt_tokens: int
    """Tokens of prompts."""
    answer_tokens: int
    """Rows of answers, guesses included."""
    context_tokens: int
    """Positions before each row, added up."""


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
    policy: DataPolicy | None = None
    """What the tenant's terms did with personal data before it was served; `None`: an earlier version, which did nothing."""
    found: dict[str, int] = Field(default_factory=dict)
    """How much of each kind of personal data was found, such as `{"EMAIL": 1}`."""
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
    prefill_work: StepWork | None = None
    """What the worker's engine ran in `prefill_ms`; `None`: it does not say, as `decode_work`."""
    decode_work: StepWork | None = None
    """What it ran in `decode_ms`."""
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


class WorkerReady(EventData):
    """Written by the fleet's owner when a worker answers ready."""

    TYPE: ClassVar[str] = "tiltyard.worker.ready.v1"
    worker: str
    """Name of the worker; also the event's subject."""
    identities: dict[str, Digest]
    """Behaviour digest by identity name."""
    load_ms: float
    """From the start of the process to ready; 0 for a worker that was added."""


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

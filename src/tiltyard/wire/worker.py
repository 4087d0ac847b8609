"""What a worker says beyond the OpenAI protocol: its spec, its status, and the facts of a finished answer."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from tiltyard.identity.canonical import Digest
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Deployment
from tiltyard.wire.telemetry import LogSettings, TelemetrySettings
from tiltyard.wire.terms import ServiceClass

HEADER_GENERATION = "x-tiltyard-generation"
HEADER_IDENTITY = "x-tiltyard-identity"
HEADER_TENANT = "x-tiltyard-tenant"
HEADER_BLIND = "x-tiltyard-blind"
"""Any value: the metrics, which everybody may read, count this request without saying who answers it."""
# In the head of a worker's answer, for the gateway: an answer that is cut off never gets its last frame.
HEADER_PROMPT_TOKENS = "x-tiltyard-prompt-tokens"
HEADER_CACHED_TOKENS = "x-tiltyard-cached-tokens"
HEADER_PROMPT_DIGEST = "x-tiltyard-prompt-digest"


WorkerKind: TypeAlias = Literal["tiltyard", "vllm", "sglang", "llama.cpp", "openai"]
"""Which engine answers; `openai`: any other server that speaks OpenAI's protocol."""


class WireModel(BaseModel):
    """A shape between our own processes; unknown fields are our own mistake and refused."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class DraftSpec(WireModel):
    """A model file that guesses for the worker's own."""

    model_path: str
    quantization: Literal["as-stored", "q4_0", "q8_0"] = "as-stored"


class WorkerSpec(WireModel):
    """The JSON file from which `python -m tiltyard.worker SPEC` starts one worker process."""

    worker: str
    """Name of the worker, such as `smollm2-0`."""
    host: str = "127.0.0.1"
    port: int
    """0 lets the system choose; the worker writes the address it got to `ready_file`."""
    ready_file: str
    """Written (atomically) once the worker serves: `{"url": ..., "pid": ..., "load_ms": ...}`."""
    model_path: str
    identities: dict[str, IdentityDeclaration]
    """All share model file, quantization and KV precision."""
    threads: int
    isa: str = "auto"
    kv_memory_bytes: int | None = None
    """`None`: by the model's context."""
    max_batch_tokens: int = 256
    max_sequences: int = 64
    max_queue: int = 256
    class_weights: dict[ServiceClass, float] | None = None
    """`None`: the engine's own."""
    speculation: Literal["off", "prompt-lookup", "draft"] = "off"
    """How tokens are guessed ahead."""
    draft: DraftSpec | None = None
    """Who guesses, where `speculation` is `draft`."""
    spill_bytes: int = 0
    """0: no second tier."""
    spill_dir: str | None = None
    expert_directory: str | None = None
    """Where experts of a mixture lie that are not in memory; `None`: all are."""
    expert_memory_bytes: int = 0
    identity_store: str
    """Root of the content-addressed files; the worker keeps its manifests there."""
    packed_cache: str | None = None
    """Directory of packed weights; `None`: keep none."""
    packed_cache_bytes: int = 0
    telemetry: TelemetrySettings = TelemetrySettings()
    log: LogSettings = LogSettings()


class IdentityStatus(WireModel):
    """One identity that a worker serves."""

    name: str
    behaviour: Digest
    deployment: Digest
    behaviour_manifest: Behaviour
    deployment_manifest: Deployment
    declaration: IdentityDeclaration
    max_context_tokens: int


class QueueStatus(WireModel):
    """One class's requests."""

    waiting: int
    unfinished_tokens: int
    """Of those that wait and those that run."""


class WorkerStatus(WireModel):
    """`GET /worker`."""

    worker: str
    state: Literal["loading", "ready", "draining"]
    identities: tuple[IdentityStatus, ...]
    unfinished_tokens: int
    running: int
    waiting: int
    queues: dict[ServiceClass, QueueStatus] = Field(default_factory=dict)
    """By class; an engine of another kind may have none."""
    kv_blocks_used: int
    kv_blocks_cached: int
    kv_blocks_total: int
    """0: it does not say."""
    last_step_age_ms: float | None
    preemptions: int | None = None
    """Requests that gave their blocks back in mid-flight, since it began; `None`: it does not say."""
    kind: WorkerKind = "tiltyard"
    version: str = ""
    """What the engine says its version is; of our own, the deployment manifest says it."""


class FinishedChoice(WireModel):
    """One finished answer in tokens."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: Literal["stop", "length", "tool_calls", "cancelled", "failed", "deadline"]
    stop_match: str | None = None
    completion_tokens: int | None = None
    """`None`: as many as there are `token_ids`, which engines of other kinds may not tell."""


class StepWork(WireModel):
    """What the engine ran, for all requests together, in the steps of one phase of an answer."""

    steps: int
    prompt_tokens: int
    answer_tokens: int
    """Rows of answers, guesses included."""
    context_tokens: int
    """Positions before each row, added up."""


class FinishedAnswer(WireModel):
    """The `tiltyard` member of a worker's last stream frame; the gateway takes it out before it answers."""

    identity: str
    behaviour: Digest
    deployment: Digest
    sampling: DefaultSampling
    seed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prompt_token_digest: Digest | None
    """`None`: the engine tells no token ids."""
    choices: tuple[FinishedChoice, ...]
    structure_engine: str | None = None
    """What held the answers to the form that was demanded, if one was."""
    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    """Each `None` where the engine does not say."""
    time_to_first_token_ms: float | None
    prefill_work: StepWork | None = None
    """What was run in `prefill_ms`."""
    decode_work: StepWork | None = None
    """What was run in `decode_ms`."""
    peak_kv_blocks: int | None
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Of the drafted ones, those that were right: each saved a step."""

"""What goes into the engine and what comes out: values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.constraint import Grammar
from tiltyard.errors import TiltyardError

Pooling = Literal["last", "mean"]
"""Which hidden states make a text's vector: the last token's, or the mean of all."""
Finish = Literal["stop", "length"]

RequestClass = Literal["interactive", "agent", "batch"]
"""How urgent a request is; the scheduler shares steps between classes by weight."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How a token is chosen from a row of logits: a pure function of these, the logits and the position."""

    temperature: float = 1.0
    """0 takes the most likely token, the lowest id on ties."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output tokens; 1 is off."""
    presence_penalty: float = 0.0
    """Over output tokens only, as `frequency_penalty`."""
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """`(token id, added to its logit)`."""
    seed: int = 0
    """Taken modulo 2^64."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences of which the last token is never taken when the answer ends with the others."""
    allowed_token_ids: tuple[int, ...] | None = None
    """No other token is ever taken; `None`: any may be."""
    min_tokens: int = 0
    """No stop token is taken before the answer has this many tokens."""

    @property
    def penalizes(self) -> bool:
        """Whether what was said before changes what may be said next."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One prompt to continue."""

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingSettings
    max_tokens: int
    stop_ids: frozenset[int]
    namespace: str
    """Behaviour digest, `/`, tenant: requests of one namespace may reuse each other's prefixes."""
    top_logprobs: int | None = None
    """`None`: no log-probabilities; 0: of the chosen token; k: also of the k most likely."""
    tenant: str = "default"
    """Who pays; served tokens are shared fairly between the tenants of a class."""
    priority: RequestClass = "interactive"
    adapter: int = 0
    """Number of a LoRA adapter of the model, 0 for none; requests of one namespace have the same."""
    queue_deadline_s: float | None = None
    """Instant, in the clock of `Engine.step`, by which the request must have been admitted."""
    deadline_s: float | None = None
    """Instant by which it must have finished."""
    speculate: bool = True
    """Whether tokens may be guessed ahead, where the engine does so; never changes a token."""
    embed: Pooling | None = None
    """Ask for the vector of the prompt instead of its continuation; `max_tokens` is 1, and no token comes."""
    grammar: Grammar | None = None
    """Every token is masked by it."""
    prompt_logprobs: int | None = None
    """As `top_logprobs`, for the tokens of the prompt; they come with the first token."""
    prompt_logprobs_from: int = 0
    """The first position of the prompt whose token is wanted scored; those before it may be left out."""
    group: str = ""
    """Requests of one tenant in one group go on from a common prefix and come in together; empty: no group."""


class EmbeddedText(NamedTuple):
    """The vector of one request that asked for it, of length 1."""

    request_id: str
    vector: NDArray[np.float32]
    tokens: int


class PromptScores(NamedTuple):
    """Log-probabilities of the tokens of a prompt (P tokens; the first has none and is filled with zeros)."""

    logprobs: NDArray[np.float32]
    """(P): of the token that stands there."""
    ranks: NDArray[np.int32]
    """(P): 1 for the likeliest token, in the order of likelihood, then of id."""
    top_ids: NDArray[np.int32]
    """(P, k): the k likeliest tokens, likeliest first."""
    top_logprobs: NDArray[np.float32]
    """(P, k)."""


class EmittedToken(NamedTuple):
    """One token of one request; the stop token itself is emitted too, with `finish="stop"`."""

    request_id: str
    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] | None
    finish: Finish | None
    cached_tokens: int
    """Prompt tokens that came from the prefix tree when the request was first admitted."""
    first: bool
    kv_blocks: int
    """Blocks that the request holds now, shared ones included."""
    prompt_scores: PromptScores | None = None
    """With the first token of a request that asked for them."""
    drafted_tokens: int = 0
    """Tokens that were guessed ahead for this request, up to and with this step."""
    accepted_tokens: int = 0
    """Those of them that were right: each saved a step."""


class FailedRequest(NamedTuple):
    """A request that cannot go on; its blocks are free."""

    request_id: str
    error: TiltyardError


@dataclass(slots=True)
class Usage:
    """What one tenant was served in one class, prefill and decode apart."""

    requests: int = 0
    prefill_tokens: int = 0
    """Prompt tokens run for the first time."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix tree instead."""
    recomputed_tokens: int = 0
    """Tokens run again after a preemption: our cost, not the tenant's."""
    decode_tokens: int = 0
    """Tokens generated."""


class Queue(NamedTuple):
    """One class's requests."""

    waiting: int
    unfinished_tokens: int
    """Of those that wait and those that run: prompt tokens to run plus the most that may be generated."""


class Expired(NamedTuple):
    """A request whose deadline passed; its blocks are free."""

    request_id: str
    deadline: Literal["queue", "total"]


@dataclass(slots=True)
class EngineCounters:
    """What has happened since the engine was made; tests use them to prove which path was taken."""

    steps: int = 0
    admitted: int = 0
    finished: int = 0
    cancelled: int = 0
    expired_in_queue: int = 0
    """Requests that were not admitted by their queue deadline."""
    expired: int = 0
    """Requests that did not finish by their deadline."""
    preemptions: int = 0
    class_preemptions: int = 0
    """Of `preemptions`, those that made room for a request of a more urgent class."""
    passed: int = 0
    """Admissions that went past an older request."""
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prefill_chunks: int = 0
    partial_prefill_chunks: int = 0
    """Chunks after which some of the prompt was still left."""
    mixed_steps: int = 0
    """Steps in which decodes and prefill chunks ran together."""
    prompt_tokens: int = 0
    """Tokens run as prefill, recomputation included."""
    rows: int = 0
    """Tokens run, of prompts, of answers and guesses; those of texts that are embedded aside."""
    context_tokens: int = 0
    """Positions before each of those rows, added up: what attention looked at."""
    generated_tokens: int = 0
    copied_blocks: int = 0
    """Blocks of which a sequence needed a part and wrote on in a copy."""
    copied_tokens: int = 0
    """Prompt tokens that came with those copies; part of `prefix_hit_tokens`."""
    embedded_tokens: int = 0
    """Tokens run for vectors, recomputation included."""
    evicted_blocks: int = 0
    """Blocks that left memory, spilled or for good."""
    spilled_blocks: int = 0
    restored_blocks: int = 0
    spill_skipped_blocks: int = 0
    """Spilled blocks that were computed again because that was measured to be faster."""
    spill_damaged: int = 0
    """Spilled blocks that did not come back as they were; computed again."""
    spill_failures: int = 0
    """Blocks that could not be spilled."""
    shared_blocks: int = 0
    """Blocks computed twice at the same time, of which one copy was given back."""
    drafts: int = 0
    """Times that tokens were guessed ahead for a request in a step."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Guessed tokens that were the ones sampled."""
    peak_batch_sequences: int = 0
    peak_batch_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did."""

    emitted: tuple[EmittedToken, ...] = ()
    admitted: tuple[str, ...] = ()
    """Requests that left the queue in this step, those readmitted after a preemption included."""
    preempted: tuple[str, ...] = ()
    embedded: tuple[EmbeddedText, ...] = ()
    expired: tuple[Expired, ...] = ()
    """Requests that were dropped at the start of this step because their time was over."""
    failed: tuple[FailedRequest, ...] = ()
    batch_tokens: int = 0
    """Rows run: tokens and guesses."""
    batch_sequences: int = 0
    batch: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    """`(request id, tokens run)` for each sequence of the batch; guesses do not count."""

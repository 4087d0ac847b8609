"""The engine: requests in, one step at a time, tokens out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.batch import Batch, Drafts, ForwardModel, build_batch
from tiltyard.engine.blocks import BlockAccountingError
from tiltyard.engine.embedding import embed_texts
from tiltyard.engine.fairness import CLASSES, FairnessConfig
from tiltyard.engine.limits import check_sampling, not_finite
from tiltyard.engine.paging import Paging
from tiltyard.engine.prefix import Forgotten
from tiltyard.engine.request import (
    EmittedToken,
    EngineCounters,
    EngineRequest,
    FailedRequest,
    Queue,
    RequestClass,
    StepResult,
    Usage,
)
from tiltyard.engine.scheduler import Plan, Scheduler
from tiltyard.engine.sequence import RunningSequence
from tiltyard.engine.speculation import Speculation, Speculator
from tiltyard.engine.spill import SpillStore
from tiltyard.engine.verify import Choice, Observer, sample_and_verify
from tiltyard.errors import (
    ConfigurationError,
    Conflict,
    ContextTooLong,
    InvalidRequest,
    TiltyardError,
    UpstreamFailed,
)
from tiltyard.kernels import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes that change speed and capacity, never a token."""

    kv_blocks: int
    max_batch_tokens: int
    max_sequences: int
    vocab_size: int
    max_context: int
    """Positions that the model knows: prompt and answer together."""
    observe: Observer | None = None
    speculation: Speculation | None = None
    """How to guess tokens ahead; `None`: not at all."""
    fairness: FairnessConfig = field(default_factory=FairnessConfig)
    width: int = 0
    """Of the model's hidden states, for embeddings; 0: it gives none."""

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "max_batch_tokens", "max_sequences", "vocab_size", "max_context"):
            if getattr(self, name) < 1:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)}; it must be at least 1", param=name
                )
        if self.max_sequences > self.max_batch_tokens:
            raise ConfigurationError(
                f"max_sequences ({self.max_sequences}) is more than max_batch_tokens "
                f"({self.max_batch_tokens}): a step could not give each running "
                "sequence its token. Lower the one or raise the other.",
                param="max_sequences",
            )


class Engine:
    """Continuous batching over one model.

    Not thread-safe: one thread calls everything (`check` alone may be called from anywhere).
    """

    def __init__(self, model: ForwardModel, config: EngineConfig, spill: SpillStore | None = None) -> None:
        self.config = config
        self.counters = EngineCounters()
        self._model = model
        self._requests: dict[str, RunningSequence] = {}
        self._paging = Paging(
            blocks=config.kv_blocks,
            block_tokens=BLOCK_TOKENS,
            memory=model,
            spill=spill,
            counters=self.counters,
        )
        self._scheduler = Scheduler(
            paging=self._paging,
            max_batch_tokens=config.max_batch_tokens,
            max_sequences=config.max_sequences,
            counters=self.counters,
            fairness=config.fairness,
        )
        self._speculator: Speculator | None = None
        if config.speculation is not None:
            self._speculator = Speculator(config.speculation, self._scheduler, self.counters)
        self._logits = np.empty((0, config.vocab_size), np.float32)

    def step(self, now_s: float = 0.0) -> StepResult:
        """Schedule, draft, run, sample, emit. `now_s` is the caller's clock; it never goes back."""
        plan = self._scheduler.schedule(now_s)
        self._expire(plan)
        self._embed(plan)
        drafts = self._draft(plan)
        batch = build_batch(plan.work, drafts)
        logits = self._run(plan, batch)
        choices, failed = sample_and_verify(batch, logits, drafts, self.config.observe, self._model)
        return self._emit(plan, batch, drafts, choices, failed)

    def check(self, request: EngineRequest) -> None:
        """Raise `InvalidRequest` or `ContextTooLong` if this request can never run here."""
        config = self.config
        if not request.prompt:
            raise InvalidRequest("the prompt has no tokens; send at least one", param="prompt")
        if request.max_tokens < 1:
            raise InvalidRequest(
                f"max_tokens is {request.max_tokens}; ask for at least 1", param="max_tokens"
            )
        if not all(0 <= token < config.vocab_size for token in request.prompt):
            bad = next(t for t in request.prompt if not 0 <= t < config.vocab_size)
            raise InvalidRequest(
                f"prompt has token {bad}; the model knows 0 to {config.vocab_size - 1}", param="prompt"
            )
        if request.embed is not None and not config.width:
            raise InvalidRequest("this model gives no hidden states to make a vector from", param="model")
        check_sampling(request, config.vocab_size)
        total = len(request.prompt) + request.max_tokens
        if total > config.max_context:
            raise ContextTooLong(
                f"prompt has {len(request.prompt):,} tokens and max_tokens is {request.max_tokens:,}; "
                f"the model's context is {config.max_context:,}. Shorten the prompt or ask for fewer tokens.",
                param="max_tokens" if len(request.prompt) < config.max_context else "prompt",
            )
        if -(-(total - 1) // BLOCK_TOKENS) > config.kv_blocks:
            raise ContextTooLong(
                f"prompt and max_tokens need KV for {total - 1:,} tokens; this worker has memory for "
                f"{config.kv_blocks * BLOCK_TOKENS:,}. Ask for fewer tokens or raise kv_memory_mb.",
                param="max_tokens",
            )

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; raises as `check` does, and `Conflict` if its id is in use."""
        self.check(request)
        if request.request_id in self._requests:
            raise Conflict(f"request id {request.request_id!r} is already running", param="request_id")
        if request.embed is not None:  # each of its hidden states is wanted: no prefix can be left out
            request = replace(request, namespace=f"{request.namespace}/{request.request_id}")
        self._requests[request.request_id] = self._scheduler.add(request)

    def cancel(self, request_id: str) -> bool:
        """Drop a request and free its blocks now; False if there is no such request (any more)."""
        sequence = self._requests.get(request_id)
        if sequence is None:
            return False
        self._retire(sequence)
        self.counters.cancelled += 1
        return True

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._requests)

    @property
    def running(self) -> int:
        """Requests that hold blocks."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._scheduler.waiting)

    @property
    def unfinished_tokens(self) -> int:
        """Prompt tokens still to run plus the most that may still be generated, over all requests."""
        return sum(sequence.unfinished_tokens for sequence in self._requests.values())

    @property
    def blocks_spilled(self) -> int:
        """Blocks that are in the second tier only."""
        return self._paging.tree.spilled

    def forget(self, tenant: str) -> Forgotten:
        """Drop a tenant's blocks from the caches; those that running sequences hold are left, and counted."""
        return self._paging.tree.forget(tenant)

    def sweep_forgotten(self) -> Forgotten:
        """Drop what was left and is not held any longer."""
        return self._paging.tree.sweep()

    def learn_speed(self, tokens_per_s: float) -> None:
        """The measured speed of steps: decides whether a spilled block is loaded or computed again."""
        self._paging.learn_speed(tokens_per_s)

    @property
    def usage(self) -> Mapping[tuple[str, RequestClass], Usage]:
        """What was served, by tenant and class; prefill and decode apart."""
        return self._scheduler.shares.usage

    def queues(self) -> dict[RequestClass, Queue]:
        """By class, what waits, and what all its requests may still cost."""
        tokens = dict.fromkeys(CLASSES, 0)
        for sequence in self._requests.values():
            tokens[sequence.request.priority] += sequence.unfinished_tokens
        return {name: Queue(self._scheduler.waiting.waiting(name), tokens[name]) for name in CLASSES}

    @property
    def blocks_used(self) -> int:
        """Blocks that running requests hold."""
        return self.config.kv_blocks - self._paging.pool.free - self._paging.tree.unused

    @property
    def blocks_cached(self) -> int:
        """Blocks that only the prefix tree holds."""
        return self._paging.tree.unused

    def check_integrity(self) -> None:
        """Raise `BlockAccountingError` unless every block is accounted for exactly once."""
        scheduler, paging = self._scheduler, self._paging
        paging.pool.check(paging.holders(scheduler.holding))
        paging.tree.check()
        in_tree = {node.block for node in paging.tree.nodes()}
        owned = {int(b) for s in scheduler.holding for b in s.table[: s.blocks]} - in_tree
        if paging.pool.free + len(in_tree) + len(owned) != self.config.kv_blocks:
            raise BlockAccountingError(
                f"{paging.pool.free} free + {len(in_tree)} cached + {len(owned)} owned "
                f"!= {self.config.kv_blocks} blocks"
            )
        for sequence in scheduler.running:
            if [node.block for node in sequence.path] != sequence.table[: len(sequence.path)].tolist():
                raise BlockAccountingError(f"{sequence.request.request_id}: table and tree path differ")
        if any(s.blocks or s.path or s.computed for s in scheduler.waiting):
            raise BlockAccountingError("a waiting request holds blocks")
        if {id(s) for s in self._requests.values()} != {
            id(s) for s in (*scheduler.running, *scheduler.waiting)
        }:
            raise BlockAccountingError("a request is neither running nor waiting, or both")

    def _expire(self, plan: Plan) -> None:
        """Forget the requests whose deadline has passed; the scheduler has taken their blocks back."""
        for expired in plan.expired:
            sequence = self._requests.pop(expired.request_id)
            if self._speculator is not None:
                self._speculator.forget(sequence)

    def _draft(self, plan: Plan) -> Drafts:
        """Guesses for the sequences that are about to get a token, where the step has room for them."""
        if self._speculator is None:
            return {}
        room = self.config.max_batch_tokens - sum(chunk for _, chunk in plan.work)
        return self._speculator.propose(plan.work, room)

    def _embed(self, plan: Plan) -> None:
        """Run the texts that end in a vector, in a pass of their own; the plan keeps the rest."""
        plan.texts = [(s, chunk) for s, chunk in plan.work if s.request.embed is not None]
        if not plan.texts:
            return
        plan.work = [(s, chunk) for s, chunk in plan.work if s.request.embed is None]
        done = embed_texts(self._model, plan.texts, self.config.width)
        self.counters.embedded_tokens += sum(chunk for _, chunk in plan.texts)
        for sequence, text in done:
            if text is None:
                plan.failed[sequence] = not_finite()
                continue
            self._retire(sequence)
            self.counters.finished += 1
            plan.embedded.append(text)

    def _run(self, plan: Plan, batch: Batch) -> NDArray[np.float32]:
        """One forward pass; returns logits (output rows, vocabulary). What was pending now has KV."""
        rows = len(batch.output_rows)
        if rows > len(self._logits):
            self._logits = np.empty((rows, self.config.vocab_size), np.float32)
        logits = self._logits[:rows]
        if plan.work:
            self._model.forward(
                batch.tokens,
                batch.positions,
                batch.owners,
                batch.tables,
                batch.output_rows,
                logits,
                adapters=batch.adapters,
            )
        self._count(plan, batch)
        for sequence, chunk in plan.work:
            sequence.computed += chunk
        for sequence, scored, first in batch.scored:
            try:
                sequence.score_prompt(scored, logits[first : first + len(scored)])
            except UpstreamFailed as error:
                plan.failed[sequence] = error
        return logits

    def _emit(
        self,
        plan: Plan,
        batch: Batch,
        drafts: Drafts,
        choices: Sequence[Choice],
        failures: Mapping[RunningSequence, TiltyardError],
    ) -> StepResult:
        """Share what is now certain through the prefix tree, retire who has finished, and say what happened."""
        failures = {**failures, **plan.failed}
        choices = [choice for choice in choices if choice.sequence not in plan.failed]
        for sequence, _ in plan.work:
            self._paging.remember(sequence)
            if sequence.prompt_scores is not None:
                sequence.prompt_scores.remember(sequence.path)
        if self._speculator is not None:
            self._speculator.learn(drafts, choices)
        for choice in choices:
            if choice.finish is not None:
                self._retire(choice.sequence, finished=True)
                self.counters.finished += 1
        for sequence in failures:
            self._retire(sequence)
        failed = [FailedRequest(s.request.request_id, error) for s, error in failures.items()]
        self.counters.generated_tokens += len(choices)
        return StepResult(
            emitted=tuple(map(_emitted, choices)),
            admitted=tuple(s.request.request_id for s in plan.admitted),
            preempted=tuple(s.request.request_id for s in plan.preempted),
            expired=tuple(plan.expired),
            embedded=tuple(plan.embedded),
            failed=tuple(failed),
            batch_tokens=len(batch.tokens) + sum(chunk for _, chunk in plan.texts),
            batch_sequences=len(plan.work) + len(plan.texts),
            batch=tuple((s.request.request_id, chunk) for s, chunk in (*plan.work, *plan.texts)),
        )

    def _retire(self, sequence: RunningSequence, *, finished: bool = False) -> None:
        del self._requests[sequence.request.request_id]
        if self._speculator is not None:
            self._speculator.forget(sequence)
        if finished:
            self._scheduler.finish(sequence)
        else:
            self._scheduler.drop(sequence)

    def _count(self, plan: Plan, batch: Batch) -> None:
        counters, total = self.counters, len(batch.tokens)
        counters.rows += total
        counters.context_tokens += int(batch.positions.sum())
        prefills = [(s, chunk) for s, chunk in plan.work if not s.outputs or chunk > 1]
        counters.steps += 1
        counters.prefill_chunks += len(prefills)
        counters.partial_prefill_chunks += sum(chunk < s.pending for s, chunk in prefills)
        counters.prompt_tokens += sum(chunk for _, chunk in prefills)
        counters.mixed_steps += 0 < len(prefills) < len(plan.work)
        counters.peak_batch_sequences = max(counters.peak_batch_sequences, len(plan.work))
        counters.peak_batch_tokens = max(counters.peak_batch_tokens, total)


def _emitted(choice: Choice) -> EmittedToken:
    sequence = choice.sequence
    return EmittedToken(
        request_id=sequence.request.request_id,
        token=choice.sampled.token,
        logprob=choice.sampled.logprob,
        top=choice.sampled.top,
        finish=choice.finish,
        cached_tokens=sequence.cached_tokens or 0,
        first=choice.number == 1,
        kv_blocks=sequence.peak_blocks,
        drafted_tokens=sequence.drafted_tokens,
        accepted_tokens=sequence.accepted_tokens,
        prompt_scores=sequence.scores if choice.number == 1 else None,
    )

"""The engine: requests in, one step at a time, tokens out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.blocks import BlockAccountingError
from tiltyard.engine.limits import check_sampling
from tiltyard.engine.request import EmittedToken, EngineCounters, EngineRequest, Finish, StepResult
from tiltyard.engine.sampler import Sampled, sample
from tiltyard.engine.scheduler import Plan, Scheduler
from tiltyard.engine.sequence import RunningSequence
from tiltyard.errors import ConfigurationError, Conflict, ContextTooLong, InvalidRequest
from tiltyard.kernels import BLOCK_TOKENS

Observer: TypeAlias = Callable[[str, int, NDArray[np.float32]], None]
"""Called with `(request id, position of the token to choose, row of logits)`; the row is the model's own."""


class ForwardModel(Protocol):
    """What the engine needs of `kernels.NativeModel`; KV blocks have been allocated."""

    def forward(  # noqa: PLR0917 - the native function's own order
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        sequences: NDArray[np.int32],
        tables: NDArray[np.int32],
        output_rows: NDArray[np.int32],
        logits: NDArray[np.float32],
        *,
        adapters: NDArray[np.int32] | None = None,
    ) -> None:
        """Run `tokens` (T), write their KV through `tables` (S, W) and a row of logits per output row.

        `adapters` (S): the LoRA adapter of each sequence, 0 for none.
        """


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

    def __init__(self, model: ForwardModel, config: EngineConfig) -> None:
        self.config = config
        self.counters = EngineCounters()
        self._model = model
        self._requests: dict[str, RunningSequence] = {}
        self._scheduler = Scheduler(
            blocks=config.kv_blocks,
            block_tokens=BLOCK_TOKENS,
            max_batch_tokens=config.max_batch_tokens,
            max_sequences=config.max_sequences,
            counters=self.counters,
        )
        self._logits = np.empty((0, config.vocab_size), np.float32)
        self._now_s = 0.0

    def step(self, now_s: float = 0.0) -> StepResult:
        """Schedule, run, sample, emit. `now_s` is the caller's clock; it never goes back."""
        self._now_s = now_s
        plan = self._scheduler.schedule()
        ready, logits = self._run(plan)
        sampled = sample(ready, logits)
        return self._emit(plan, ready, sampled)

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
        sequence = RunningSequence(request, BLOCK_TOKENS)
        self._requests[request.request_id] = sequence
        self._scheduler.waiting.append(sequence)

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
    def blocks_used(self) -> int:
        """Blocks that running requests hold."""
        return self.config.kv_blocks - self._scheduler.pool.free - self._scheduler.tree.unused

    @property
    def blocks_cached(self) -> int:
        """Blocks that only the prefix tree holds."""
        return self._scheduler.tree.unused

    def check_integrity(self) -> None:
        """Raise `BlockAccountingError` unless every block is accounted for exactly once."""
        scheduler = self._scheduler
        scheduler.pool.check(scheduler.holders())
        scheduler.tree.check()
        in_tree = {node.block for node in scheduler.tree.nodes()}
        owned = {int(b) for s in scheduler.running for b in s.table[: s.blocks]} - in_tree
        if scheduler.pool.free + len(in_tree) + len(owned) != self.config.kv_blocks:
            raise BlockAccountingError(
                f"{scheduler.pool.free} free + {len(in_tree)} cached + {len(owned)} owned "
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

    def _run(self, plan: Plan) -> tuple[list[RunningSequence], NDArray[np.float32]]:
        """One forward pass; returns the sequences that get a token, with logits (sequence, vocabulary)."""
        work = plan.work
        total = sum(chunk for _, chunk in work)
        tokens, positions, owners = (np.empty(total, np.int32) for _ in range(3))
        tables = np.zeros((len(work), max((s.blocks for s, _ in work), default=0)), np.int32)
        ready: list[RunningSequence] = []
        output_rows: list[int] = []
        at = 0
        for row, (sequence, chunk) in enumerate(work):
            start, end = sequence.computed, sequence.computed + chunk
            tokens[at : at + chunk] = sequence.tokens[start:end]
            positions[at : at + chunk] = np.arange(start, end)
            owners[at : at + chunk] = row
            tables[row, : sequence.blocks] = sequence.table[: sequence.blocks]
            at += chunk
            if end == len(sequence.tokens):
                ready.append(sequence)
                output_rows.append(at - 1)
        if len(ready) > len(self._logits):
            self._logits = np.empty((len(ready), self.config.vocab_size), np.float32)
        logits = self._logits[: len(ready)]
        if work:
            adapters = np.array([sequence.request.adapter for sequence, _ in work], np.int32)
            self._model.forward(
                tokens,
                positions,
                owners,
                tables,
                np.array(output_rows, np.int32),
                logits,
                adapters=adapters if adapters.any() else None,
            )
        self._count(plan, total)
        for sequence, chunk in work:
            sequence.computed += chunk
            self._scheduler.remember(sequence)
        if self.config.observe is not None:
            for sequence, logits_row in zip(ready, logits, strict=True):
                self.config.observe(sequence.request.request_id, len(sequence.tokens), logits_row)
        return ready, logits

    def _emit(self, plan: Plan, ready: list[RunningSequence], sampled: list[Sampled]) -> StepResult:
        emitted: list[EmittedToken] = []
        for sequence, choice in zip(ready, sampled, strict=True):
            request = sequence.request
            sequence.append(choice.token)
            finish: Finish | None = None
            if choice.token in request.stop_ids:
                finish = "stop"
            elif sequence.outputs >= request.max_tokens:
                finish = "length"
            emitted.append(
                EmittedToken(
                    request_id=request.request_id,
                    token=choice.token,
                    logprob=choice.logprob,
                    top=choice.top,
                    finish=finish,
                    cached_tokens=sequence.cached_tokens or 0,
                    first=sequence.outputs == 1,
                    kv_blocks=sequence.peak_blocks,
                )
            )
            if finish is not None:
                self._retire(sequence)
                self.counters.finished += 1
        self.counters.generated_tokens += len(emitted)
        return StepResult(
            emitted=tuple(emitted),
            admitted=tuple(s.request.request_id for s in plan.admitted),
            preempted=tuple(s.request.request_id for s in plan.preempted),
            batch_tokens=sum(chunk for _, chunk in plan.work),
            batch_sequences=len(plan.work),
            batch=tuple((s.request.request_id, chunk) for s, chunk in plan.work),
        )

    def _retire(self, sequence: RunningSequence) -> None:
        del self._requests[sequence.request.request_id]
        if sequence in self._scheduler.running:
            self._scheduler.running.remove(sequence)
            self._scheduler.release(sequence)
        else:
            self._scheduler.waiting.remove(sequence)

    def _count(self, plan: Plan, total: int) -> None:
        counters = self.counters
        prefills = [(s, chunk) for s, chunk in plan.work if not s.outputs or chunk > 1]
        counters.steps += 1
        counters.prefill_chunks += len(prefills)
        counters.partial_prefill_chunks += sum(chunk < s.pending for s, chunk in prefills)
        counters.prompt_tokens += sum(chunk for _, chunk in prefills)
        counters.mixed_steps += 0 < len(prefills) < len(plan.work)
        counters.peak_batch_sequences = max(counters.peak_batch_sequences, len(plan.work))
        counters.peak_batch_tokens = max(counters.peak_batch_tokens, total)

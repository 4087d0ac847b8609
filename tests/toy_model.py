"""A toy model whose next token depends on every token readable through the block tables, and on nothing else.

It keeps tokens in "KV" blocks as the native model keeps keys and values, so a wrong table, a block freed too
early or a position that was never run changes the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.engine import Engine, EngineConfig
from tiltyard.engine.fairness import FairnessConfig
from tiltyard.engine.request import EngineRequest, RequestClass, SamplingSettings
from tiltyard.engine.sequence import RunningSequence
from tiltyard.engine.speculation import Speculation, StepCosts
from tiltyard.engine.spill import SpillStore
from tiltyard.kernels import BLOCK_TOKENS, choose_rows

VOCABULARY = 61
NEVER_WRITTEN = -1


class ToyModel:
    """Logits are a hash of `(position, token)` over all positions up to the row's own."""

    def __init__(self, blocks: int) -> None:
        self.kv = np.full((blocks, BLOCK_TOKENS, 2), NEVER_WRITTEN, np.int64)
        self.calls: list[int] = []

    def copy_block(self, source: int, target: int) -> None:
        self.kv[target] = self.kv[source]

    def read_block(self, block: int) -> bytes:
        return self.kv[block].tobytes()

    def write_block(self, block: int, data: bytes) -> None:
        self.kv[block] = np.frombuffer(data, np.int64).reshape(self.kv[block].shape)

    choose_rows = staticmethod(choose_rows)

    def forward(  # noqa: PLR0917
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
        self.calls.append(len(tokens))
        blocks = tables[sequences, positions // BLOCK_TOKENS]
        slots = positions % BLOCK_TOKENS
        assert len(set(zip(blocks.tolist(), slots.tolist(), strict=True))) == len(tokens), (
            "two writers of one slot"
        )
        self.kv[blocks, slots, 0] = positions
        self.kv[blocks, slots, 1] = tokens
        for row, index in enumerate(output_rows.tolist()):
            p = np.arange(positions[index] + 1)
            seen = self.kv[tables[sequences[index], p // BLOCK_TOKENS], p % BLOCK_TOKENS]
            logits[row] = toy_logits(seen)


def toy_logits(seen: NDArray[np.int64]) -> NDArray[np.float32]:
    """`seen`: (positions, 2) of position and token."""
    state = np.uint64(1469598103934665603)
    with np.errstate(over="ignore"):
        weights = (np.arange(len(seen), dtype=np.uint64) * np.uint64(2) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        mixed = (seen[:, 0].astype(np.uint64) * np.uint64(1000003) + seen[:, 1].astype(np.uint64)) * weights
        state ^= mixed.sum(dtype=np.uint64)
        values = (np.arange(1, VOCABULARY + 1, dtype=np.uint64) * state) >> np.uint64(40)
    return (values.astype(np.float32) / np.float32(1 << 22)).astype(np.float32)


def toy_engine(
    blocks: int = 64,
    max_batch_tokens: int = 64,
    max_sequences: int = 8,
    max_context: int = 1024,
    *,
    speculation: Speculation | None = None,
    fairness: FairnessConfig | None = None,
    spill: SpillStore | None = None,
) -> Engine:
    config = EngineConfig(
        kv_blocks=blocks,
        max_batch_tokens=max_batch_tokens,
        max_sequences=max_sequences,
        vocab_size=VOCABULARY,
        max_context=max_context,
        speculation=speculation,
        fairness=fairness or FairnessConfig(),
    )
    return Engine(ToyModel(blocks), config, spill)


def request(
    name: str,
    prompt: list[int] | tuple[int, ...] | range,
    max_tokens: int = 8,
    *,
    namespace: str = "n",
    stop_ids: frozenset[int] = frozenset(),
    top_logprobs: int | None = None,
    tenant: str = "default",
    priority: RequestClass = "interactive",
    queue_deadline_s: float | None = None,
    deadline_s: float | None = None,
    **sampling: object,
) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt=tuple(t % VOCABULARY for t in prompt),
        sampling=SamplingSettings(**{"temperature": 0.0, **sampling}),  # type: ignore[arg-type]
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        namespace=namespace,
        top_logprobs=top_logprobs,
        tenant=tenant,
        priority=priority,
        queue_deadline_s=queue_deadline_s,
        deadline_s=deadline_s,
    )


def run(engine: Engine, *, limit: int = 10_000) -> dict[str, list[int]]:
    """Step until nothing is left, checking integrity after each step; tokens by request."""
    answers: dict[str, list[int]] = {}
    for _ in range(limit):
        if not engine.has_work:
            return answers
        for token in engine.step().emitted:
            answers.setdefault(token.request_id, []).append(token.token)
        engine.check_integrity()
    raise AssertionError(f"still unfinished after {limit} steps")


def solo(one: EngineRequest) -> list[int]:
    """The answer of a request that has a large engine to itself, a token a step."""
    return list(
        _solo(
            replace(
                one,
                request_id="solo",
                namespace="solo",
                tenant="solo",
                priority="interactive",
                queue_deadline_s=None,
                deadline_s=None,
            )
        )
    )


class Prophet:
    """A drafter that knows each answer and errs where told: `flaws(request id, position)` is true."""

    token_cost = 0.0

    def __init__(self, flaws: Callable[[str, int], bool]) -> None:
        self._flaws = flaws
        self.known: set[RunningSequence] = set()
        self.lessons: list[tuple[str, int, int]] = []

    def chances(self, sequence: RunningSequence, most: int, least: float) -> list[float]:
        self.known.add(sequence)
        return [0.99**i for i in range(1, min(most, 5) + 1)]

    def draft(self, lengths: Mapping[RunningSequence, int]) -> dict[RunningSequence, list[int]]:
        drafts = {}
        for sequence, length in lengths.items():
            # Without its stop tokens the answer goes on: a guess may well lie behind the end.
            answer = solo(replace(sequence.request, stop_ids=frozenset()))
            at = sequence.outputs
            drafts[sequence] = [
                (token + self._flaws(sequence.request.request_id, at + i)) % VOCABULARY
                for i, token in enumerate(answer[at : at + length])
            ]
        return drafts

    def learn(self, sequence: RunningSequence, drafted: int, accepted: int) -> None:
        self.lessons.append((sequence.request.request_id, drafted, accepted))

    def forget(self, sequence: RunningSequence) -> None:
        self.known.discard(sequence)


FREE_ROWS = StepCosts((1, 2), (1.0, 1.0))
"""Further rows cost nothing: whatever can be guessed is."""


def prophecy(flaws: Callable[[str, int], bool]) -> Speculation:
    """Guesses that are right but for some."""
    return Speculation(Prophet(flaws), FREE_ROWS)


@cache
def _solo(one: EngineRequest) -> tuple[int, ...]:
    engine = toy_engine(blocks=256, max_batch_tokens=1, max_sequences=1, max_context=4096)
    engine.submit(one)
    return tuple(run(engine)[one.request_id])

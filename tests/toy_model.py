"""A toy model whose next token depends on every token readable through the block tables, and on nothing else.

It keeps tokens in "KV" blocks as the native model keeps keys and values, so a wrong table, a block freed too
early or a position that was never run changes the answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.engine import Engine, EngineConfig
from tiltyard.engine.request import EngineRequest, SamplingSettings
from tiltyard.kernels import BLOCK_TOKENS

VOCABULARY = 61
NEVER_WRITTEN = -1


class ToyModel:
    """Logits are a hash of `(position, token)` over all positions up to the row's own."""

    def __init__(self, blocks: int) -> None:
        self.kv = np.full((blocks, BLOCK_TOKENS, 2), NEVER_WRITTEN, np.int64)
        self.calls: list[int] = []

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
    blocks: int = 64, max_batch_tokens: int = 64, max_sequences: int = 8, max_context: int = 1024
) -> Engine:
    config = EngineConfig(
        kv_blocks=blocks,
        max_batch_tokens=max_batch_tokens,
        max_sequences=max_sequences,
        vocab_size=VOCABULARY,
        max_context=max_context,
    )
    return Engine(ToyModel(blocks), config)


def request(
    name: str,
    prompt: list[int] | tuple[int, ...] | range,
    max_tokens: int = 8,
    *,
    namespace: str = "n",
    stop_ids: frozenset[int] = frozenset(),
    top_logprobs: int | None = None,
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
    return list(_solo(replace(one, request_id="solo", namespace="solo")))


@cache
def _solo(one: EngineRequest) -> tuple[int, ...]:
    engine = toy_engine(blocks=256, max_batch_tokens=1, max_sequences=1, max_context=4096)
    engine.submit(one)
    return tuple(run(engine)[one.request_id])

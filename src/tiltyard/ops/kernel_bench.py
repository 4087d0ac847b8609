"""How fast a loaded model computes, by operator, and what share of the machine's measured ceilings that is.

rates = measure_ceilings(native, seconds=0.5)
row = measure(native, vocab, Work("decode", batch=8, context=200), rates)
row.tokens_per_s, row.read_share, row.integer_share
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.kernels import BLOCK_TOKENS, NativeModel, ceilings, sample_rows

SAMPLERS = {
    "greedy": (0.0, 0, 1.0),
    "temperature 1": (1.0, 0, 1.0),
    "top-p 0.95": (0.8, 0, 0.95),
    "top-k 50": (0.8, 50, 1.0),
}
"""Temperature, top_k and top_p of the measured draws."""


@dataclass(frozen=True, slots=True)
class Work:
    """One step: `decode` runs one new token of each of `batch` sequences, `prefill` `batch` tokens of one."""

    kind: Literal["prefill", "decode"]
    batch: int
    context: int
    """Position of the last token of each sequence."""

    @property
    def name(self) -> str:
        """As the table shows it."""
        return f"prefill {self.batch}" if self.kind == "prefill" else f"decode x {self.batch}"

    @property
    def sequences(self) -> int:
        """Sequences in the step."""
        return 1 if self.kind == "prefill" else self.batch

    @property
    def blocks(self) -> int:
        """KV blocks that the step needs."""
        return self.sequences * (self.context // BLOCK_TOKENS + 1)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the machine did at most, a second, in the same run."""

    read_bytes: float
    int4: float
    int8: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The best step of one kind of work."""

    isa: str
    threads: int
    work: str
    tokens_per_s: float
    seconds: float
    operators: dict[str, float]
    """Seconds of each operator in that step, waits included."""
    read_share: float
    """Bytes of weights and KV that the step reads, over its time and the measured read bandwidth."""
    integer_share: float | None
    """Time that the integer multiply-adds alone would take at their peak, over the step's; None without any."""


def plan(batches: tuple[int, ...], prefill: int, context: int, max_positions: int) -> tuple[Work, ...]:
    """List the steps to measure; raises `InvalidRequest` for sizes that the model does not know."""
    longest = max(context, prefill - 1)
    if longest >= max_positions:
        raise InvalidRequest(
            f"a step would reach position {longest:,}; the model knows {max_positions:,}. "
            "Lower --context or --prefill.",
            param="context",
        )
    steps = [Work("prefill", prefill, prefill - 1)] if prefill else []
    return (*steps, *(Work("decode", batch, context) for batch in batches))


def measure_ceilings(native: NativeModel, seconds: float = 1.0) -> Ceilings:
    """Measure the machine with the model's instruction set and threads, in about `seconds`.

    The memory that is read is as large as the model's weights, so that caches help as much as they help it.
    """
    rates = ceilings(isa=native.isa, threads=native.threads, read_bytes=native.weight_bytes, seconds=seconds)
    return Ceilings(read_bytes=rates["read_bytes"], int4=rates["int4"], int8=rates["int8"])


def measure(
    native: NativeModel, vocab_size: int, work: Work, limits: Ceilings, seconds: float = 1.0
) -> Measured:
    """Run `work` for about `seconds`, at least twice after a first time, and report the best step.

    KV blocks 0 to `work.blocks` must have been allocated; what lies in them is overwritten.
    """
    step = _Step(native, vocab_size, work)
    step.run()
    best = float("inf")
    operators: dict[str, float] = {}
    end = time.perf_counter() + seconds
    count = 0
    while count < 2 or time.perf_counter() < end:
        native.reset_operator_seconds()
        start = time.perf_counter()
        step.run()
        took = time.perf_counter() - start
        count += 1
        if took < best:
            best, operators = took, native.operator_seconds
    read = native.weight_bytes + native.kv_bytes_per_block * work.blocks
    return Measured(
        isa=native.isa,
        threads=native.threads,
        work=work.name,
        tokens_per_s=work.batch / best,
        seconds=best,
        operators=operators,
        read_share=read / best / limits.read_bytes,
        integer_share=_integer_seconds(native, work, limits) / best or None,
    )


def measure_sampling(
    native: NativeModel, vocab_size: int, rows: int, seconds: float = 0.2
) -> Iterator[tuple[str, float]]:
    """Seconds to draw one token, in a step of `rows`, for each of `SAMPLERS`."""
    step = _Step(native, vocab_size, Work("decode", 1, 0))
    step.run()
    logits = np.repeat(step.logits, rows, axis=0)
    for name, (temperature, top_k, top_p) in SAMPLERS.items():
        best = float("inf")
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            sample_rows(
                logits,
                np.full(rows, temperature, np.float32),
                np.full(rows, top_k, np.int32),
                np.full(rows, top_p, np.float32),
                np.zeros(rows, np.float32),
                np.arange(rows, dtype=np.uint64),
                np.ones(rows, np.int64),
                isa=native.isa,
            )
            best = min(best, time.perf_counter() - start)
        yield name, best / rows


class _Step:
    """The arrays of one step, with random tokens."""

    def __init__(self, native: NativeModel, vocab_size: int, work: Work) -> None:
        rng = np.random.default_rng(0)
        rows = work.batch if work.kind == "prefill" else 1
        width = work.context // BLOCK_TOKENS + 1
        self._native = native
        self._tables = np.arange(work.blocks, dtype=np.int32).reshape(work.sequences, width)
        self._tokens = rng.integers(0, vocab_size, work.batch).astype(np.int32)
        positions = np.arange(work.context - rows + 1, work.context + 1, dtype=np.int32)
        self._positions: NDArray[np.int32] = np.tile(positions, work.sequences)
        self._owners = np.repeat(np.arange(work.sequences, dtype=np.int32), rows)
        self._outputs = np.arange(rows - 1, work.batch, rows, dtype=np.int32)
        self.logits: NDArray[np.float32] = np.empty((work.sequences, vocab_size), np.float32)

    def run(self) -> None:
        self._native.forward(
            self._tokens, self._positions, self._owners, self._tables, self._outputs, self.logits
        )


def _integer_seconds(native: NativeModel, work: Work, limits: Ceilings) -> float:
    adds = native.multiply_adds
    seconds = 0.0
    for kind, rate in (("int4", limits.int4), ("int8", limits.int8)):
        seconds += (adds[f"layers_{kind}"] * work.batch + adds[f"head_{kind}"] * work.sequences) / rate
    return seconds

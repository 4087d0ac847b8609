"""The real engine under a virtual clock: everything but the arithmetic of the model is what serves.

A stub stands in for the model and says what its step would have cost; the clock moves by that. The cost is linear,
as on a CPU::

    seconds = per_step + per_token * tokens + per_pair * (token, position before it) pairs

`python bench/virtual_engine.py MODEL.gguf` measures the three on this machine. `DEFAULT_COST` is SmolLM2-135M-Instruct Q4_1
on two AVX2 cores; results are ratios, which hardly depend on it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.engine import Engine, EngineConfig
from tiltyard.engine.fairness import FairnessConfig
from tiltyard.engine.request import EngineCounters, EngineRequest, RequestClass, SamplingSettings, StepResult
from tiltyard.engine.spill import SpillStore
from tiltyard.kernels import choose_isa, choose_rows
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.worker.load import load_native

VOCABULARY = 64
GREEDY = SamplingSettings(temperature=0.0)


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step."""

    per_step: float
    per_token: float
    per_pair: float

    def of(self, tokens: int, pairs: int) -> float:
        """What a step of `tokens` costs that look at `pairs` positions in all."""
        return self.per_step + self.per_token * tokens + self.per_pair * pairs


DEFAULT_COST = StepCost(per_step=4e-3, per_token=1e-3, per_pair=3.5e-7)


class VirtualModel:
    """Costs what a model costs, and always says token 0."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self.last_step_s = 0.0

    choose_rows = staticmethod(choose_rows)

    def forward(  # noqa: PLR0917
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        sequences: NDArray[np.int32],
        tables: NDArray[np.int32],
        output_rows: NDArray[np.int32],
        logits: NDArray[np.float32],
        adapters: NDArray[np.int32] | None = None,
    ) -> None:
        """Add the step's cost up."""
        del sequences, tables, output_rows, adapters
        logits[:] = 0.0
        self.last_step_s = self._cost.of(len(tokens), int(positions.sum()))

    def copy_block(self, source: int, target: int) -> None:
        """Nothing to copy."""

    def read_block(self, block: int) -> bytes:
        """A block's name stands for its bytes."""
        return block.to_bytes(8)

    def write_block(self, block: int, data: bytes) -> None:
        """Nothing to write."""


@dataclass(frozen=True)
class Arrival:
    """A request and when it comes."""

    at_s: float
    request: EngineRequest


@dataclass
class Outcome:
    """What became of a replay; times are virtual seconds."""

    counters: EngineCounters
    first_token_s: dict[str, float] = field(default_factory=dict)
    """From arrival to the first token, by request."""
    finished_s: dict[str, float] = field(default_factory=dict)
    """When a request ended."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Tokens generated, by request."""
    longest_gap_s: dict[str, float] = field(default_factory=dict)
    """Longest wait between two tokens of a request."""
    end_s: float = 0.0
    busy_s: float = 0.0

    def first(self, quantile: float, prefix: str = "") -> float:
        """A quantile of the time to first token over the requests whose names start with `prefix`."""
        return quantile_of([s for name, s in self.first_token_s.items() if name.startswith(prefix)], quantile)


def quantile_of(values: Sequence[float], quantile: float) -> float:
    """The smallest value that so many are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


def virtual_engine(
    *,
    blocks: int,
    cost: StepCost = DEFAULT_COST,
    max_batch_tokens: int = 256,
    max_sequences: int = 64,
    max_context: int = 1 << 20,
    fairness: FairnessConfig | None = None,
    spill: SpillStore | None = None,
) -> tuple[Engine, VirtualModel]:
    """A real engine over a stub model."""
    model = VirtualModel(cost)
    config = EngineConfig(
        kv_blocks=blocks,
        max_batch_tokens=max_batch_tokens,
        max_sequences=max_sequences,
        vocab_size=VOCABULARY,
        max_context=max_context,
        fairness=fairness or FairnessConfig(),
    )
    return Engine(model, config, spill), model


def replay(
    engine: Engine,
    model: VirtualModel,
    arrivals: Sequence[Arrival],
    *,
    until_s: float = float("inf"),
    watch: Callable[[float, StepResult], None] | None = None,
) -> Outcome:
    """Let requests arrive in virtual time until all have ended, or until `until_s`."""
    outcome = Outcome(engine.counters)
    arrived = {a.request.request_id: a.at_s for a in arrivals}
    last: dict[str, float] = {}
    coming = sorted(arrivals, key=lambda a: a.at_s)
    now, index = 0.0, 0
    while now < until_s and (index < len(coming) or engine.has_work):
        if not engine.has_work and index < len(coming):
            now = max(now, coming[index].at_s)
        while index < len(coming) and coming[index].at_s <= now:
            engine.submit(coming[index].request)
            index += 1
        model.last_step_s = 0.0
        result = engine.step(now)
        now += model.last_step_s
        outcome.busy_s += model.last_step_s
        for token in result.emitted:
            name = token.request_id
            if token.first:
                outcome.first_token_s[name] = now - arrived[name]
            else:
                gap = now - last[name]
                outcome.longest_gap_s[name] = max(gap, outcome.longest_gap_s.get(name, 0.0))
            last[name] = now
            outcome.tokens[name] = outcome.tokens.get(name, 0) + 1
            if token.finish:
                outcome.finished_s[name] = now
        if watch is not None:
            watch(now, result)
    outcome.end_s = now
    return outcome


def prompt_of(length: int, seed: int) -> tuple[int, ...]:
    """A prompt that shares nothing with another seed's."""
    return tuple(random.Random(seed).choices(range(1, VOCABULARY), k=length))


def engine_request(
    name: str,
    prompt: tuple[int, ...],
    answer_tokens: int,
    *,
    tenant: str = "default",
    priority: RequestClass = "interactive",
) -> EngineRequest:
    """A request for exactly so many tokens."""
    return EngineRequest(
        request_id=name,
        prompt=prompt,
        sampling=GREEDY,
        max_tokens=answer_tokens,
        stop_ids=frozenset(),
        namespace=f"bench/{tenant}",
        tenant=tenant,
        priority=priority,
    )


@dataclass(frozen=True)
class Traced:
    """One line of a trace."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int


def azure_conversations(data: Path, count: int | None = None) -> list[Traced]:
    """The Azure LLM inference trace of 2023, conversations (CC-BY-4.0); seconds from its first request."""
    path = data / "serving/traces/azure/AzureLLMInferenceTrace_conv.csv"
    with path.open(encoding="utf-8") as lines:
        rows = list(itertools.islice(csv.DictReader(lines), count))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return [
        Traced(
            (at - times[0]).total_seconds(), int(row["ContextTokens"]), max(1, int(row["GeneratedTokens"]))
        )
        for at, row in zip(times, rows, strict=True)
    ]


def stretched(traced: Sequence[Traced], load: float, cost: StepCost = DEFAULT_COST) -> list[Traced]:
    """The same arrivals, slower or faster, so that the machine would be busy for `load` of the time.

    A request is taken to cost its prompt alone and its answer in company (no cost per step).
    """
    work = sum(
        cost.of(t.prompt_tokens + t.answer_tokens, (t.prompt_tokens + t.answer_tokens) ** 2 // 2)
        - cost.per_step
        for t in traced
    )
    factor = work / load / traced[-1].at_s
    return [Traced(t.at_s * factor, t.prompt_tokens, t.answer_tokens) for t in traced]


def arrivals_of(
    traced: Sequence[Traced],
    name: str,
    *,
    tenant: str = "default",
    priority: RequestClass = "interactive",
    seed: int = 0,
) -> list[Arrival]:
    """A trace's requests, named `<name><index>`, with prompts that share nothing."""
    return [
        Arrival(
            t.at_s,
            engine_request(
                f"{name}{i}",
                prompt_of(t.prompt_tokens, seed * 1_000_003 + i),
                t.answer_tokens,
                tenant=tenant,
                priority=priority,
            ),
        )
        for i, t in enumerate(traced)
    ]


def measured_cost(model_path: Path, threads: int) -> StepCost:
    """Fit the three constants to steps of the real model."""
    with GgufFile.open(model_path) as gguf:
        architecture = Architecture.from_gguf(gguf)
        native = load_native(
            gguf, architecture, quantization="as-stored", threads=threads, isa=choose_isa("auto")
        )
    native.allocate_kv(1024, "f16")
    rows, seconds = [], []
    for sequences, chunk, start in _shapes():
        tokens = sequences * chunk
        positions = np.tile(np.arange(start, start + chunk, dtype=np.int32), sequences)
        width = -(-(start + chunk) // 32)
        tables = np.arange(sequences * width, dtype=np.int32).reshape(sequences, width)
        owners = np.repeat(np.arange(sequences, dtype=np.int32), chunk)
        outputs = np.arange(sequences, dtype=np.int32) * chunk + chunk - 1
        logits = np.empty((sequences, architecture.vocab_size), np.float32)
        times = []
        for _ in range(5):
            began = time.perf_counter()
            native.forward(np.ones(tokens, np.int32), positions, owners, tables, outputs, logits)
            times.append(time.perf_counter() - began)
        rows.append((1.0, tokens, int(positions.sum())))
        seconds.append(statistics.median(times))
    weights = 1 / np.array(seconds)  # relative errors
    fit, *_ = np.linalg.lstsq(np.array(rows) * weights[:, None], np.ones(len(rows)), rcond=None)
    return StepCost(*(max(0.0, float(value)) for value in fit))


def _shapes() -> Iterator[tuple[int, int, int]]:
    """`(sequences, tokens each, position of the first)`."""
    yield from ((1, 1, 0), (1, 1, 1000), (4, 1, 200), (8, 1, 500), (16, 1, 500), (32, 1, 300))
    yield from ((1, 64, 0), (1, 64, 1000), (1, 128, 0), (1, 256, 0), (1, 256, 1000))


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print(f"\n{title}\n")
    print("| " + " | ".join(head) + " |")
    print("| " + " | ".join("---" for _ in head) + " |")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


def data_folder(given: str | None) -> Path:
    """Where the public test data is."""
    root = Path(__file__).resolve().parent.parent
    return Path(given) if given else root.parent / "shared" / "data"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(measured_cost(options.model, options.threads))

"""What LoRA adapters cost in a step: a GGUF model with none, with one for all sequences, and with one for each.

    python bench/adapters.py MODEL.gguf [--rank 16] [--threads 2] [--batches 1,8,32]

Random adapters of q, k, v, o, gate, up and down. Decode steps at position 128, taken in turns; the median of the
rounds' ratios to the step without adapters.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tiltyard.kernels import NativeModel
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.worker.load import load_native

POSITION, BLOCKS, ROUNDS, STEPS = 128, 5, 15, 6
SITES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def add_random(model: NativeModel, architecture: Architecture, rank: int, seed: int) -> int:
    """A random adapter of every matrix of every layer."""
    rng = np.random.default_rng(seed)
    matrices = {}
    for name, shape in architecture.tensor_shapes().items():
        if name.split(".")[-2] in SITES:
            rows, columns = shape
            down = rng.standard_normal((rank, columns), np.float32) / np.float32(columns**0.5)
            matrices[name] = (down, rng.standard_normal((rows, rank), np.float32) * np.float32(0.1))
    return model.add_adapter(1.0, matrices)


def seconds(model: NativeModel, vocab: int, batch: int, adapters: NDArray[np.int32] | None) -> float:
    """A few decode steps."""
    tables = np.arange(batch * BLOCKS, dtype=np.int32).reshape(batch, BLOCKS)
    rows = np.arange(batch, dtype=np.int32)
    positions = np.full(batch, POSITION, np.int32)
    logits = np.empty((batch, vocab), np.float32)
    began = time.perf_counter()
    for _ in range(STEPS):
        model.forward(rows + 100, positions, rows, tables, rows, logits, adapters=adapters)
    return time.perf_counter() - began


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", default="1,8,32")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    with GgufFile.open(options.model) as gguf:
        architecture = Architecture.from_gguf(gguf)
        model = load_native(gguf, architecture, quantization="as-stored", threads=options.threads, isa="auto")
    numbers = [add_random(model, architecture, options.rank, seed) for seed in range(max(batches))]
    model.allocate_kv(max(batches) * BLOCKS, "f16")
    print(f"{options.model.name}, rank {options.rank}, {options.threads} threads, {model.isa}\n")
    print("| batch | tokens/s without | with one adapter | with one each |")
    print("| --- | --- | --- | --- |")
    for batch in batches:
        cases = [None, np.full(batch, numbers[0], np.int32), np.array(numbers[:batch], np.int32)]
        times: list[list[float]] = [[] for _ in cases]
        for _ in range(ROUNDS):
            for case, spent in zip(cases, times, strict=True):
                spent.append(seconds(model, architecture.vocab_size, batch, case))
        plain = batch * STEPS / min(times[0])
        ratios = [statistics.median(t / p for t, p in zip(ts, times[0], strict=True)) for ts in times[1:]]
        print(f"| {batch} | {plain:.0f} | " + " | ".join(f"{ratio - 1:+.0%} time" for ratio in ratios) + " |")


if __name__ == "__main__":
    main()

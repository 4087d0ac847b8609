"""Rates of the compiled kernels on a GGUF file, and their share of what this machine's memory could give.

    python bench/kernels.py [model.gguf] [--threads 2] [--isa auto] [--kv f16]

Prints prefill and decode rates, the time of each operator, and for decode at batch 1 the bytes that it must
read a second against the read bandwidth measured here (every thread summing its own large array).
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kernels"))

from kernel_models import read_gguf

from tiltyard.kernels import NativeModel, choose_isa, sample_rows, top_log_probabilities

Call = Callable[[], object]


def best_seconds(call: Call, repeats: int) -> float:
    call()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def read_bandwidth(threads: int) -> float:
    """Bytes a second that `threads` threads read together, from arrays that no cache holds."""
    arrays = [np.ones(32 << 20, np.int64) for _ in range(threads)]  # 256 MB each
    best = 0.0
    for _ in range(3):
        workers = [threading.Thread(target=array.max) for array in arrays]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, sum(a.nbytes for a in arrays) / (time.perf_counter() - start))
    return best


def step(
    model: NativeModel, vocab: int, batch: int, context: int, rows: int
) -> Callable[[], NDArray[np.float32]]:
    """A step of `batch` sequences with `rows` new tokens each, the last at position `context`."""
    rng = np.random.default_rng(0)
    width = context // 32 + 1
    tables = np.arange(batch * width, dtype=np.int32).reshape(batch, width)
    tokens = rng.integers(0, vocab, batch * rows).astype(np.int32)
    positions = np.tile(np.arange(context - rows + 1, context + 1, dtype=np.int32), batch)
    sequences = np.repeat(np.arange(batch, dtype=np.int32), rows)
    outputs = np.arange(rows - 1, batch * rows, rows, dtype=np.int32)
    logits = np.empty((batch, vocab), np.float32)

    def run() -> NDArray[np.float32]:
        model.forward(tokens, positions, sequences, tables, outputs, logits)
        return logits

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path.home() / ".cache" / "tiltyard" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    parser.add_argument("model", nargs="?", type=Path, default=default)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--kv", default="f16", choices=["f16", "int8"])
    parser.add_argument("--context", type=int, default=200)
    arguments = parser.parse_args()
    weights = read_gguf(arguments.model)
    model = weights.native(
        isa=choose_isa(arguments.isa), threads=arguments.threads, kv=arguments.kv, blocks=1024
    )
    print(f"{arguments.model.name}: {model.weight_bytes / 1e6:.1f} MB, {model.isa}, {model.threads} threads")

    def report(name: str, run: Call, tokens: int, repeats: int) -> float:
        model.reset_operator_seconds()
        seconds = best_seconds(run, repeats)
        spent = model.operator_seconds
        total = sum(spent.values())
        shares = " ".join(f"{k} {100 * v / total:.0f}%" for k, v in spent.items())
        print(f"{name:14s} {tokens / seconds:8.0f} tok/s {seconds * 1e3:9.2f} ms   {shares}", flush=True)
        return seconds

    report("prefill 512", step(model, weights.vocab, 1, 511, 512), 512, 4)
    single = 0.0
    for batch in (1, 2, 4, 8, 16, 32):
        seconds = report(
            f"decode x {batch}",
            step(model, weights.vocab, batch, arguments.context, 1),
            batch,
            24 if batch < 16 else 8,
        )
        single = single or seconds
    read = model.weight_bytes + model.kv_bytes_per_block * (arguments.context + 1) / 32
    bandwidth = read_bandwidth(arguments.threads)
    print(
        f"decode x 1 reads {read / 1e6:.1f} MB in {single * 1e3:.2f} ms: {read / single / 1e9:.1f} of "
        f"{bandwidth / 1e9:.1f} GB/s, {100 * read / single / bandwidth:.0f}% of the read bandwidth"
    )
    row = step(model, weights.vocab, 1, arguments.context, 1)()
    for name, (temperature, top_k, top_p) in {
        "greedy": (0.0, 0, 1.0),
        "temperature 1": (1.0, 0, 1.0),
        "top-p 0.95": (0.8, 0, 0.95),
        "top-k 50": (0.8, 50, 1.0),
    }.items():
        settings = (
            np.array([temperature], np.float32),
            np.array([top_k], np.int32),
            np.array([top_p], np.float32),
            np.zeros(1, np.float32),
            np.ones(1, np.uint64),
            np.ones(1, np.int64),
        )
        seconds = best_seconds(lambda settings=settings: sample_rows(row, *settings), 50)  # type: ignore[misc]
        print(f"sample {name:14s} {seconds * 1e6:7.0f} us")
    seconds = best_seconds(lambda: top_log_probabilities(row[0], 5), 50)
    print(f"top 5 log probs       {seconds * 1e6:7.0f} us")


if __name__ == "__main__":
    main()

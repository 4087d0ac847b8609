"""Memory saved against throughput lost when cold experts of a mixture stay on disk.

    python bench/experts.py [--threads 2] [--batches 1,8] [--budgets 100,75,60,50,46,40,30]

Makes a mixture of 8 layers of 32 experts (Q4_1, 252 MB of experts, two a token) whose router prefers some experts, as
trained ones do, and runs it in one process a budget, in turns. A budget is a share of the experts' bytes; 100 keeps all in memory
without slots. Memory is the process's peak (VmHWM: weights, KV, interpreter, loading included). Expert files are read
through the page cache, as in use; `read/s` is what a disk must give where there is no memory for that cache. Every
budget must give the same bits, or the bench fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.worker.load import ExpertsOnDisk, load_native

LAYERS, DIM, HEADS, FF, EXPERTS, USED, VOCAB = 8, 512, 8, 1024, 32, 2, 4096
CONTEXT = 512
STEPS, WARM = 40, 2
"""Steps a round; rounds in which the slots fill."""
SKEW = 2.0
"""The router's preference falls with the logarithm of an expert's place, so much against the noise of a token."""
Q4_1 = gguf.GGMLQuantizationType.Q4_1


def random_q4_1(rng: np.random.Generator, *shape: int) -> NDArray[np.uint8]:
    """Random blocks of 32 values around 1 / sqrt(columns)."""
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // 32, 20), dtype=np.uint8)
    scale = (rng.uniform(0.5, 1.5, blocks.shape[:-1]) / np.sqrt(shape[-1]) / 4.6).astype(np.float16)
    blocks[..., :2] = scale[..., None].view(np.uint8)
    blocks[..., 2:4] = (scale * np.float16(-7.5))[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def write_model(path: Path, skew: float) -> None:
    """The mixture. Value 0 of every embedding is the same, and the router's column 0 holds its preferences."""
    rng = np.random.default_rng(20261130)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    embedding = rng.standard_normal((VOCAB, DIM)).astype(np.float32)
    embedding[:, 0] = 4.0
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", np.ones(DIM, np.float32))
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{at}{norm}.weight", np.ones(DIM, np.float32))
        for name, rows in (("attn_q", DIM), ("attn_k", DIM // 2), ("attn_v", DIM // 2), ("attn_output", DIM)):
            writer.add_tensor(f"{at}{name}.weight", random_q4_1(rng, rows, DIM), raw_dtype=Q4_1)
        router = (rng.standard_normal((EXPERTS, DIM)) / np.sqrt(DIM)).astype(np.float32)
        router[:, 0] = -skew * np.log1p(rng.permutation(EXPERTS)) / 4.0
        writer.add_tensor(f"{at}ffn_gate_inp.weight", router)
        for name, rows, columns in (("gate", FF, DIM), ("up", FF, DIM), ("down", DIM, FF)):
            experts = random_q4_1(rng, EXPERTS, rows, columns)
            if name == "down":  # value 0 of the residual stays the embedding's
                experts[:, 0] = 0
            writer.add_tensor(f"{at}ffn_{name}_exps.weight", experts, raw_dtype=Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Bench:
    """One budget, in a process of its own: runs steps when it is told to."""

    def __init__(self, path: Path, budget: float, batches: list[int], threads: int) -> None:
        with GgufFile.open(path) as file:
            architecture = Architecture.from_gguf(file)
            experts = sum(info.size_bytes for name, info in file.tensors.items() if "_exps" in name)
            on_disk = None if budget >= 1 else ExpertsOnDisk(path.parent, int(experts * budget))
            self.model = load_native(
                file, architecture, quantization="as-stored", threads=threads, isa="auto", experts=on_disk
            )
        self.model.allocate_kv(max(batches) * CONTEXT // 32, "f16")
        self.digest = hashlib.sha256()
        self.random = {batch: np.random.default_rng(batch) for batch in batches}
        self.position = dict.fromkeys(batches, 0)

    def round(self, batch: int, steps: int) -> dict[str, float]:
        """Decode `steps` random tokens of `batch` sequences; seconds and the counters' growth a step."""
        width = CONTEXT // 32
        tables = np.arange(batch * width, dtype=np.int32).reshape(batch, width)
        rows = np.arange(batch, dtype=np.int32)
        logits = np.empty((batch, VOCAB), np.float32)
        before = self.model.expert_counters
        began = time.perf_counter()
        for _ in range(steps):
            tokens = self.random[batch].integers(0, VOCAB, batch).astype(np.int32)
            positions = np.full(batch, self.position[batch], np.int32)
            self.model.forward(tokens, positions, rows, tables, rows, logits)
            self.position[batch] = (self.position[batch] + 1) % CONTEXT
        seconds = time.perf_counter() - began
        self.digest.update(logits.tobytes())
        after = self.model.expert_counters
        grown = {key: (after[key] - before[key]) / steps for key in ("hits", "misses", "bytes_read")}
        return {"seconds": seconds, **grown}

    def end(self) -> dict[str, Any]:
        """What can be said at the end."""
        return {
            "slots": self.model.expert_counters["slots"] // LAYERS or EXPERTS,
            "peak_mb": peak_mb(),
            "digest": self.digest.hexdigest(),
            "uses": self.model.expert_uses().reshape(LAYERS, EXPERTS).tolist(),
        }

    def serve(self) -> None:
        """Answer each line of standard input, `batch steps`, with a line of JSON; nothing more to do: the end."""
        print("{}", flush=True)
        for line in sys.stdin:
            batch, steps = map(int, line.split())
            print(json.dumps(self.round(batch, steps)), flush=True)
        print(json.dumps(self.end()), flush=True)


class Told:
    """The process of one budget, from outside."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.heard()
        self.rounds: dict[int, list[dict[str, float]]] = {}

    def heard(self) -> dict[str, Any]:
        """The next line."""
        assert self.process.stdout is not None
        value: dict[str, Any] = json.loads(self.process.stdout.readline())
        return value

    def round(self, batch: int) -> None:
        """One round of one batch."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{batch} {STEPS}\n")
        self.process.stdin.flush()
        self.rounds.setdefault(batch, []).append(self.heard())

    def end(self) -> dict[str, Any]:
        """Let it end; what it says then, and what was measured after the slots were full."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        last = self.heard()
        self.process.wait()
        last["rates"] = {
            b: b * STEPS / min(r["seconds"] for r in rounds[WARM:]) for b, rounds in self.rounds.items()
        }
        last["per_step"] = {
            batch: {key: float(np.mean([r[key] for r in rounds[WARM:]])) for key in rounds[0]}
            for batch, rounds in self.rounds.items()
        }
        return last


def peak_mb() -> float:
    """The most memory that this process has had (VmHWM)."""
    found = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found[1]) / 1024 if found else float("nan")


def main() -> None:
    """Print a table for each batch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--budgets", default="100,75,60,50,46,40,30")
    parser.add_argument("--skew", type=float, default=SKEW)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    if options.one is not None:
        Bench(options.model, options.one, batches, options.threads).serve()
        return
    with tempfile.TemporaryDirectory(dir=".") as directory:
        path = Path(directory) / "skewed.gguf"
        write_model(path, options.skew)
        print(f"{path.stat().st_size / 1e6:.0f} MB, {LAYERS} layers of {EXPERTS} experts, {USED} a token")
        told = {}
        for percent in map(float, options.budgets.split(",")):
            command = [sys.executable, __file__, "--model", str(path), "--one", str(percent / 100)]
            told[percent] = Told([*command, "--threads", str(options.threads), "--batches", options.batches])
        # In turns, so that what else the machine does falls on all; the best round of each counts.
        for batch in batches:
            for _ in range(WARM + options.rounds):
                for one in told.values():
                    one.round(batch)
        report({percent: one.end() for percent, one in told.items()}, batches)


def report(results: dict[float, dict[str, Any]], batches: list[int]) -> None:
    """Print what was measured, against the first budget."""
    first = next(iter(results.values()))
    uses = np.sort(np.array(first["uses"], float), axis=1)[:, ::-1]
    shares = (uses / uses.sum(axis=1, keepdims=True)).mean(axis=0).cumsum()
    said = ", ".join(f"{n} take {shares[n - 1]:.0%}" for n in (EXPERTS // 8, EXPERTS // 4, EXPERTS // 2))
    print(f"of {EXPERTS} experts, the busiest {said} of the tokens")
    if any(result["digest"] != first["digest"] for result in results.values()):
        raise SystemExit("budgets differ in their bits")
    for batch in batches:
        print(
            f"\n| batch {batch}: budget | slots a layer | peak MB | saved | tokens/s | lost | hit rate | read/s |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for percent, result in results.items():
            rate, steps = result["rates"][batch], result["per_step"][batch]
            wanted = steps["hits"] + steps["misses"]
            print(
                f"| {percent:.0f}% | {result['slots']} of {EXPERTS} | {result['peak_mb']:.0f} "
                f"| {1 - result['peak_mb'] / first['peak_mb']:.0%} | {rate:.1f} "
                f"| {1 - rate / first['rates'][batch]:.1%} "
                f"| {steps['hits'] / wanted if wanted else 1:.1%} "
                f"| {steps['bytes_read'] * rate / batch / 1e6:.0f} MB |"
            )


if __name__ == "__main__":
    main()

"""Narrow weights: decode and prefill with the same model held as f16, int8 and int4.

    python bench/weights.py [--repetitions 5]

The model's own weights, decoded, are held as F16; the others are re-quantized from the file as `quantization` does. Each
way of holding computes the same steps, in turns. `tiltyard models quality` says what each costs in perplexity.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from numpy.typing import NDArray

from environment import default_model, threads
from tiltyard.kernels import NativeModel, choose_isa
from tiltyard.kernels.reference_formats import decode
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.worker.load import load_native
from tiltyard.worker.shape import native_shape

F16 = 1
CONTEXT = 256
WAYS = ("f16", "q8_0", "as-stored", "q4_0")
BATCHES = ((1, 1), (8, 1), (1, 256))
"""`(sequences, new tokens of each)`."""


def as_f16(gguf: GgufFile, architecture: Architecture) -> NativeModel:
    """The model with every matrix rounded to halves."""
    model = NativeModel(**native_shape(architecture), threads=threads(), isa=choose_isa("auto"))
    for name, shape in architecture.tensor_shapes().items():
        info, data = gguf.tensors[name], np.asarray(gguf.tensor_data(name))
        if len(shape) == 1:
            model.set_tensor(name, info.ggml_type, data, None)
            continue
        values = decode(info.ggml_type, data, *shape).values.astype(np.float16)
        model.set_tensor(name, F16, np.ascontiguousarray(values).view(np.uint8).reshape(-1), None)
    model.finish()
    return model


def step_s(model: NativeModel, vocab: int, sequences: int, rows: int) -> float:
    """Seconds of one step whose last token stands at `CONTEXT`."""
    rng = np.random.default_rng(0)
    width = CONTEXT // 32 + 1
    total = sequences * rows
    tables: NDArray[np.int32] = np.arange(sequences * width, dtype=np.int32).reshape(sequences, width)
    tokens = rng.integers(0, vocab, total).astype(np.int32)
    positions = np.tile(np.arange(CONTEXT - rows + 1, CONTEXT + 1, dtype=np.int32), sequences)
    owners = np.repeat(np.arange(sequences, dtype=np.int32), rows)
    outputs = np.arange(rows - 1, total, rows, dtype=np.int32)
    logits = np.empty((sequences, vocab), np.float32)
    began = time.perf_counter()
    model.forward(tokens, positions, owners, tables, outputs, logits)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=15)
    arguments = parser.parse_args()
    models: dict[str, NativeModel] = {}
    with GgufFile.open(default_model()) as gguf:
        architecture = Architecture.from_gguf(gguf)
        for way in WAYS:
            if way == "f16":
                models[way] = as_f16(gguf, architecture)
            else:
                models[way] = load_native(
                    gguf, architecture, quantization=way, threads=threads(), isa=choose_isa("auto")
                )
            models[way].allocate_kv(128, "f16")
    found: dict[tuple[str, tuple[int, int]], list[float]] = {}
    for repetition in range(arguments.repetitions + 1):
        for batch in BATCHES:
            for way, model in models.items():
                seconds = step_s(model, architecture.vocab_size, *batch)
                if repetition:  # the first is warm-up
                    found.setdefault((way, batch), []).append(seconds)
    best = {key: statistics.median(values) for key, values in found.items()}
    names = {"as-stored": "int4 as stored (Q4_1)", "q8_0": "int8 (q8_0)", "q4_0": "int4 (q4_0)", "f16": "f16"}
    print("| weights | in memory | one stream | 8 streams | prefill |")
    print("| --- | --- | --- | --- | --- |")
    for way, model in models.items():
        cells = []
        for batch in BATCHES:
            rate = batch[0] * batch[1] / best[way, batch]
            ratio = best["f16", batch] / best[way, batch]
            cells.append(f"{rate:,.0f} tok/s ({ratio:.1f}x)")
        print(f"| {names[way]} | {model.weight_bytes / 1e6:.0f} MB | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

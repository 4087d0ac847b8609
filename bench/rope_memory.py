"""What the RoPE base and its scalings do to a model's memory at long context.

    PYTHONPATH=src python bench/rope_memory.py model.gguf [--context 12000] [--scaling plain|ntk:2|yarn:2|...]

Passages of random words are strewn over ordinary text and asked for again at its end: the model has been told each
once, so many tokens ago. Recall is how much likelier the passage's tokens are at the end than where they were first read, in
nats a token. `text` is the loss of the ordinary text in the last thousand tokens. One JSON line a run.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tiltyard.identity.rope import RopeScaling
from tiltyard.kernels import BLOCK_TOKENS, NativeModel, log_probabilities
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.models.tokenizer import Tokenizer
from tiltyard.worker.load import load_native

TEXT = Path(__file__).parents[1] / "src/tiltyard/models/texts/alice.txt"
PASSAGE, SKIP, CHUNK = 40, 8, 256
DISTANCES = (500, 1000, 2000, 4000, 6000, 7500, 9000, 11000)


def main() -> None:
    """One run."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--context", type=int, default=12_000)
    arguments.add_argument("--scaling", default="plain")
    arguments.add_argument("--base", type=float, help="another base than the model's, unscaled")
    arguments.add_argument("--threads", type=int, default=2)
    options = arguments.parse_args()
    with GgufFile.open(options.model) as gguf:
        architecture = changed(Architecture.from_gguf(gguf), options.scaling, options.base, options.context)
        tokenizer = Tokenizer.from_gguf(gguf)
        model = load_native(gguf, architecture, quantization="as-stored", threads=options.threads, isa="auto")
    blocks = -(-options.context // BLOCK_TOKENS)
    model.allocate_kv(blocks, "f16")
    tokens, places = prompt(tokenizer, options.context)
    began = time.perf_counter()
    loss = losses(model, tokens, architecture.vocab_size)
    recall = {
        distance: float((loss[first : first + n] - loss[again : again + n])[SKIP:].mean())
        for distance, (first, again, n) in places.items()
    }
    ends = {
        position
        for first, again, n in places.values()
        for position in (*range(first, first + n), *range(again, again + n))
    }
    ordinary = [i for i in range(options.context - 1000, options.context - 1) if i not in ends]
    print(
        json.dumps(
            {
                "scaling": options.scaling,
                "base": options.base or architecture.rope_base,
                "context": options.context,
                "kv_mb": round(blocks * model.kv_bytes_per_block / 1e6),
                "text": round(float(loss[ordinary].mean()), 3),
                "recall": {distance: round(value, 2) for distance, value in recall.items()},
                "seconds": round(time.perf_counter() - began),
            }
        )
    )


def changed(architecture: Architecture, scaling: str, base: float | None, context: int) -> Architecture:
    """The model with another scaling or base, and room for the context."""
    if scaling != "plain":
        kind, factor = scaling.split(":")
        architecture = architecture.stretched(
            RopeScaling.model_validate({"type": kind, "factor": float(factor)})
        )
    if base is not None:
        architecture = replace(architecture, rope_base=base)
    return replace(architecture, max_positions=max(architecture.max_positions, context))


def prompt(tokenizer: Tokenizer, context: int) -> tuple[list[int], dict[int, tuple[int, int, int]]]:
    """Tokens, and for each distance (start of the passage, start of its repetition, length)."""
    rng = np.random.default_rng(1)
    text = tokenizer.encode(TEXT.read_text(encoding="utf-8"), special=False)
    words = sorted(
        {word for word in TEXT.read_text(encoding="utf-8").split() if word.isalpha() and len(word) > 3}
    )
    text = (text * (context // len(text) + 1))[:context]
    distances = [distance for distance in DISTANCES if distance + 560 < context]
    tokens, places = list(text), {}
    for i, distance in enumerate(distances):
        passage = tokenizer.encode(" " + " ".join(rng.choice(words, 60)), special=False)[:PASSAGE]
        again = context - (len(distances) - i) * (PASSAGE + 20)
        first = again - distance
        tokens[first : first + PASSAGE] = passage
        tokens[again : again + PASSAGE] = passage
        places[distance] = (first, again, PASSAGE)
    return tokens, places


def losses(model: NativeModel, tokens: list[int], vocabulary: int) -> NDArray[np.float64]:
    """Minus the log probability of each token after those before it; the first is 0."""
    loss = np.zeros(len(tokens))
    table = np.arange(-(-len(tokens) // BLOCK_TOKENS), dtype=np.int32)[None]
    for at in range(0, len(tokens), CHUNK):
        part = np.array(tokens[at : at + CHUNK], np.int32)
        rows = np.arange(len(part), dtype=np.int32)
        logits = np.empty((len(part), vocabulary), np.float32)
        model.forward(part, rows + np.int32(at), np.zeros_like(rows), table, rows, logits)
        for row, logit in enumerate(logits):
            if at + row + 1 < len(tokens):
                following = np.array([tokens[at + row + 1]], np.int32)
                loss[at + row + 1] = -log_probabilities(logit, following)[0]
    return loss


if __name__ == "__main__":
    main()

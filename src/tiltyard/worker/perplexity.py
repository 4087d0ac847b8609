"""How well a model, held in one way or another, foretells a text: perplexity, as llama.cpp measures it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.kernels import BLOCK_TOKENS, NativeModel, log_probabilities

WINDOW = 512
"""Tokens that are read together; those of its second half are scored, so each has a context of 256 at least."""
STEP_ROWS = 64


class Perplexity(NamedTuple):
    """exp of the mean negative log probability of the scored tokens; Jelinek et al. 1977."""

    perplexity: float
    scored: int
    """Tokens that were scored."""
    mean_nats: float
    """Mean negative log probability."""


def measure_perplexity(
    model: NativeModel,
    tokens: Sequence[int],
    *,
    vocabulary: int,
    first: int | None,
    window: int = WINDOW,
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Read the text in windows that do not overlap; `first` (BOS) takes the first place of each.

    The model's KV memory is allocated anew. `progress` hears (tokens read, tokens in all). Raises
    `InvalidRequest` for a text that fills no window.
    """
    windows = len(tokens) // window
    if windows == 0:
        raise InvalidRequest(
            f"the text has {len(tokens):,} tokens; perplexity needs a window of {window:,} at least",
            param="text",
        )
    blocks = -(-window // BLOCK_TOKENS)
    model.allocate_kv(blocks, "f16")
    table = np.arange(blocks, dtype=np.int32)[None]
    logits: NDArray[np.float32] = np.empty((STEP_ROWS, vocabulary), np.float32)
    nats, scored = 0.0, 0
    for number in range(windows):
        ids = np.array(tokens[number * window : (number + 1) * window], np.int32)
        follows = ids.copy()
        if first is not None:
            ids[0] = first
        for start in range(0, window - 1, STEP_ROWS):
            end = min(start + STEP_ROWS, window - 1)
            # the row at p foretells the token at p + 1
            wanted = np.arange(max(start, window // 2), end, dtype=np.int32) - start
            model.forward(
                ids[start:end],
                np.arange(start, end, dtype=np.int32),
                np.zeros(end - start, np.int32),
                table,
                wanted,
                logits[: len(wanted)],
            )
            for row, at in zip(logits, wanted.tolist(), strict=False):
                target = follows[start + at + 1 : start + at + 2]
                nats -= float(log_probabilities(row, target)[0])
                scored += 1
            if progress is not None:
                progress(number * window + end + 1, windows * window)
    return Perplexity(math.exp(nats / scored), scored, nats / scored)

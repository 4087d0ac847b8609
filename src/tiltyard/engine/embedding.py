"""Texts whose hidden states are wanted: they run like prompts, and end in a vector where a prompt ends in a token.

The arithmetic of pooling is part of the numerics contract (docs/numerics.md, *Embeddings*): double, in order of position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.batch import ForwardModel, build_batch
from tiltyard.engine.request import EmbeddedText
from tiltyard.engine.sequence import RunningSequence


def embed_texts(
    model: ForwardModel, work: Sequence[tuple[RunningSequence, int]], width: int
) -> list[tuple[RunningSequence, EmbeddedText | None]]:
    """Run the next tokens of each text; returns the vectors, `width` long, of those that are through.

    `None` where the model's numbers are not finite.
    """
    batch = build_batch(work, {})
    wanted: list[int] = []
    counts: list[int] = []
    at = 0
    for sequence, chunk in work:
        if sequence.request.embed == "mean":
            rows = range(at, at + chunk)
        else:
            rows = range(at + chunk - 1, at + chunk) if chunk == sequence.pending else range(0)
        wanted.extend(rows)
        counts.append(len(rows))
        at += chunk
    hidden = np.empty((len(wanted), width), np.float32)
    model.embed(
        batch.tokens,
        batch.positions,
        batch.owners,
        batch.tables,
        np.array(wanted, np.int32),
        hidden,
        adapters=batch.adapters,
    )
    done: list[tuple[RunningSequence, EmbeddedText | None]] = []
    at = 0
    for (sequence, chunk), count in zip(work, counts, strict=True):
        if sequence.computed == 0 or sequence.hidden_sum is None:  # also after a preemption
            sequence.hidden_sum = np.zeros(width)
        for row in hidden[at : at + count]:
            sequence.hidden_sum += row
        at += count
        sequence.computed += chunk
        if not sequence.pending:
            if not np.isfinite(sequence.hidden_sum).all():
                done.append((sequence, None))
                continue
            rows_in_all = len(sequence.tokens) if sequence.request.embed == "mean" else 1
            vector = unit(sequence.hidden_sum / rows_in_all)
            done.append((sequence, EmbeddedText(sequence.request.request_id, vector, sequence.prompt_tokens)))
    return done


def unit(vector: NDArray[np.float64]) -> NDArray[np.float32]:
    """A vector of length 1 and the same direction; zeros stay.

    >>> unit(np.array([3.0, 4.0]))
    array([0.6, 0.8], dtype=float32)
    """
    length = math.sqrt(math.fsum((vector * vector).tolist()))  # the exact sum, rounded once: no order shows
    return (vector / length if length else vector).astype(np.float32)

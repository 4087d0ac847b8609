"""Chooses one token from each row of logits, by the kernels' functions alone: same bits on every CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiltyard import kernels
from tiltyard.engine.sequence import RunningSequence

SEED_MASK = (1 << 64) - 1


class Sampled(NamedTuple):
    """One chosen token; log-probabilities are of the model's own logits, before penalties and temperature."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] | None


def sample(
    sequences: Sequence[RunningSequence], logits: NDArray[np.float32], *, ahead: int = 0
) -> list[Sampled]:
    """Choose the next token of each sequence from its row of `logits` (sequences, vocabulary).

    The random number of a token depends on the request's seed and the token's position, on nothing else.
    Rows are changed in place where penalties or biases apply. `ahead`: so many tokens further on, for guesses.
    """
    rows = len(sequences)
    settings = [s.request.sampling for s in sequences]
    raw = {
        i: logits[i].copy() if _reshapes(sequences[i]) else logits[i]
        for i in range(rows)
        if sequences[i].request.top_logprobs is not None
    }
    for i, sequence in enumerate(sequences):
        if _reshapes(sequence):
            _reshape(logits[i], sequence)
    tokens = kernels.sample_rows(
        logits[:rows],
        np.fromiter((s.temperature for s in settings), np.float32, rows),
        np.fromiter((s.top_k for s in settings), np.int32, rows),
        np.fromiter((s.top_p for s in settings), np.float32, rows),
        np.fromiter((s.min_p for s in settings), np.float32, rows),
        np.fromiter((s.seed & SEED_MASK for s in settings), np.uint64, rows),
        np.fromiter((len(s.tokens) + ahead for s in sequences), np.int64, rows),
    ).tolist()
    return [
        _with_logprobs(tokens[i], raw[i], sequences[i].request.top_logprobs or 0)
        if i in raw
        else Sampled(tokens[i], None, None)
        for i in range(rows)
    ]


def _reshapes(sequence: RunningSequence) -> bool:
    return sequence.seen is not None or bool(sequence.request.sampling.logit_bias)


def _reshape(row: NDArray[np.float32], sequence: RunningSequence) -> None:
    """Apply penalties, then biases."""
    settings = sequence.request.sampling
    if sequence.seen is not None:
        kernels.apply_penalties(
            row,
            sequence.seen.ids,
            sequence.seen.output_counts,
            repetition=settings.repetition_penalty,
            presence=settings.presence_penalty,
            frequency=settings.frequency_penalty,
        )
    if settings.logit_bias:
        kernels.add_bias(
            row,
            np.array([token for token, _ in settings.logit_bias], np.int32),
            np.array([bias for _, bias in settings.logit_bias], np.float32),
        )


def _with_logprobs(token: int, row: NDArray[np.float32], top: int) -> Sampled:
    logprob = float(kernels.log_probabilities(row, np.array([token], np.int32))[0])
    if not top:
        return Sampled(token, logprob, ())
    ids, values = kernels.top_log_probabilities(row, top)
    return Sampled(token, logprob, tuple(zip(ids.tolist(), values.tolist(), strict=True)))

"""Chooses one token from each row of logits, by the kernels' functions alone: same bits on every CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiltyard import kernels
from tiltyard.engine.limits import not_finite
from tiltyard.engine.masks import TokenMask, mask_words
from tiltyard.engine.sequence import RunningSequence
from tiltyard.errors import InvalidRequest, TiltyardError

SEED_MASK = (1 << 64) - 1


class Sampled(NamedTuple):
    """One chosen token; log-probabilities are of the model's own logits, before penalties and temperature."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] | None


class DeadEnd(NamedTuple):
    """What was asked leaves no token to choose: the request fails."""

    error: TiltyardError


NOTHING_LEFT = (
    "no token is left to choose: the masks of this request (grammar, allowed_token_ids, bad_words, "
    "min_tokens) exclude each other at this point of the answer. Loosen one of them."
)


def sample(sequences: Sequence[RunningSequence], logits: NDArray[np.float32]) -> list[Sampled | DeadEnd]:
    """Choose the next token of each sequence from its row of `logits` (sequences, vocabulary).

    The random number of a token depends on the request's seed and the token's position, on nothing else.
    Rows are changed in place where penalties, biases or masks apply. A sequence is sampled for the state that it is
    in: to sample several positions of one (speculation), append each token before the next row is sampled.
    """
    rows = len(sequences)
    raw = {
        i: logits[i].copy() if _reshapes(sequences[i]) else logits[i]
        for i in range(rows)
        if sequences[i].request.top_logprobs is not None
    }
    ends: dict[int, DeadEnd] = {}
    for i, sequence in enumerate(sequences):
        if _reshapes(sequence) and (end := _reshape(logits[i], sequence)) is not None:
            ends[i] = end
            logits[i] = 0.0  # so that the other rows can be sampled
    tokens, broken = _draw(sequences, logits, ahead=0)
    chosen = [
        _with_logprobs(tokens[i], raw[i], sequences[i].request.top_logprobs or 0)
        if i in raw
        else Sampled(tokens[i], None, None)
        for i in range(rows)
    ]
    for i, end in (dict.fromkeys(broken, DeadEnd(not_finite())) | ends).items():
        chosen[i] = end
    return chosen


def guess_ahead(
    sequences: Sequence[RunningSequence], logits: NDArray[np.float32], *, ahead: int
) -> list[int]:
    """What a draft model would choose `ahead` tokens behind the last one; masks cut guesses afterwards."""
    for i, sequence in enumerate(sequences):
        _reweigh(logits[i], sequence)
    return _draw(sequences, logits, ahead)[0]


def _draw(
    sequences: Sequence[RunningSequence], logits: NDArray[np.float32], ahead: int
) -> tuple[list[int], list[int]]:
    """The tokens, and the rows that had none to give: a model's NaN are one request's misfortune, not everybody's."""
    try:
        return _draw_all(sequences, logits, ahead), []
    except ValueError:
        rows = logits[: len(sequences)]
        # Masked tokens are minus infinity; that alone is sound.
        broken = np.flatnonzero(~(rows < np.inf).all(axis=1) | (rows.max(axis=1) == -np.inf)).tolist()
        if not broken:
            raise
        logits[broken] = 0.0
        return _draw_all(sequences, logits, ahead), broken


def _draw_all(sequences: Sequence[RunningSequence], logits: NDArray[np.float32], ahead: int) -> list[int]:
    rows = len(sequences)
    settings = [s.request.sampling for s in sequences]
    tokens: list[int] = kernels.sample_rows(
        logits[:rows],
        np.fromiter((s.temperature for s in settings), np.float32, rows),
        np.fromiter((s.top_k for s in settings), np.int32, rows),
        np.fromiter((s.top_p for s in settings), np.float32, rows),
        np.fromiter((s.min_p for s in settings), np.float32, rows),
        np.fromiter((s.seed & SEED_MASK for s in settings), np.uint64, rows),
        np.fromiter((len(s.tokens) + ahead for s in sequences), np.int64, rows),
    ).tolist()
    return tokens


def _reshapes(sequence: RunningSequence) -> bool:
    return (
        sequence.seen is not None or sequence.mask is not None or bool(sequence.request.sampling.logit_bias)
    )


def _reshape(row: NDArray[np.float32], sequence: RunningSequence) -> DeadEnd | None:
    """Apply penalties, then biases, then masks."""
    _reweigh(row, sequence)
    return None if sequence.mask is None else _mask(row, sequence, sequence.mask)


def _reweigh(row: NDArray[np.float32], sequence: RunningSequence) -> None:
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


def _mask(row: NDArray[np.float32], sequence: RunningSequence, mask: TokenMask) -> DeadEnd | None:
    words = np.empty(mask_words(len(row)), np.uint32)
    try:
        if not mask.fill(words, sequence.tokens, sequence.outputs):
            return None
    except TiltyardError as error:
        return DeadEnd(error)
    kernels.apply_mask(row, words)
    if row.max() != -np.inf:  # NaN is another end
        return None
    return DeadEnd(InvalidRequest(NOTHING_LEFT, code="no_token_left"))


def _with_logprobs(token: int, row: NDArray[np.float32], top: int) -> Sampled | DeadEnd:
    if not np.isfinite(row).all():
        return DeadEnd(not_finite())
    logprobs, _, ids, values = kernels.score_tokens(row[np.newaxis], np.array([token], np.int32), top)
    return Sampled(
        token, float(logprobs[0]), tuple(zip(ids[0].tolist(), values[0].tolist(), strict=True)) if top else ()
    )

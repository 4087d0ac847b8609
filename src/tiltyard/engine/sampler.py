"""Chooses one token from each row of logits, by the kernels' functions alone: same bits on every CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tiltyard import kernels
from tiltyard.engine.limits import not_finite
from tiltyard.engine.masks import mask_words
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


class RowChooser(Protocol):
    """Chooses a token for each row of logits: `kernels.choose_rows`, or a model's own on its threads."""

    def choose_rows(  # noqa: PLR0917 - the native function's own order
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        top_k: NDArray[np.int32],
        top_p: NDArray[np.float32],
        min_p: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        masked: NDArray[np.int32],
        masks: NDArray[np.uint32],
        top: NDArray[np.int32],
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        """Tokens (R), -1 where a mask leaves none; log probabilities (R); the likeliest ids and theirs (R, K).

        `masks` (M, words) are for the rows `masked` (M), which are changed; `top` (R): how many of the likeliest
        tokens are asked for, -1 for no log probabilities.
        """


class _Chosen(NamedTuple):
    """What `RowChooser.choose_rows` gives, as lists."""

    tokens: list[int]
    logprobs: list[float]
    top_ids: list[list[int]]
    top_logprobs: list[list[float]]

    def sampled(self, row: int, top: int | None) -> Sampled:
        if top is None:
            return Sampled(self.tokens[row], None, None)
        likeliest = tuple(zip(self.top_ids[row][:top], self.top_logprobs[row][:top], strict=True))
        return Sampled(self.tokens[row], self.logprobs[row], likeliest)


def sample(
    sequences: Sequence[RunningSequence], logits: NDArray[np.float32], chooser: RowChooser
) -> list[Sampled | DeadEnd]:
    """Choose the next token of each sequence from its row of `logits` (sequences, vocabulary).

    The random number of a token depends on the request's seed and the token's position, on nothing else.
    Rows are changed in place where penalties, biases or masks apply. A sequence is sampled for the state that it is
    in: to sample several positions of one (speculation), append each token before the next row is sampled.
    """
    wanted = [s.request.top_logprobs for s in sequences]
    raw: dict[int, NDArray[np.float32]] = {}  # rows that do not stay what their log probabilities are of
    masks = _Masks(sequences, logits.shape[1])
    for i, sequence in enumerate(sequences):
        if _reweighs(sequence):
            if wanted[i] is not None:
                raw[i] = logits[i].copy()
            _reweigh(logits[i], sequence)
    top = [-1 if k is None or i in raw else k for i, k in enumerate(wanted)]
    chosen, broken = _choose(sequences, logits, chooser, masks, top=top)
    results: list[Sampled | DeadEnd] = [
        chosen.sampled(i, None if i in raw else top) for i, top in enumerate(wanted)
    ]
    for i in masks.rows:
        if chosen.tokens[i] < 0:
            damaged = np.isnan(logits[i]).any()
            results[i] = DeadEnd(
                not_finite() if damaged else InvalidRequest(NOTHING_LEFT, code="no_token_left")
            )
            raw.pop(i, None)
    for i, row in raw.items():
        results[i] = _with_logprobs(chosen.tokens[i], row, wanted[i] or 0)
    for i, end in (dict.fromkeys(broken, DeadEnd(not_finite())) | masks.ends).items():
        results[i] = end
    return results


def guess_ahead(
    sequences: Sequence[RunningSequence], logits: NDArray[np.float32], chooser: RowChooser, *, ahead: int
) -> list[int]:
    """What a draft model would choose `ahead` tokens behind the last one; masks cut guesses afterwards."""
    for i, sequence in enumerate(sequences):
        if _reweighs(sequence):
            _reweigh(logits[i], sequence)
    unmasked = _Masks((), logits.shape[1])
    return _choose(sequences, logits, chooser, unmasked, top=[-1] * len(sequences), ahead=ahead)[0].tokens


class _Masks:
    """The masks of those sequences that have one now, row by row."""

    def __init__(self, sequences: Sequence[RunningSequence], vocabulary: int) -> None:
        limited = [(i, s, s.mask) for i, s in enumerate(sequences) if s.mask is not None]
        self.rows: list[int] = []
        self.words = np.empty((len(limited), mask_words(vocabulary)), np.uint32)
        self.ends: dict[int, DeadEnd] = {}
        for i, sequence, mask in limited:
            try:
                if mask.fill(self.words[len(self.rows)], sequence.tokens, sequence.outputs):
                    self.rows.append(i)
            except TiltyardError as error:
                self.ends[i] = DeadEnd(error)


def _choose(
    sequences: Sequence[RunningSequence],
    logits: NDArray[np.float32],
    chooser: RowChooser,
    masks: _Masks,
    *,
    top: list[int],
    ahead: int = 0,
) -> tuple[_Chosen, list[int]]:
    """The choices, and the rows that had none to give: a model's NaN are one request's misfortune, not everybody's."""
    try:
        chosen, broken = _choose_all(sequences, logits, chooser, masks, top=top, ahead=ahead), []
    except ValueError:
        rows = logits[: len(sequences)]
        # Masked tokens are minus infinity; that alone is sound.
        broken = np.flatnonzero(~(rows < np.inf).all(axis=1) | (rows.max(axis=1) == -np.inf)).tolist()
        if not broken:
            raise
        logits[broken] = 0.0
        chosen = _choose_all(sequences, logits, chooser, masks, top=top, ahead=ahead)
    # Where the likeliest token was taken, or none had to be drawn, the scores alone tell.
    broken += [i for i, k in enumerate(top) if k >= 0 and not np.isfinite(chosen.logprobs[i])]
    return chosen, broken


def _choose_all(
    sequences: Sequence[RunningSequence],
    logits: NDArray[np.float32],
    chooser: RowChooser,
    masks: _Masks,
    *,
    top: list[int],
    ahead: int,
) -> _Chosen:
    rows = len(sequences)
    settings = [s.request.sampling for s in sequences]
    chosen = chooser.choose_rows(
        logits[:rows],
        np.array([s.temperature for s in settings], np.float32),
        np.array([s.top_k for s in settings], np.int32),
        np.array([s.top_p for s in settings], np.float32),
        np.array([s.min_p for s in settings], np.float32),
        np.array([s.seed & SEED_MASK for s in settings], np.uint64),
        np.array([len(s.tokens) + ahead for s in sequences], np.int64),
        np.array(masks.rows, np.int32),
        masks.words[: len(masks.rows)],
        np.array(top, np.int32),
    )
    return _Chosen(*(part.tolist() for part in chosen))


def _reweighs(sequence: RunningSequence) -> bool:
    return sequence.seen is not None or bool(sequence.request.sampling.logit_bias)


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


def _with_logprobs(token: int, row: NDArray[np.float32], top: int) -> Sampled | DeadEnd:
    if not np.isfinite(row).all():
        return DeadEnd(not_finite())
    logprobs, _, ids, values = kernels.score_tokens(row[np.newaxis], np.array([token], np.int32), top)
    return Sampled(
        token, float(logprobs[0]), tuple(zip(ids[0].tolist(), values[0].tolist(), strict=True)) if top else ()
    )

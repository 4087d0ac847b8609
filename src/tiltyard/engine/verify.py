"""Samples position after position, and keeps a draft exactly while it is the token that would have been sampled.

The sampler is a pure function of logits, settings, seed, position and the tokens before. A draft that equals
its token changes none of these, so the answer is the one without drafts, at any temperature (compare
Leviathan et al., 2023, whose rejection sampling keeps the distribution, not the tokens).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.batch import Batch, Drafts, Row
from tiltyard.engine.request import Finish
from tiltyard.engine.sampler import DeadEnd, RowChooser, Sampled, sample
from tiltyard.engine.sequence import RunningSequence
from tiltyard.errors import TiltyardError

Observer: TypeAlias = Callable[[str, int, NDArray[np.float32]], None]
"""Called with `(request id, position of the token to choose, row of logits)`; the row is the model's own."""


class Choice(NamedTuple):
    """A token that a sequence has taken, the `number`-th (from 1) of its answer."""

    sequence: RunningSequence
    sampled: Sampled
    number: int
    finish: Finish | None


class Verified(NamedTuple):
    """The tokens taken in one step, in order, and the sequences for which there was none."""

    choices: list[Choice]
    failed: dict[RunningSequence, TiltyardError]


def sample_and_verify(
    batch: Batch,
    logits: NDArray[np.float32],
    drafts: Drafts,
    observe: Observer | None,
    chooser: RowChooser,
) -> Verified:
    """Append to each sequence of the batch its next token, and those behind it that its drafts guessed right.

    `logits`: (R, vocabulary), changed in place by penalties and masks. A sequence has KV for each draft that it keeps:
    `computed` moves on past it. That of the others will be overwritten.
    """
    choices: list[Choice] = []
    failed: dict[RunningSequence, TiltyardError] = {}
    going: set[RunningSequence] = set()
    for drafted, candidates in enumerate(batch.rounds):
        rows = candidates if drafted == 0 else tuple(row for row in candidates if row.sequence in going)
        if not rows:
            break
        going = set()
        chosen = sample([row.sequence for row in rows], _rows(logits, rows, observe), chooser)
        for (sequence, _), sampled in zip(rows, chosen, strict=True):
            if isinstance(sampled, DeadEnd):
                failed[sequence] = sampled.error
                continue
            sequence.append(sampled.token)
            finish = sequence.finish
            choices.append(Choice(sequence, sampled, sequence.outputs, finish))
            draft = drafts.get(sequence, ())
            if finish is None and drafted < len(draft) and draft[drafted] == sampled.token:
                sequence.computed += 1
                going.add(sequence)
    return Verified(choices, failed)


def _rows(
    logits: NDArray[np.float32], rows: tuple[Row, ...], observe: Observer | None
) -> NDArray[np.float32]:
    """The rows of logits of one round; a view where they lie together, as they do in the first round."""
    first, last = rows[0].logits_row, rows[-1].logits_row
    if last - first + 1 == len(rows):
        taken = logits[first : last + 1]
    else:
        taken = logits[[row.logits_row for row in rows]]
    if observe is not None:
        for (sequence, _), values in zip(rows, taken, strict=True):
            observe(sequence.request.request_id, len(sequence.tokens), values)
    return taken

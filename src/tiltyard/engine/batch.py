"""The arrays of one forward pass: which tokens run, where their KV lies, and whose logits come out in which row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.blocks import BlockMemory
from tiltyard.engine.sampler import RowChooser
from tiltyard.engine.sequence import RunningSequence

Drafts: TypeAlias = Mapping[RunningSequence, Sequence[int]]
"""Guesses at the tokens that follow each sequence's last one; they run as further rows of the same step."""


class ForwardModel(BlockMemory, RowChooser, Protocol):
    """What the engine needs of `kernels.NativeModel`; KV blocks have been allocated."""

    def forward(  # noqa: PLR0917 - the native function's own order
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        sequences: NDArray[np.int32],
        tables: NDArray[np.int32],
        output_rows: NDArray[np.int32],
        logits: NDArray[np.float32],
        *,
        adapters: NDArray[np.int32] | None = None,
    ) -> None:
        """Run `tokens` (T), write their KV through `tables` (S, W) and a row of logits per output row.

        `adapters` (S): the LoRA adapter of each sequence, 0 for none.
        """

    def embed(  # noqa: PLR0917 - as `forward`
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        sequences: NDArray[np.int32],
        tables: NDArray[np.int32],
        output_rows: NDArray[np.int32],
        hidden: NDArray[np.float32],
        *,
        adapters: NDArray[np.int32] | None = None,
    ) -> None:
        """As `forward`, but write the final hidden state (width) of each output row."""


class Row(NamedTuple):
    """A row of logits and the sequence whose next token it chooses."""

    sequence: RunningSequence
    logits_row: int


class ScoredRows(NamedTuple):
    """Positions of a prompt whose logits score its next tokens; they lie together from row `first`."""

    sequence: RunningSequence
    positions: range
    first: int


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of S sequences, R rows of logits; all arrays are int32."""

    tokens: NDArray[np.int32]
    """(T); also `positions` and `owners`, the row of `tables` that a token belongs to."""
    positions: NDArray[np.int32]
    owners: NDArray[np.int32]
    tables: NDArray[np.int32]
    """(S, W) KV blocks."""
    adapters: NDArray[np.int32] | None
    """(S) LoRA adapters, 0 for none; `None`: no sequence has one."""
    output_rows: NDArray[np.int32]
    """(R): which of the T tokens give logits."""
    scored: tuple[ScoredRows, ...]
    """Behind the rows of all rounds: the prompts whose tokens are scored."""
    rounds: tuple[tuple[Row, ...], ...]
    """`rounds[0]`: each sequence whose pending tokens all run, with the row behind the last of them;
    `rounds[j]`: those with j drafts or more, with the row behind draft j."""


def build_batch(work: Sequence[tuple[RunningSequence, int]], drafts: Drafts) -> Batch:
    """Lay out `work` (`(sequence, pending tokens to run)`), each with its drafts behind it.

    Logits come out round by round, so that a round whose drafts were all right is one slice of them.
    """
    # Lists first: an array of a few numbers costs more to slice than to make.
    tokens: list[int] = []
    positions: list[int] = []
    owners: list[int] = []
    tables = np.zeros((len(work), max((s.blocks for s, _ in work), default=0)), np.int32)
    last_tokens: list[tuple[RunningSequence, int]] = []
    to_score: list[tuple[RunningSequence, range, int]] = []
    for row, (sequence, chunk) in enumerate(work):
        at, start, end = len(tokens), sequence.computed, sequence.computed + chunk
        tokens += sequence.tokens[start:end]
        tokens += drafts.get(sequence, ())
        rows = len(tokens) - at
        positions += range(start, start + rows)
        owners += [row] * rows
        tables[row, : sequence.blocks] = sequence.table[: sequence.blocks]
        if end == len(sequence.tokens):
            last_tokens.append((sequence, at + chunk - 1))
        if sequence.prompt_scores is not None and (scored := sequence.prompt_scores.rows(start, end)):
            to_score.append((sequence, scored, at + scored.start - start))
    rounds: list[tuple[Row, ...]] = []
    output_rows: list[int] = []
    for drafted in range(1 + max(map(len, drafts.values()), default=0)):
        members = [(s, last) for s, last in last_tokens if len(drafts.get(s, ())) >= drafted]
        rounds.append(tuple(Row(s, len(output_rows) + i) for i, (s, _) in enumerate(members)))
        output_rows.extend(last + drafted for _, last in members)
    scored_rows: list[ScoredRows] = []
    for sequence, scored, first_token in to_score:
        scored_rows.append(ScoredRows(sequence, scored, len(output_rows)))
        output_rows.extend(range(first_token, first_token + len(scored)))
    adapters = [sequence.request.adapter for sequence, _ in work]
    return Batch(
        np.array(tokens, np.int32),
        np.array(positions, np.int32),
        np.array(owners, np.int32),
        tables,
        np.array(adapters, np.int32) if any(adapters) else None,
        np.array(output_rows, np.int32),
        tuple(scored_rows),
        tuple(rounds),
    )

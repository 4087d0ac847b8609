"""Guesses by a second, cheaper model of the same vocabulary.

Its keys and values live in blocks of the same numbers as the model's own, found through the same tables, so the
scheduler knows nothing of them and a reused prefix is reused here too. What a block holds is remembered by
its text: where a table leads to a block with another text, or none, the tokens run again. So whatever happens
to blocks in between (preemption, copies, a second tier) costs a few rows here, never a wrong answer.

The guess is the token that the sampler would take from the draft model's logits with the request's own random number:
where the two models agree on the odds they agree on the draw, at any temperature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.batch import ForwardModel
from tiltyard.engine.sampler import guess_ahead
from tiltyard.engine.sequence import RunningSequence
from tiltyard.kernels import BLOCK_TOKENS

PRIOR_ACCEPTANCE = 0.7
PRIOR_WEIGHT = 4.0
MEMORY = 0.9
"""Weight of an outcome after each later one."""
FIRST_PROBE = 16
"""Steps without a guess after which one guess is tried; each that fails doubles the wait."""
LONGEST_WAIT = 256
MOST_BLOCKS = 1 << 24
"""Of one sequence; more than any context has."""
NOTHING = 0
"""Text of a block that nobody has written."""


class DraftModel:
    """The `Drafter` over a model with `blocks` KV blocks of its own; `token_cost` of one of its passes.

    `most_rows` bounds how many tokens it reads in a step to catch up with the answers; answers longer than its
    `max_context` get no guesses.
    """

    def __init__(
        self,
        model: ForwardModel,
        *,
        blocks: int,
        vocab_size: int,
        max_context: int,
        token_cost: float,
        most_rows: int = 64,
    ) -> None:
        self.token_cost = token_cost
        self.passes = 0
        """Forward passes of the draft model so far."""
        self._model = model
        self._vocab_size = vocab_size
        self._max_context = max_context
        self._most_rows = most_rows
        self._texts: NDArray[np.int64] = np.full(blocks, NOTHING, np.int64)
        self._serials = count(1)
        self._states: dict[RunningSequence, DraftState] = {}

    def chances(self, sequence: RunningSequence, most: int, least: float) -> Sequence[float]:
        """Powers of the acceptance so far; now and then 1 for a single guess, to see whether it has changed."""
        if len(sequence.tokens) + most > self._max_context:
            return []
        state = self._states.get(sequence)
        if state is None:
            state = self._states[sequence] = DraftState(next(self._serials))
        state.idle += 1
        if state.idle > state.patience:
            return [1.0]
        acceptance = (PRIOR_WEIGHT * PRIOR_ACCEPTANCE + state.hits) / (PRIOR_WEIGHT + state.trials)
        powers = (acceptance**i for i in range(1, most + 1))
        return [chance for chance in powers if chance >= least]

    def draft(self, lengths: Mapping[RunningSequence, int]) -> dict[RunningSequence, list[int]]:
        """Read what is new, then guess token by token, all sequences together."""
        drafts: dict[RunningSequence, list[int]] = {}
        rows: list[tuple[RunningSequence, int, list[int]]] = []  # (sequence, first position, tokens)
        room, writing = self._most_rows, set[int]()
        for sequence in lengths:
            state = self._states[sequence]
            start = state.settle(sequence, self._texts)
            tokens = sequence.tokens[start : start + room]
            end = start + len(tokens)
            first, last = start // BLOCK_TOKENS, -(-end // BLOCK_TOKENS)
            blocks = sequence.table[first:last].tolist()
            if not tokens or not writing.isdisjoint(blocks):
                continue  # somebody else is writing the same text: next time
            writing.update(blocks)
            self._texts[blocks] = state.marks(first, last)
            state.written = end
            room -= len(tokens)
            rows.append((sequence, start, tokens))
            if end == len(sequence.tokens):
                drafts[sequence] = []
        ahead = 0
        while rows:
            guessing = [sequence for sequence, _, _ in rows if sequence in drafts]
            guesses = self._run(rows, guessing, ahead)
            rows, ahead = [], ahead + 1
            for sequence, guess in zip(guessing, guesses, strict=True):
                drafts[sequence].append(guess)
                if ahead < lengths[sequence]:
                    position = len(sequence.tokens) + ahead - 1
                    self._states[sequence].write(sequence, position, self._texts)
                    rows.append((sequence, position, [guess]))
        return drafts

    def learn(self, sequence: RunningSequence, drafted: int, accepted: int) -> None:
        """Keep score, and forget the KV of guesses that were wrong."""
        state = self._states[sequence]
        for right in [True] * accepted + [False] * (accepted < drafted):
            state.hits = MEMORY * state.hits + right
            state.trials = MEMORY * state.trials + 1.0
        # Of the tokens there are now, the last was chosen by the model itself.
        state.written = min(state.written, len(sequence.tokens) - 1)
        if state.idle > state.patience:
            state.patience = FIRST_PROBE if accepted else min(2 * state.patience, LONGEST_WAIT)
        state.idle = 0

    def forget(self, sequence: RunningSequence) -> None:
        """The sequence has ended; what its full blocks hold stays known."""
        state = self._states.pop(sequence, None)
        if state is not None and sequence.blocks:
            state.settle(sequence, self._texts)

    def _run(
        self,
        work: Sequence[tuple[RunningSequence, int, list[int]]],
        guessing: Sequence[RunningSequence],
        ahead: int,
    ) -> list[int]:
        """One pass of the draft model; the guess of each sequence of `guessing`, `ahead` tokens behind its last."""
        self.passes += 1
        tokens = np.array([token for _, _, run in work for token in run], np.int32)
        positions = np.array([start + i for _, start, run in work for i in range(len(run))], np.int32)
        owners = np.array([row for row, (_, _, run) in enumerate(work) for _ in run], np.int32)
        tables = np.zeros((len(work), max(s.blocks for s, _, _ in work)), np.int32)
        for row, (sequence, _, _) in enumerate(work):
            tables[row, : sequence.blocks] = sequence.table[: sequence.blocks]
        ends = np.cumsum([len(run) for _, _, run in work]) - 1
        chosen = set(guessing)
        output_rows = np.array(
            [end for end, (s, _, _) in zip(ends.tolist(), work, strict=True) if s in chosen], np.int32
        )
        logits = np.empty((len(guessing), self._vocab_size), np.float32)
        self._model.forward(tokens, positions, owners, tables, output_rows, logits)
        return guess_ahead(guessing, logits, self._model, ahead=ahead) if guessing else []


class DraftState:
    """What the draft model knows of one sequence."""

    __slots__ = ("hits", "idle", "patience", "serial", "texts", "trials", "written")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.hits = 0.0
        self.trials = 0.0
        self.idle = 0
        """Steps since the last guess."""
        self.patience = FIRST_PROBE
        self.written = 0
        """Positions that it has written in the blocks that bear its marks."""
        self.texts: NDArray[np.int64] = np.empty(0, np.int64)

    def marks(self, first: int, last: int) -> NDArray[np.int64]:
        """What blocks `first` to `last - 1` of the table bear while this sequence is writing them."""
        return -(self.serial * MOST_BLOCKS + np.arange(first, last, dtype=np.int64)) - 1

    def write(self, sequence: RunningSequence, position: int, contents: NDArray[np.int64]) -> None:
        """The position next to the last one gets its KV."""
        index = position // BLOCK_TOKENS
        contents[sequence.table[index]] = self.marks(index, index + 1)[0]
        self.written = position + 1

    def settle(self, sequence: RunningSequence, contents: NDArray[np.int64]) -> int:
        """How many tokens have KV here: full blocks by their text, the last one if this sequence wrote it itself.

        Blocks that this sequence has filled get the name of their text. One token at least is left to run.
        """
        full = min(len(sequence.tokens) // BLOCK_TOKENS, sequence.blocks)
        self._name_texts(sequence.tokens, full)
        blocks = sequence.table[:full]
        own = contents[blocks] == self.marks(0, full)
        own[self.written // BLOCK_TOKENS :] = False
        contents[blocks[own]] = self.texts[:full][own]
        same = contents[blocks] == self.texts[:full]
        known = full if same.all() else int(same.argmin())
        tail = self.written // BLOCK_TOKENS
        if (
            tail == known < sequence.blocks
            and contents[sequence.table[tail]] == self.marks(tail, tail + 1)[0]
        ):
            return min(self.written, len(sequence.tokens) - 1)
        return min(known * BLOCK_TOKENS, len(sequence.tokens) - 1)

    def _name_texts(self, tokens: list[int], full: int) -> None:
        """A text is named by a hash that covers all blocks up to its end; a collision costs a poor guess."""
        names = self.texts.tolist()
        while len(names) < full:
            at = len(names) * BLOCK_TOKENS
            before = names[-1] if names else NOTHING
            names.append(hash((before, tuple(tokens[at : at + BLOCK_TOKENS]))) >> 1 & (1 << 62) - 1 | 1)
        if len(names) > len(self.texts):
            self.texts = np.array(names, np.int64)

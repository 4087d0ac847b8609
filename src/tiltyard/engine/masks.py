"""Which tokens an answer may take next, as one bit a token: allowed ids, bad words, `min_tokens`, the grammar.

A pure function of the request and the tokens so far (`docs/numerics.md`, "Masks").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.constraint import Constraint
from tiltyard.engine.request import EngineRequest

WORD_BITS = 32
FULL = np.uint32(0xFFFFFFFF)


def mask_words(vocab_size: int) -> int:
    """Words of 32 bits that hold a bit for each token."""
    return -(-vocab_size // WORD_BITS)


class TokenMask:
    """The masks of one answer; holds nothing that the tokens so far do not determine."""

    def __init__(self, request: EngineRequest, constraint: Constraint | None) -> None:
        self._constraint = constraint
        self._min_tokens = request.sampling.min_tokens
        self._stop_ids = np.array(sorted(request.stop_ids), np.int64)
        self._allowed_ids = request.sampling.allowed_token_ids
        self._always_bad = np.array([w[0] for w in request.sampling.bad_words if len(w) == 1], np.int64)
        self._after: dict[int, list[tuple[int, ...]]] = {}  # by the last but one token of the word
        for word in request.sampling.bad_words:
            if len(word) > 1:
                self._after.setdefault(word[-2], []).append(word)
        self._base: NDArray[np.uint32] | None = None

    @classmethod
    def of(cls, request: EngineRequest, constraint: Constraint | None) -> TokenMask | None:
        """The masks that a request asks for; `None` if it asks for none."""
        sampling = request.sampling
        if (
            constraint is None
            and sampling.allowed_token_ids is None
            and not sampling.bad_words
            and not (sampling.min_tokens and request.stop_ids)
        ):
            return None
        return cls(request, constraint)

    def fill(self, mask: NDArray[np.uint32], tokens: Sequence[int], outputs: int) -> bool:
        """Write the mask after `tokens`, of which the last `outputs` are the answer; False if any token may come.

        Raises what the grammar raises (`TiltyardError`).
        """
        bans = self._bans(tokens, outputs)
        if self._constraint is not None:
            self._constraint.fill(mask)
            if self._allowed_ids is not None:
                mask &= self._allowed(len(mask))
        elif self._allowed_ids is not None:
            mask[:] = self._allowed(len(mask))
        elif len(bans):
            mask.fill(FULL)
        else:
            return False
        if len(bans):
            np.bitwise_and.at(
                mask, bans // WORD_BITS, ~(np.uint32(1) << (bans % WORD_BITS).astype(np.uint32))
            )
        return True

    def _bans(self, tokens: Sequence[int], outputs: int) -> NDArray[np.int64]:
        bans = self._always_bad
        if outputs and (words := self._after.get(tokens[-1])):
            ends = [w[-1] for w in words if outputs >= len(w) - 1 and tuple(tokens[1 - len(w) :]) == w[:-1]]
            bans = np.concatenate([bans, np.array(ends, np.int64)])
        if outputs < self._min_tokens:
            bans = np.concatenate([bans, self._stop_ids])
        return bans

    def _allowed(self, words: int) -> NDArray[np.uint32]:
        if self._base is None:
            ids = np.array(self._allowed_ids, np.int64)
            self._base = np.zeros(words, np.uint32)
            np.bitwise_or.at(
                self._base, ids // WORD_BITS, np.uint32(1) << (ids % WORD_BITS).astype(np.uint32)
            )
        return self._base

"""Log-probabilities of a prompt's own tokens, remembered with the prefix tree's blocks.

KV from the tree saves the forward pass over a prompt, but its logits are gone; so a block that was scored keeps the
scores of its 32 tokens beside the KV. They are a function of the path that leads to the block, as the KV is, and
therefore the same bits for everybody who walks it. The score of a block's first token comes from the position
before it: a prompt whose scores are known up to some block runs again from one block earlier, and the block in
between gives both its own scores (equal bits) and the first one of the next.

Who wants the scores of the prompt's end alone gets them from there on; what lies before comes from the cache, whether
it was scored or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tiltyard import kernels
from tiltyard.engine.limits import not_finite
from tiltyard.engine.request import PromptScores


class ScoredNode(Protocol):
    """A block in the prefix tree."""

    scores: PromptScores | None
    """Of its own tokens, or `None` if nobody has asked."""


class ScoredPrompt:
    """The scores of one prompt, as far as they are known: those of its tokens from `first` to before `known`."""

    def __init__(self, prompt: Sequence[int], top: int, block_tokens: int, start: int = 0) -> None:
        count = len(prompt)
        self._tokens = np.array(prompt, np.int32)
        self._top = top
        self._size = block_tokens
        self.first = min(start, count)
        self.known = max(1, self.first)  # the first token of all follows nothing: it has no score
        self.scores = PromptScores(
            np.zeros(count, np.float32),
            np.zeros(count, np.int32),
            np.zeros((count, top), np.int32),
            np.zeros((count, top), np.float32),
        )

    @property
    def missing(self) -> bool:
        """Whether some token has no score yet."""
        return self.known < len(self._tokens)

    def usable_blocks(self, path: Sequence[ScoredNode]) -> int:
        """Take over what the nodes of a path know; returns how many of the path's blocks need not run again."""
        if not self.missing:
            return len(path)
        for index, node in enumerate(path):
            start, end = index * self._size, (index + 1) * self._size
            if end <= self.known:
                continue
            if node.scores is None or node.scores.top_ids.shape[1] < self._top:
                break
            self._put(start, node.scores)
        if not self.missing:
            return len(path)
        return min(len(path), (self.known - 1) // self._size)

    def rows(self, start: int, end: int) -> range:
        """Positions among `start … end - 1` whose logits score a token of the prompt."""
        return range(max(start, self.known - 1), min(end, len(self._tokens) - 1))

    def score(self, positions: range, logits: NDArray[np.float32]) -> None:
        """Score the tokens that follow `positions` from the positions' logits (positions, vocabulary).

        Raises `UpstreamFailed` where these are not finite.
        """
        first, last = positions.start + 1, positions.stop + 1
        try:
            scores = PromptScores(*kernels.score_tokens(logits, self._tokens[first:last], self._top))
        except ValueError as error:
            raise not_finite() from error
        if not np.isfinite(scores.logprobs).all():
            raise not_finite()
        self._put(first, scores)

    def remember(self, path: Sequence[ScoredNode]) -> None:
        """Give the nodes of a path the scores of their tokens, where these are known and theirs are not."""
        for index, node in enumerate(path):
            start, end = index * self._size, (index + 1) * self._size
            if end > self.known:
                return
            if start < self.first:
                continue
            if node.scores is None or node.scores.top_ids.shape[1] < self._top:
                node.scores = self._cut(start, end)

    def _cut(self, start: int, end: int) -> PromptScores:
        logprobs, ranks, ids, values = self.scores
        return PromptScores(
            logprobs[start:end].copy(),
            ranks[start:end].copy(),
            ids[start:end].copy(),
            values[start:end].copy(),
        )

    def _put(self, start: int, scores: PromptScores) -> None:
        count = len(scores.logprobs)
        self.scores.logprobs[start : start + count] = scores.logprobs
        self.scores.ranks[start : start + count] = scores.ranks
        self.scores.top_ids[start : start + count] = scores.top_ids[:, : self._top]
        self.scores.top_logprobs[start : start + count] = scores.top_logprobs[:, : self._top]
        self.known = max(self.known, start + count)

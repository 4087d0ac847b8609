"""Which tokens a sequence has seen, kept as arrays so that a step does not rebuild them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class SeenTokens:
    """Distinct tokens of prompt and output, with how often each was generated."""

    def __init__(self, prompt: Sequence[int], max_tokens: int) -> None:
        distinct = list(dict.fromkeys(prompt))
        capacity = len(distinct) + max_tokens
        self._index = {token: i for i, token in enumerate(distinct)}
        self._ids = np.zeros(capacity, np.int32)
        self._ids[: len(distinct)] = distinct
        self._counts = np.zeros(capacity, np.int32)

    def add(self, token: int) -> None:
        """Count a generated token."""
        index = self._index.setdefault(token, len(self._index))
        self._ids[index] = token
        self._counts[index] += 1

    @property
    def ids(self) -> NDArray[np.int32]:
        """Distinct token ids (N)."""
        return self._ids[: len(self._index)]

    @property
    def output_counts(self) -> NDArray[np.int32]:
        """How often each of `ids` was generated (N); 0 for tokens of the prompt alone."""
        return self._counts[: len(self._index)]

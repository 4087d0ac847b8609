"""What a grammar tells the engine: which tokens may come next. The engine knows no grammar library.

The life of a constraint: `grammar.start()` once for each answer; then, token by token, `fill` before sampling and
`accept` after it. Only tokens that were really taken are accepted, so nothing is ever rolled back: a draft is
first cut with `allowed`, and whoever verifies several positions in one step samples them one after the other,
appending each token before the next row is sampled (`sampler.sample`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """Where one answer stands in its grammar."""

    def fill(self, mask: NDArray[np.uint32]) -> None:
        """Write which tokens may come next: bit `i % 32` of word `i // 32` is token `i`.

        The end-of-answer tokens are among them only where the grammar accepts.
        Raises `TiltyardError` when the grammar cannot go on (more work in one step than it is allowed): the request
        fails.
        """

    def accept(self, token: int) -> None:
        """Go on by a token that the last mask allowed."""

    def allowed(self, draft: Sequence[int]) -> int:
        """How many tokens of `draft`, from its first, could be taken from here; the state does not change."""

    @property
    def ready(self) -> bool:
        """Whether the next mask will not keep the others waiting: where not, its answer is left out of a step.

        It may change from moment to moment; only the time depends on it, never a token.
        """

    @property
    def complete(self) -> bool:
        """Whether the grammar accepts and nothing may follow: the answer is over."""


class Grammar(Protocol):
    """A compiled grammar, shared by all answers that it constrains."""

    def start(self) -> Constraint:
        """Begin an answer."""

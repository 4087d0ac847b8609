"""Shares the prefill tokens of a step: between classes by weight, within a class so that none waits for ever.

The most urgent class that runs has the step, less the weighted share of each class below it. The share is a
limit too, whether or not the urgent class has prompts to run: its answers come a token a step, and a long batch
prompt must not make those steps long. Fractions are carried over, so that a small share of a small budget counts.

Within a class the first admitted prompt has a quarter of the class's tokens for certain; the rest goes to the
shortest first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tiltyard.engine.fairness import CLASSES, RANK
from tiltyard.engine.request import RequestClass
from tiltyard.engine.sequence import RunningSequence

CERTAIN = 4
"""The first admitted prompt has one token in so many of its class's."""


class PrefillBudget:
    """Splits budgets; keeps only the fractions that classes are owed."""

    def __init__(self, weights: Mapping[RequestClass, float]) -> None:
        self._weights = weights
        self._owed = dict.fromkeys(CLASSES, 0.0)

    def quota(self, name: RequestClass, budget: int, running: Collection[RequestClass]) -> int:
        """Tokens that prompts of a class can have in a step beside the classes that run; at least 1."""
        return max(1, int(budget * self._share(name, running)))

    def split(
        self, budget: int, prefills: Sequence[RunningSequence], running: Collection[RequestClass]
    ) -> dict[RunningSequence, int]:
        """Tokens to run for each prompt, in order of admission; `running` are the classes that run at all."""
        by_class: dict[RequestClass, list[RunningSequence]] = {}
        for sequence in prefills:
            by_class.setdefault(sequence.request.priority, []).append(sequence)
        chunks: dict[RunningSequence, int] = {}
        left = budget
        for name in sorted(by_class, key=lambda c: -RANK[c]):  # the most urgent one last: it has the rest
            demand = sum(sequence.pending for sequence in by_class[name])
            share = self._share(name, running)
            if share < 1.0:
                owed = min(self._owed[name], 1.0) + budget * share
                quota = min(int(owed), demand, left)
                self._owed[name] = owed - quota
            else:
                quota = min(demand, left)
            left -= quota
            chunks |= _within(by_class[name], quota)
        return chunks

    def _share(self, name: RequestClass, running: Collection[RequestClass]) -> float:
        own = self._weights[name]
        above = sum(self._weights[other] for other in running if RANK[other] < RANK[name])
        return own / (own + above)


def _within(prefills: Sequence[RunningSequence], quota: int) -> dict[RunningSequence, int]:
    """Split one class's tokens; the first admitted has its part, then the shortest go first."""
    first = prefills[0]
    chunks = {first: min(first.pending, -(-quota // CERTAIN))}
    left = quota - chunks[first]
    for sequence in sorted(prefills, key=lambda s: s.pending):
        more = min(sequence.pending - chunks.get(sequence, 0), left)
        chunks[sequence] = chunks.get(sequence, 0) + more
        left -= more
    return chunks

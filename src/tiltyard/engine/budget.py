"""Shares the prefill tokens of a step: between classes by weight, within a class so that none waits for ever.

The most urgent class takes what it wants, less the weighted share of those below it that want something. Each class
below gets, by weight, a part of what those above it run in this very step, decodes counted on both sides: answers
come a token a step, and a long batch prompt must not make those steps long. A small floor keeps batch prompts moving
where a single conversation runs, whose steps are not worth more. Fractions are carried over, so that a small share of
a small budget counts.

Within a class the first admitted prompt has a quarter of the class's tokens for certain; the rest goes to the
shortest first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from tiltyard.engine.fairness import CLASSES
from tiltyard.engine.request import RequestClass
from tiltyard.engine.sequence import RunningSequence

CERTAIN = 4
"""The first admitted prompt has one token in so many of its class's."""
FLOOR = 64
"""A class always gets one token in so many of a step."""
MOST_OWED = 2.0


class PrefillBudget:
    """Splits budgets; keeps only the fractions that classes are owed."""

    def __init__(self, weights: Mapping[RequestClass, float]) -> None:
        self._weights = weights
        self._owed = dict.fromkeys(CLASSES, 0.0)

    def limits(
        self, budget: int, decodes: Mapping[RequestClass, int], demand: Mapping[RequestClass, int]
    ) -> dict[RequestClass, float]:
        """Tokens of prompts that each class may have of `budget`, which is what `decodes` have left of a step."""
        limits: dict[RequestClass, float] = {}
        left, run, above = (
            float(budget),
            0,
            0.0,
        )  # `run`: tokens of the more urgent classes, `above` their weights
        for index, name in enumerate(CLASSES):
            wanted, answering, weight = demand.get(name, 0), decodes.get(name, 0), self._weights[name]
            below = [other for other in CLASSES[index + 1 :] if demand.get(other, 0)]
            if above:
                share = max(budget // FLOOR, weight / above * run) - answering + self._owed[name]
                limits[name] = min(max(0.0, share), left)
            else:
                owed = sum(int(self._owed[other]) for other in below)
                total = weight + sum(self._weights[other] for other in below)
                limits[name] = min(left, math.ceil(max(0.0, left - owed) * weight / total))
            taken = min(wanted, int(limits[name]))
            left -= taken
            run += answering + taken
            if wanted or answering:
                above += weight
        return limits

    def split(
        self, budget: int, decodes: Sequence[RunningSequence], prefills: Sequence[RunningSequence]
    ) -> dict[RunningSequence, int]:
        """Tokens to run for each prompt, in order of admission, beside a token for each of `decodes`."""
        if not prefills:  # nobody wants anything, so nobody is owed anything
            self._owed = dict.fromkeys(CLASSES, 0.0)
            return {}
        by_class: dict[RequestClass, list[RunningSequence]] = {}
        for sequence in prefills:
            by_class.setdefault(sequence.request.priority, []).append(sequence)
        demand = {name: sum(s.pending for s in group) for name, group in by_class.items()}
        answering = Counter(sequence.request.priority for sequence in decodes)
        chunks: dict[RunningSequence, int] = {}
        for name, limit in self.limits(budget, answering, demand).items():
            wanted = demand.get(name, 0)
            quota = min(wanted, int(limit))
            self._owed[name] = min(limit - quota, MOST_OWED) if wanted > quota else 0.0
            if quota:
                chunks |= _within(by_class[name], quota)
        return chunks


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

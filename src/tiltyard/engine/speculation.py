"""Decides how many tokens to guess for whom: as many as pay for their rows, by what guesses were worth so far.

A step of more rows costs more time; a draft that is right saves a step. Drafts are taken, likeliest first, for as
long as they raise the tokens a second of the whole batch. Whoever's guesses are poor gets none, and on a
machine that a large batch keeps busy nobody gets any. Nothing here can change a token (`verify.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiltyard.engine.batch import Drafts
from tiltyard.engine.prompt_lookup import PromptLookup
from tiltyard.engine.request import EngineCounters
from tiltyard.engine.scheduler import Scheduler
from tiltyard.engine.sequence import RunningSequence
from tiltyard.engine.verify import Choice
from tiltyard.errors import ConfigurationError

MOST_DRAFTS = 16
"""Tokens guessed for one sequence in one step."""
LEAST_GAIN = 1.03
"""Expected speed with drafts over that without, below which it is not worth the risk."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What a forward pass of so many rows costs, in units of a pass of one row; between them lines.

    >>> StepCosts((1, 4, 8), (1.0, 1.3, 2.1)).of(6)
    1.7
    """

    rows: tuple[int, ...]
    costs: tuple[float, ...]
    first_s: float = 0.005
    """Seconds of a pass of one row, to compare one model with another."""

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.costs) or len(self.rows) < 2 or self.rows[0] != 1:
            raise ConfigurationError("step costs need two sizes at least, the first of 1 row", param="costs")
        if list(self.rows) != sorted(set(self.rows)) or not all(cost > 0 for cost in self.costs):
            raise ConfigurationError("step costs need growing sizes and costs above 0", param="costs")

    def of(self, rows: int) -> float:
        """The cost of `rows` rows; beyond the last size as between the last two."""
        high = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        (r0, r1), (c0, c1) = self.rows[high - 1 : high + 1], self.costs[high - 1 : high + 1]
        return c0 + (c1 - c0) * (rows - r0) / (r1 - r0)


TYPICAL_COSTS = StepCosts((1, 2, 4, 8, 16, 32, 64), (1.0, 1.25, 1.8, 3.0, 5.5, 10.5, 20.5))
"""A 135M model of int4 weights on two AVX2 cores."""


class Drafter(Protocol):
    """Guesses the next tokens of a sequence."""

    token_cost: float
    """Of guessing one token, in units of a forward pass of one row."""

    def chances(self, sequence: RunningSequence, most: int, least: float) -> Sequence[float]:
        """How likely guess 1, 2, … is to be kept: falling numbers, `most` at most, those of `least` and more."""

    def draft(self, lengths: Mapping[RunningSequence, int]) -> dict[RunningSequence, list[int]]:
        """Guess so many tokens for each sequence, or fewer."""

    def learn(self, sequence: RunningSequence, drafted: int, accepted: int) -> None:
        """Of `drafted` guesses the first `accepted` were right, and the next one, if any, was wrong."""

    def forget(self, sequence: RunningSequence) -> None:
        """The sequence has ended."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How one engine guesses ahead, and what rows cost it."""

    drafter: Drafter = field(default_factory=PromptLookup)
    costs: StepCosts = TYPICAL_COSTS


class Speculator:
    """One drafter under the rule above."""

    def __init__(self, how: Speculation, scheduler: Scheduler, counters: EngineCounters) -> None:
        self._drafter = how.drafter
        self._costs = how.costs
        self._scheduler = scheduler
        self._counters = counters

    def propose(self, work: Sequence[tuple[RunningSequence, int]], room: int) -> Drafts:
        """Guesses for the sequences whose next token this step will choose, at most `room` in all."""
        ending = [sequence for sequence, chunk in work if chunk == sequence.pending]
        if not ending or room < 1:
            return {}
        rows = sum(chunk for _, chunk in work)
        least = self._least_chance(rows, len(ending))
        chances: dict[RunningSequence, Sequence[float]] = {}
        for sequence in ending:
            # The token that this step chooses anyway is not a guess.
            most = min(room, MOST_DRAFTS, sequence.request.max_tokens - sequence.outputs - 1)
            if most > 0 and sequence.request.speculate:
                hopes = self._drafter.chances(sequence, most, least)
                if hopes:
                    chances[sequence] = hopes
        if not chances:
            return {}
        lengths = share_rows(
            chances, self._costs, rows=rows, ready=len(ending), room=room, token_cost=self._drafter.token_cost
        )
        chunks = dict(work)
        granted = {s: self._scheduler.reserve(s, chunks[s], n) for s, n in lengths.items()}
        drafts = self._drafter.draft({s: n for s, n in granted.items() if n})
        possible = {s: fit for s, draft in drafts.items() if (fit := s.possible(draft))}
        for sequence in drafts.keys() - possible.keys():  # the grammar refuses the first guess already
            self._drafter.learn(sequence, 1, 0)
        return possible

    def _least_chance(self, rows: int, ready: int) -> float:
        """A guess that is less likely need not be weighed: half of what its row must bring on average."""
        a_row = (self._costs.of(rows + MOST_DRAFTS) - self._costs.of(rows)) / MOST_DRAFTS
        return 0.5 * (a_row + self._drafter.token_cost) * ready / self._costs.of(ready)

    def learn(self, drafts: Drafts, choices: Sequence[Choice]) -> None:
        """Tell the drafter, and each sequence, how many of its guesses were kept."""
        kept = dict.fromkeys(drafts, -1)  # one token of each sequence was no guess
        for choice in choices:
            if choice.sequence in kept:
                kept[choice.sequence] += 1
        for sequence, guesses in kept.items():
            accepted = max(0, guesses)  # a sequence that fails has no token
            sequence.drafted_tokens += len(drafts[sequence])
            sequence.accepted_tokens += accepted
            self._counters.drafts += 1
            self._counters.draft_tokens += len(drafts[sequence])
            self._counters.accepted_tokens += accepted
            self._drafter.learn(sequence, len(drafts[sequence]), accepted)

    def forget(self, sequence: RunningSequence) -> None:
        """The sequence has ended."""
        self._drafter.forget(sequence)


def share_rows(
    chances: Mapping[RunningSequence, Sequence[float]],
    costs: StepCosts,
    *,
    rows: int,
    ready: int,
    room: int,
    token_cost: float,
) -> dict[RunningSequence, int]:
    """How many guesses each sequence gets: those that make tokens a second highest, or none.

    With `ready` tokens sure, a step of m guesses of chances p gives ready + sum(p) tokens and costs what a step of
    `ready` rows does, and `cost(rows + m) - cost(rows) + m * token_cost` more. The m likeliest are the best m, and
    since the chances of a sequence fall, they are the first ones of each.
    """
    guesses = sorted(((p, s) for s, row in chances.items() for p in row), key=_chance, reverse=True)[:room]
    sure = costs.of(ready)
    before = costs.of(rows)
    tokens, best, taken = float(ready), LEAST_GAIN * ready / sure, 0
    for m, (chance, _) in enumerate(guesses, 1):
        tokens += chance
        speed = tokens / (sure + costs.of(rows + m) - before + m * token_cost)
        if speed > best:
            best, taken = speed, m
    lengths: dict[RunningSequence, int] = {}
    for _, sequence in guesses[:taken]:
        lengths[sequence] = lengths.get(sequence, 0) + 1
    return lengths


def _chance(guess: tuple[float, RunningSequence]) -> float:
    return guess[0]

"""How what users ask differs from what a set asks, by language, length and kind of task; and which items to add.

A slice is to be added where its share among users is larger than in the set beyond chance (the lower end of Wilson's 95%
interval of the users' share) and by at least `LEAST_GAP`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tiltyard.evals.item import Item
from tiltyard.rating.category import category_of
from tiltyard.rating.language import UNDECIDED, language_of
from tiltyard.rating.paired import mean_score

LEAST_GAP: Final = 0.03
LEAST_PROMPTS: Final = 20
"""With fewer prompts of users nothing is said."""
_LENGTHS: Final = (
    (40, "up to 40 letters"),
    (200, "41 to 200"),
    (1000, "201 to 1,000"),
    (math.inf, "over 1,000"),
)


@dataclass(frozen=True, slots=True)
class DriftRow:
    """One slice: its share among users' prompts and among the set's items."""

    trait: str
    value: str
    users: float
    items: float
    to_add: int
    """Items of this slice that would bring the set's share to the users'; 0 where it has enough."""


@dataclass(frozen=True, slots=True)
class ToAdd:
    """A slice that the set lacks."""

    trait: str
    value: str
    items: int


@dataclass(frozen=True, slots=True)
class Drift:
    """The comparison of two distributions."""

    rows: tuple[DriftRow, ...]
    """The largest gaps of each trait first."""
    distances: dict[str, float]
    """Total variation by trait: 0 the same, 1 nothing in common."""
    prompts: int
    items: int

    @property
    def to_add(self) -> tuple[ToAdd, ...]:
        """What the set lacks."""
        return tuple(ToAdd(row.trait, row.value, row.to_add) for row in self.rows if row.to_add)

    @property
    def sentence(self) -> str:
        """In words."""
        if self.prompts < LEAST_PROMPTS:
            return f"The vault has {self.prompts} prompts of users; {LEAST_PROMPTS} or more are needed to say how they differ from the set."
        told = ", ".join(f"{trait} {distance:.2f}" for trait, distance in self.distances.items())
        return f"{self.prompts:,} prompts of users against {self.items:,} items; distance (0 the same, 1 nothing in common): {told}."


def find_drift(items: Sequence[Item], prompts: Sequence[str]) -> Drift:
    """Compare users' prompts with the first turns of a set."""
    if len(prompts) < LEAST_PROMPTS:
        return Drift((), {}, len(prompts), len(items))
    asked = [traits_of(prompt) for prompt in prompts]
    has = [traits_of(item.turns[0]) for item in items]
    rows: list[DriftRow] = []
    distances: dict[str, float] = {}
    for trait in ("language", "task", "length"):
        users = Counter(one[trait] for one in asked)
        own = Counter(one[trait] for one in has)
        found = [
            _row((trait, value), users[value], len(asked), own[value], len(has))
            for value in users.keys() | own.keys()
        ]
        found.sort(key=lambda row: (row.items - row.users, row.value))
        rows += found
        distances[trait] = sum(abs(row.users - row.items) for row in found) / 2
    return Drift(tuple(rows), distances, len(prompts), len(items))


def traits_of(prompt: str) -> dict[str, str]:
    """The slices of a prompt, told from its words.

    >>> traits_of("Write a Python function.")
    {'language': 'en', 'task': 'code', 'length': 'up to 40 letters'}
    """
    length = next(name for most, name in _LENGTHS if len(prompt) <= most)
    return {"language": language_of(prompt), "task": category_of(prompt), "length": length}


def _row(slice_: tuple[str, str], asked: int, prompts: int, has: int, items: int) -> DriftRow:
    users, own = asked / prompts, has / items
    share = mean_score([1.0] * asked + [0.0] * (prompts - asked), [str(number) for number in range(prompts)])
    known = slice_[1] not in (UNDECIDED, "other")  # nobody can write items of an unknown kind
    lacking = known and users - own >= LEAST_GAP and share.lower > own and users < 1
    # With k more items of this slice alone: (has + k) / (items + k) = users.
    to_add = math.ceil((users * items - has) / (1 - users)) if lacking else 0
    return DriftRow(*slice_, users, own, to_add)

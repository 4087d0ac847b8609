"""What makes two runs the same run: set, identity, settings, seed. Ids, seeds and keys are derived from these and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tiltyard.errors import InvalidRequest
from tiltyard.evals.contender import Contender
from tiltyard.evals.item import Item
from tiltyard.evals.sets import EvalSet
from tiltyard.identity.canonical import Json, canonical_json

MAX_SEED = 2**53 - 1
DEFAULT_MAX_TOKENS = 256


@dataclass(frozen=True)
class RunPlan:
    """One set, one identity, one way of asking.

    `samples` and `items` say how much of the run is wanted now; they are no part of its id, so a run of ten items is
    the beginning of the run of all.
    """

    eval_set: EvalSet
    contender: Contender
    seed: int = 0
    settings: Mapping[str, Json] = field(default_factory=dict)
    """Fields of every request."""
    marking: Mapping[str, Json] = field(default_factory=dict)
    """What the set's checks leave open (`Marker.terms`): part of the run's id, and of no question's key."""
    samples: int = 1
    items: tuple[Item, ...] = ()
    """Those that are asked now; all where left out."""
    repeat: int = 0
    """More than 0: the same run again, from the first token."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise InvalidRequest(f"seed is {self.seed}; it must be 0 to 2^53 - 1.", param="seed")
        if self.samples < 1:
            raise InvalidRequest(f"samples is {self.samples}; it must be 1 or more.", param="samples")

    @cached_property
    def run(self) -> str:
        """The run's id."""
        return "evr_" + self._hash("run", self.eval_set.digest, dict(self.marking))[:32]

    @property
    def wanted(self) -> tuple[Item, ...]:
        """The items of this sitting."""
        return self.items or self.eval_set.items

    def places(self) -> Iterator[tuple[Item, int]]:
        """Every item and sample that is wanted, first samples first."""
        for sample in range(self.samples):
            for item in self.wanted:
                yield item, sample

    def seed_of(self, item: str, sample: int, turn: int) -> int:
        """The seed of one answer: 53 bits of a hash. The same for every identity, so that luck is shared."""
        name = canonical_json(["tiltyard eval seed", self.seed, item, sample, turn])
        return int.from_bytes(hashlib.sha256(name).digest()[:8]) >> 11

    def key_of(self, item: Item, sample: int, turn: int) -> str:
        """The idempotency key of one answer: the server gives what it gave to the same question, and makes nothing twice."""
        return "eval-" + self._hash("key", self.contender.alias, item.digest, sample, turn)[:48]

    def grade_key(self, item: Item, sample: int) -> str:
        """Tells an answer from all others, wherever it is graded."""
        return "eval-" + self._hash("grade", item.digest, sample)[:48]

    def max_tokens_of(self, item: Item) -> Json:
        """The longest answer of an item."""
        return item.max_tokens or self.settings.get("max_tokens", DEFAULT_MAX_TOKENS)

    def _hash(self, *what: Json) -> str:
        common: list[Json] = [self.contender.behaviour, dict(self.settings), self.seed, self.repeat]
        return hashlib.sha256(canonical_json(["tiltyard eval", *common, *what])).hexdigest()

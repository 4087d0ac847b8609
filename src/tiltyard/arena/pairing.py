"""Which two contestants meet, and on which side each stands; both drawn with recorded probabilities.

Policy `uniform/1`: every unordered pair of `n` contestants has probability `2 / (n (n - 1))`, and given the
pair each left-right order has probability `1/2`. Policy `information/1` draws the pair from a table of
probabilities (`arena/pair_weights.py`); the order is drawn as before. A later estimate can undo any policy only if
the probability of what it drew was kept, so a `Draw` carries both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Final, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import Unavailable
from tiltyard.events.schema import IdentityRegistered
from tiltyard.identity.canonical import Digest
from tiltyard.identity.manifest import Behaviour

POLICY = "uniform/1"
INFORMATION: Final = "information/1"
_GRAIN: Final = 1 << 48
"""Probabilities are drawn as whole numbers of about so many parts, and recorded as they are drawn."""


class Randomness(Protocol):
    """The part of `random.Random` that a draw needs; serve with `random.SystemRandom()`."""

    def randrange(self, stop: int, /) -> int:
        """Return an integer in `[0, stop)`, each equally likely."""
        ...


@dataclass(frozen=True)
class Entrant:
    """An identity that may be drawn, with what the reveal says about it."""

    name: str
    behaviour: Digest
    description: str = ""
    organization: str = ""
    license: str = ""
    manifest: Behaviour | None = None

    @classmethod
    def from_registration(cls, registered: IdentityRegistered) -> Self:
        """Make an entrant from the event that registered its identity."""
        declaration = registered.declaration
        return cls(
            name=registered.name,
            behaviour=registered.behaviour,
            description=declaration.description,
            organization=declaration.organization,
            license=declaration.license,
            manifest=registered.behaviour_manifest,
        )


class Draw(NamedTuple):
    """Who stands on which side, and how likely that was."""

    a: Entrant
    b: Entrant
    pair_probability: float
    """Of this unordered pair."""
    side_probability: float
    """Of this left-right order, given the pair."""
    policy: str = POLICY
    slice: str = ""
    """The slice by whose target the probability was set; empty where none was."""


def draw(contestants: Sequence[Entrant], rng: Randomness) -> Draw:
    """Draw a pair and a side order.

    Raises `Unavailable` when fewer than two different behaviours stand ready: two names of one behaviour
    would make a battle of a model against itself.
    """
    ready = enough(contestants)
    first = rng.randrange(len(ready))
    second = rng.randrange(len(ready) - 1)
    second += second >= first  # skip `first`: every ordered pair is now equally likely, and so is each order
    return Draw(ready[first], ready[second], 1 / comb(len(ready), 2), 1 / 2)


def draw_from(
    ready: Sequence[Entrant], probabilities: NDArray[np.float64], rng: Randomness, *, slice_name: str = ""
) -> Draw:
    """Draw a pair by a table of probabilities, then a side order with 1/2 each.

    `ready` are different behaviours; `probabilities[i, j]`, `i < j`, is that of the pair, and every one of them is
    above 0. What is recorded is exactly what was drawn: whole parts of the whole.
    """
    first, second = np.triu_indices(len(ready), 1)
    parts = [max(1, round(chance * _GRAIN)) for chance in probabilities[first, second].tolist()]
    whole = sum(parts)
    left = rng.randrange(whole)
    pair = 0
    while left >= parts[pair]:
        left -= parts[pair]
        pair += 1
    i, j = int(first[pair]), int(second[pair])
    if rng.randrange(2):
        i, j = j, i
    return Draw(ready[i], ready[j], parts[pair] / whole, 1 / 2, INFORMATION, slice_name)


def enough(contestants: Sequence[Entrant]) -> list[Entrant]:
    """The different contestants; raises `Unavailable` with fewer than two."""
    ready = different(contestants)
    if len(ready) < 2:
        raise Unavailable(
            f"a battle needs 2 contestants that differ; {len(ready)} ready now. Wait for the models to load, "
            "or name more identities under [arena] contestants in tiltyard.toml.",
            code="too_few_contestants",
        )
    return ready


def different(contestants: Sequence[Entrant]) -> list[Entrant]:
    """The contestants by name, one for each behaviour (the first that was listed)."""
    by_behaviour = {entrant.behaviour: entrant for entrant in reversed(contestants)}
    return sorted(by_behaviour.values(), key=lambda entrant: entrant.name)

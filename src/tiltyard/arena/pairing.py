"""Which two contestants meet, and on which side each stands; both drawn with recorded probabilities.

Policy `uniform/1`: every unordered pair of `n` contestants has probability `2 / (n (n - 1))`, and given the
pair each left-right order has probability `1/2`. A later estimate can undo any policy only if the
probability of what it drew was kept, so a `Draw` carries both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import NamedTuple, Protocol, Self

from tiltyard.errors import Unavailable
from tiltyard.events.schema import IdentityRegistered
from tiltyard.identity.canonical import Digest
from tiltyard.identity.manifest import Behaviour

POLICY = "uniform/1"


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


def draw(contestants: Sequence[Entrant], rng: Randomness) -> Draw:
    """Draw a pair and a side order.

    Raises `Unavailable` when fewer than two different behaviours stand ready: two names of one behaviour
    would make a battle of a model against itself.
    """
    ready = different(contestants)
    if len(ready) < 2:
        raise Unavailable(
            f"a battle needs 2 contestants that differ; {len(ready)} ready now. Wait for the models to load, "
            "or name more identities under [arena] contestants in tiltyard.toml.",
            code="too_few_contestants",
        )
    first = rng.randrange(len(ready))
    second = rng.randrange(len(ready) - 1)
    second += second >= first  # skip `first`: every ordered pair is now equally likely, and so is each order
    return Draw(ready[first], ready[second], 1 / comb(len(ready), 2), 1 / 2)


def different(contestants: Sequence[Entrant]) -> list[Entrant]:
    """The contestants by name, one for each behaviour (the first that was listed)."""
    by_behaviour = {entrant.behaviour: entrant for entrant in reversed(contestants)}
    return sorted(by_behaviour.values(), key=lambda entrant: entrant.name)

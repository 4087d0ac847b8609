"""What several sources say of the same models, side by side: people, judges, fixed sets, experts; and where they disagree.

Sources have scales of their own (points, win rates, shares of items solved), so their numbers are never averaged. What can be compared is order:
a source *puts i above j* when the lower bound of i lies above the upper bound of j. Two sources disagree on a pair when one puts i above j
and the other j above i.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from tiltyard.identity.canonical import Json

Kind: TypeAlias = Literal["people", "judge", "fixed_set", "expert"]
KINDS: Final[tuple[Kind, ...]] = ("people", "judge", "fixed_set", "expert")
"""Columns, in the order shown; `people` is the arena's own rating."""


@dataclass(frozen=True)
class Estimate:
    """What one source says of one model."""

    kind: Kind
    source: str
    """Which judge, set or panel: its name and version."""
    estimate: float
    lower: float
    upper: float
    n: int
    """Votes, verdicts or items behind it."""
    unit: str = "share"
    """`points` or `share`."""

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "kind": self.kind,
            "source": self.source,
            "estimate": round(self.estimate, 4),
            "lower": round(self.lower, 4),
            "upper": round(self.upper, 4),
            "n": self.n,
            "unit": self.unit,
        }


class Source(Protocol):
    """Reads one kind of result from wherever it is; blocks."""

    def estimates(self) -> Mapping[str, Sequence[Estimate]]:
        """Return what it says by behaviour digest; a model without a result is left out, never put at 0."""


class Disagreement(NamedTuple):
    """One pair that two sources put in opposite orders."""

    above: str
    """Behaviour that `says` puts above `below`."""
    below: str
    says: str
    """Source, as `kind: name`."""
    denies: str

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {"above": self.above, "below": self.below, "says": self.says, "denies": self.denies}


def disagreements(estimates: Mapping[str, Sequence[Estimate]]) -> list[Disagreement]:
    """Return every pair on which two sources disagree; estimates are by model.

    Time grows with models squared times sources squared.
    """
    by_source: dict[tuple[Kind, str], dict[str, Estimate]] = {}
    for model, said in estimates.items():
        for one in said:
            by_source.setdefault((one.kind, one.source), {})[model] = one
    found = []
    for (first, ours), (second, theirs) in combinations(sorted(by_source.items(), key=_place), 2):
        both = sorted(ours.keys() & theirs.keys())
        for i, j in combinations(both, 2):
            here, there = _above(ours[i], ours[j]), _above(theirs[i], theirs[j])
            if here * there < 0:
                above, below = (i, j) if here > 0 else (j, i)
                found.append(Disagreement(above, below, ": ".join(first), ": ".join(second)))
    return found


def gathered(sources: Iterable[Source]) -> dict[str, list[Estimate]]:
    """Ask every source; estimates by model."""
    together: dict[str, list[Estimate]] = {}
    for source in sources:
        for model, said in source.estimates().items():
            together.setdefault(model, []).extend(said)
    return together


def _above(one: Estimate, other: Estimate) -> int:
    return (one.lower > other.upper) - (other.lower > one.upper)


def _place(item: tuple[tuple[Kind, str], dict[str, Estimate]]) -> tuple[int, str]:
    (kind, name), _ = item
    return KINDS.index(kind), name

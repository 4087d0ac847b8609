"""Votes one by one, as columns: what weights, clusters, style control, slices and Elo need and counts lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Digest, canonical_json
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.outcomes import FILE_LABELS, Outcome, encode, look_up

Unknown: TypeAlias = Literal["refuse", "count"]
"""What happens to an outcome nobody defined: the whole file is refused, or the vote is left out and counted."""

Trait: TypeAlias = NDArray[np.str_] | NDArray[np.float64]
"""One value a vote: text such as a language, or a number such as turns."""


@dataclass(frozen=True, eq=False)
class Votes:
    """Votes in the order they came; each array has shape `(votes,)`. Build it with `from_columns`."""

    models: tuple[str, ...]
    """Sorted, each once; a model without votes may be among them."""
    a: NDArray[np.intp]
    """Index of the left model."""
    b: NDArray[np.intp]
    """Index of the right model."""
    outcome: NDArray[np.int64]
    """Position in `OUTCOMES`."""
    time_us: NDArray[np.int64] | None = None
    """Microseconds since 1970, UTC."""
    voter: NDArray[np.intp] | None = None
    """Number of the voter, from 0."""
    pair_probability: NDArray[np.float64] | None = None
    """Probability with which the unordered pair was drawn."""
    traits: Mapping[str, Trait] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Labels that were left out, and how often; empty unless they were to be counted."""

    @classmethod
    def from_columns(
        cls,
        model_a: Sequence[str],
        model_b: Sequence[str],
        winner: Sequence[str],
        *,
        vocabulary: Mapping[str, Outcome] = FILE_LABELS,
        unknown: Unknown = "refuse",
        models: Iterable[str] = (),
        time_us: ArrayLike | None = None,
        voter: Sequence[str] | None = None,
        pair_probability: ArrayLike | None = None,
        traits: Mapping[str, ArrayLike] | None = None,
    ) -> Votes:
        """Take columns of equal length.

        Raises `InvalidRequest` naming the column: lengths that differ, an unknown outcome (unless `unknown`
        is `count`), a model against itself, a probability outside (0, 1].

        >>> Votes.from_columns(["x", "y"], ["y", "x"], ["tie", "?"], unknown="count").unknown
        {'?': 1}
        """
        size = len(model_a)
        for name, length in (("model_b", len(model_b)), ("winner", len(winner))):
            if length != size:
                raise InvalidRequest(
                    f"the columns model_a and {name} have {size:,} and {length:,} values; a vote needs both.",
                    param=name,
                )
        left_out: Counter[str] = Counter()
        keep = np.ones(size, dtype=np.bool_)
        if unknown == "count":
            keep = np.fromiter((label in vocabulary for label in winner), np.bool_, size)
            left_out = Counter(label for label in winner if label not in vocabulary)
            winner = [label for label in winner if label in vocabulary]
        codes = np.zeros(size, dtype=np.int64)
        codes[keep] = encode(winner, vocabulary)
        names = sorted({*model_a, *model_b, *models})
        place = {name: number for number, name in enumerate(names)}
        a, b = (look_up(side, place).astype(np.intp) for side in (model_a, model_b))
        if (selves := (a == b) & keep).any():
            raise InvalidRequest(
                f"{int(selves.sum()):,} votes set {names[int(a[np.argmax(selves)])]!r} against itself; such "
                "a vote compares nothing. Remove them.",
                param="model_b",
            )
        people: dict[str, int] = {}
        numbers = None
        if voter is not None:
            numbers = np.array([people.setdefault(name, len(people)) for name in voter], dtype=np.intp)
            numbers = _long_as("voter", numbers, size)
        times = None
        if time_us is not None:
            times = _long_as("time_us", np.asarray(time_us, dtype=np.int64), size)
        probability = None if pair_probability is None else _probabilities(pair_probability, size)
        votes = cls(
            models=tuple(names),
            a=a,
            b=b,
            outcome=codes,
            time_us=times,
            voter=numbers,
            pair_probability=probability,
            traits={name: _trait(name, values, size) for name, values in (traits or {}).items()},
            unknown=dict(left_out.most_common()),
        )
        return votes if keep.all() else votes.select(keep)

    def __len__(self) -> int:
        return len(self.a)

    def select(self, keep: NDArray[np.bool_]) -> Votes:
        """Return the votes where `keep` is true, among the same models."""
        return Votes(
            models=self.models,
            a=self.a[keep],
            b=self.b[keep],
            outcome=self.outcome[keep],
            time_us=None if self.time_us is None else self.time_us[keep],
            voter=None if self.voter is None else self.voter[keep],
            pair_probability=None if self.pair_probability is None else self.pair_probability[keep],
            traits={name: values[keep] for name, values in self.traits.items()},
            unknown=self.unknown,
        )

    @property
    def counts(self) -> PairCounts:
        """The same votes added up by pair."""
        return PairCounts.from_codes(self.models, self.a, self.b, self.outcome)

    @property
    def digest(self) -> Digest:
        """Names the votes: SHA-256 of a canonical JSON line that names models and columns, then of each column.

        Columns follow in the order of that line, as little-endian 64-bit integers or floats; text as canonical JSON.
        """
        columns: dict[str, NDArray[np.generic]] = {"a": self.a, "b": self.b, "outcome": self.outcome}
        optional = {"time_us": self.time_us, "voter": self.voter, "pair_probability": self.pair_probability}
        columns |= {name: values for name, values in optional.items() if values is not None}
        columns |= {f"trait.{name}": self.traits[name] for name in sorted(self.traits)}
        hasher = sha256(canonical_json({"models": self.models, "columns": list(columns)}) + b"\n")
        for values in columns.values():
            match values.dtype.kind:
                case "i":
                    hasher.update(values.astype("<i8").tobytes())
                case "f":
                    hasher.update(values.astype("<f8").tobytes())
                case _:
                    hasher.update(canonical_json(values.tolist()))
        return f"sha256:{hasher.hexdigest()}"

    def need_voters(self) -> NDArray[np.intp]:
        """Return `voter`, or raise `InvalidRequest` that says it is missing."""
        if self.voter is None:
            raise InvalidRequest("these votes do not say who cast them; give a voter column.", param="voter")
        return self.voter

    def need_times(self) -> NDArray[np.int64]:
        """Return `time_us`, or raise `InvalidRequest` that says it is missing."""
        if self.time_us is None:
            raise InvalidRequest("these votes have no times; give a time column.", param="time_us")
        return self.time_us


_Array = TypeVar("_Array", bound=NDArray[np.generic])


def _long_as(name: str, values: _Array, size: int) -> _Array:
    if values.shape != (size,):
        raise InvalidRequest(
            f"the column {name} has shape {values.shape}; there are {size:,} votes.", param=name
        )
    return values


def _trait(name: str, values: ArrayLike, size: int) -> Trait:
    given = np.asarray(values)
    if given.dtype.kind in "iufb":
        return _long_as(name, given.astype(np.float64), size)
    return _long_as(name, given.astype(np.str_), size)


def _probabilities(values: ArrayLike, size: int) -> NDArray[np.float64]:
    probability = _long_as("pair_probability", np.asarray(values, dtype=np.float64), size)
    wrong = ~((probability > 0) & (probability <= 1))
    if wrong.any():
        raise InvalidRequest(
            f"a pair_probability is {float(probability[wrong][0])}; a served pair had one above 0 and up to 1.",
            param="pair_probability",
        )
    return probability

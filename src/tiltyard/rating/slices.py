"""Parts of the votes: by language, category, turns, length or any trait, and by time, half-open and in UTC."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.admission import MICROSECONDS_PER_DAY
from tiltyard.rating.votes import Votes

_OPERATORS: Final[dict[str, np.ufunc]] = {
    "=": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_CONDITION = re.compile(r"([A-Za-z_][A-Za-z0-9_./-]*)\s*(!=|<=|>=|=|<|>)(.+)")


@dataclass(frozen=True)
class Condition:
    """One comparison of a trait with a value, such as `language=en` or `turns>=2`."""

    trait: str
    comparison: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read `trait=value`, or with `!=`, `<`, `<=`, `>`, `>=`; raises `InvalidRequest` naming `where`.

        >>> Condition.parse("turns>=2")
        Condition(trait='turns', comparison='>=', value='2')
        """
        if (found := _CONDITION.fullmatch(text.strip())) is None:
            raise InvalidRequest(
                f"{text[:80]!r} is no condition; write a trait, one of {' '.join(_OPERATORS)}, and a value, such "
                "as language=en or turns>=2.",
                param="where",
            )
        return cls(found[1], found[2], found[3].strip())

    def __str__(self) -> str:
        return f"{self.trait}{self.comparison}{self.value}"

    def holds(self, votes: Votes) -> NDArray[np.bool_]:
        """Say for each vote whether it is in; shape `(votes,)`.

        Raises `InvalidRequest` for a trait that the votes lack, and for an order where there is none.
        """
        if self.trait not in votes.traits:
            known = ", ".join(sorted(votes.traits)) or "none"
            raise InvalidRequest(
                f"these votes have no trait {self.trait!r}; they have {known}.", param="where"
            )
        values = votes.traits[self.trait]
        compare = _OPERATORS[self.comparison]
        if values.dtype.kind != "f":
            if self.comparison not in ("=", "!="):
                raise InvalidRequest(
                    f"{self.trait} is text, which {self.comparison} does not order; use = or !=.",
                    param="where",
                )
            return np.asarray(compare(values, self.value), dtype=np.bool_)
        try:
            number = float(self.value) if self.value.isascii() else math.nan
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise InvalidRequest(f"{self.trait} is a number; {self.value[:40]!r} is none.", param="where")
        return np.asarray(compare(values, number), dtype=np.bool_)


def where(votes: Votes, conditions: Iterable[Condition]) -> Votes:
    """Return the votes for which every condition holds."""
    keep = np.ones(len(votes), dtype=np.bool_)
    for condition in conditions:
        keep &= condition.holds(votes)
    return votes if keep.all() else votes.select(keep)


def by_value(votes: Votes, trait: str) -> dict[str, Votes]:
    """Split votes by the values of a text trait, most votes first; raises `InvalidRequest` naming `where`."""
    if trait not in votes.traits or votes.traits[trait].dtype.kind == "f":
        raise InvalidRequest(f"these votes have no text trait {trait!r} to split by.", param="where")
    values, count = np.unique(votes.traits[trait], return_counts=True)
    order = np.argsort(-count, kind="stable")
    return {str(values[i]): votes.select(votes.traits[trait] == values[i]) for i in order}


@dataclass(frozen=True)
class Period:
    """A half-open stretch of time, `[start_us, end_us)`, microseconds since 1970 UTC."""

    start_us: int
    end_us: int

    def __str__(self) -> str:
        return f"[{_utc(self.start_us)}, {_utc(self.end_us)})"

    @property
    def until(self) -> str:
        """Its end, UTC, to the minute."""
        return _utc(self.end_us)[:16].replace("T", " ")

    def of(self, votes: Votes) -> Votes:
        """Return the votes cast in it: one at the start is in, one at the end is not."""
        times = votes.need_times()
        return votes.select((self.start_us <= times) & (times < self.end_us))


def rolling(votes: Votes, *, days: int = 30, step_days: int = 1) -> Iterator[Period]:
    """Yield windows of `days` that end at midnights UTC, `step_days` apart, until the last one holds the last vote.

    The first is the first whole window of the votes, or one that is cut short when they span fewer days.
    Raises `InvalidRequest` when votes have no times, and naming `days` or `step_days`.
    """
    for name, value in (("days", days), ("step_days", step_days)):
        if value < 1:
            raise InvalidRequest(f"{name} is {value}; it starts at 1.", param=name)
    times = votes.need_times()
    if not len(times):
        return
    day = MICROSECONDS_PER_DAY
    first, last = int(times.min()) // day * day, (int(times.max()) // day + 1) * day
    ends = list(range(last, first + min(days * day, last - first) - 1, -step_days * day))
    for end in reversed(ends):
        yield Period(end - days * day, end)


def _utc(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

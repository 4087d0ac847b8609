"""What a reader asked of the leaderboard: parameters checked one by one, and the links that change one of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, TypeAlias, TypeVar
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from tiltyard.arena.boards import Question
from tiltyard.errors import InvalidRequest, UnknownField
from tiltyard.rating.admission import Window
from tiltyard.rating.counts import BothBad
from tiltyard.rating.options import RatingOptions

Format: TypeAlias = Literal["html", "json", "csv"]
SortKey: TypeAlias = Literal["rank", "name", "rating", "interval", "votes", "organization", "license"]
Order: TypeAlias = Literal["asc", "desc"]

FIRST_ORDER: Final[dict[SortKey, Order]] = {
    "rank": "asc",
    "name": "asc",
    "rating": "desc",
    "interval": "asc",
    "votes": "desc",
    "organization": "asc",
    "license": "asc",
}
"""Sort keys, and the direction that a first click gives."""

SORT_KEYS: Final[tuple[SortKey, ...]] = tuple(FIRST_ORDER)
ORDERS: Final[tuple[Order, ...]] = ("asc", "desc")
BOTH_BAD: Final[tuple[BothBad, ...]] = ("tie", "drop")
FORMATS: Final[tuple[Format | None, ...]] = ("html", "json", "csv")

_MOST_MINIMUM_VOTES = 1_000_000

T = TypeVar("T")


@dataclass(frozen=True)
class LeaderboardQuery:
    """The parameters of the page, the API and the chart; each has a default."""

    window: str
    both_bad: BothBad
    minimum_votes: int
    sort: SortKey
    order: Order
    format: Format | None
    """`None` leaves the choice to the `Accept` header."""

    @classmethod
    def default(cls, minimum_votes: int) -> LeaderboardQuery:
        """Return what an address without parameters means."""
        return cls("all", "tie", minimum_votes, "rank", "asc", None)

    @classmethod
    def parse(cls, given: QueryParams, *, minimum_votes: int, also: tuple[str, ...] = ()) -> LeaderboardQuery:
        """Read the parameters of a request.

        Raises `InvalidRequest` with `param` set: an unknown name (unless in `also`), a name given twice, a value
        that is not among the allowed ones.
        """
        known = (*(field.name for field in fields(cls)), *also)
        for name in given:
            if name not in known:
                raise UnknownField(
                    f"the leaderboard has no parameter {name!r}; it has {', '.join(known)}.", param=name
                )
            if len(given.getlist(name)) > 1:
                raise InvalidRequest(f"{name} is given twice; give it once.", param=name)
        sort = _one_of(given, "sort", SORT_KEYS, "rank")
        return cls(
            window=str(Window.parse(given.get("window", "all"))),
            both_bad=_one_of(given, "both_bad", BOTH_BAD, "tie"),
            minimum_votes=_whole_number(given, "minimum_votes", minimum_votes),
            sort=sort,
            order=_one_of(given, "order", ORDERS, FIRST_ORDER[sort]),
            format=_one_of(given, "format", FORMATS, None),
        )

    @property
    def question(self) -> Question:
        """What is to be computed; order and form do not matter for it."""
        return Question(
            options=RatingOptions(both_bad=self.both_bad),
            window=Window.parse(self.window),
            minimum_votes=self.minimum_votes,
        )

    def sorted_by(self, key: SortKey) -> LeaderboardQuery:
        """Sort by a column, or turn the direction when it is sorted by it already."""
        order = FIRST_ORDER[key]
        if key == self.sort:
            order = "desc" if self.order == "asc" else "asc"
        return replace(self, sort=key, order=order)

    def address(self, path: str, default: LeaderboardQuery, **extra: str) -> str:
        """Write the address of this question, leaving out what is the default."""
        changed = {
            field.name: str(getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        }
        changed.pop("order", None)
        if self.order != FIRST_ORDER[self.sort]:  # what a bare `sort` means depends on the column
            changed["order"] = self.order
        query = urlencode({**changed, **extra})
        return f"{path}?{query}" if query else path


def _one_of(given: QueryParams, name: str, allowed: Iterable[T], default: T) -> T:
    text = given.get(name)
    if text is None:
        return default
    for value in allowed:
        if value == text:
            return value
    raise InvalidRequest(f"{name} is {text[:40]!r}; it may be {', '.join(map(repr, allowed))}.", param=name)


def _whole_number(given: QueryParams, name: str, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:8]) <= _MOST_MINIMUM_VOTES:
        raise InvalidRequest(
            f"{name} is {text[:40]!r}; it is a whole number from 1 to {_MOST_MINIMUM_VOTES:,}.", param=name
        )
    return int(text)

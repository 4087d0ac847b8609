"""What a reader asked of the leaderboard: parameters checked one by one, and the links that change one of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, TypeAlias, TypeVar
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from tiltyard.arena.boards import Question, Sources
from tiltyard.arena.importing.board import declared_key
from tiltyard.errors import InvalidRequest, UnknownField
from tiltyard.rating.admission import Window
from tiltyard.rating.counts import BothBad
from tiltyard.rating.options import MOST_SEED, RatingOptions, Ties, Weight, anchor_of
from tiltyard.rating.slices import Condition

Format: TypeAlias = Literal["html", "json", "csv", "parquet"]
SortKey: TypeAlias = Literal[
    "rank",
    "differences",
    "simultaneous",
    "name",
    "rating",
    "interval",
    "votes",
    "organization",
    "license",
]
Order: TypeAlias = Literal["asc", "desc"]
MatrixKind: TypeAlias = Literal["observed", "predicted", "votes"]

FIRST_ORDER: Final[dict[SortKey, Order]] = {
    "rank": "asc",
    "differences": "asc",
    "simultaneous": "asc",
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
TIES: Final[tuple[Ties, ...]] = ("half", "davidson")
FORMATS: Final[tuple[Format | None, ...]] = ("html", "json", "csv", "parquet")
MATRICES: Final[tuple[MatrixKind, ...]] = ("observed", "predicted", "votes")
REPEATED: Final = ("source", "where", "control", "weight")
"""Parameters that may be given several times: sources are rated together, all conditions hold, all controls apply,
weights multiply."""

_MOST_MINIMUM_VOTES = 1_000_000
_MOST_RESAMPLES = 200  # what a reader may ask a server for; the command has no limit
_MOST_REPEATS = 6
_MOST_LETTERS = 80

T = TypeVar("T")


@dataclass(frozen=True)
class LeaderboardQuery:
    """The parameters of the page, the API and the charts; each has a default."""

    source: tuple[str, ...] = ()
    """Imported sources; none of them: the arena's own votes."""
    judge: str = ""
    """With `source`: the verdicts of this judge model instead of people's votes."""
    same_names: bool = False
    """With `source`: equal names in several sources are one model."""
    window: str = "all"
    where: tuple[str, ...] = ()
    """Conditions of a slice, such as `language=en`, `turns>=2` or `length<200`."""
    control: tuple[str, ...] = ()
    """`style`, `speed`, `left_side`, or one of their parts."""
    weight: tuple[str, ...] = ()
    """As `Weight.parse` reads them."""
    both_bad: BothBad = "tie"
    ties: Ties = "half"
    by_voter: bool = False
    anchor: str = ""
    """`MODEL=POINTS`; empty for a mean of 1000."""
    confidence: float = 0.95
    ridge: float = 0.0
    bootstrap: int = 0
    seed: int = 0
    minimum_votes: int = 10
    matrix: MatrixKind = "observed"
    """Which heat map the page shows."""
    sort: SortKey = "rank"
    order: Order = "asc"
    format: Format | None = None
    """`None` leaves the choice to the `Accept` header."""

    @classmethod
    def default(cls, minimum_votes: int) -> LeaderboardQuery:
        """Return what an address without parameters means."""
        return cls(minimum_votes=minimum_votes)

    @classmethod
    def parse(cls, given: QueryParams, *, minimum_votes: int, also: tuple[str, ...] = ()) -> LeaderboardQuery:
        """Read the parameters of a request.

        Raises `InvalidRequest` with `param` set: an unknown name (unless in `also`), a name given twice (but those of
        `REPEATED`), a value that is not among the allowed ones.
        """
        known = (*(field.name for field in fields(cls)), *also)
        for name in given:
            if name not in known:
                raise UnknownField(
                    f"the leaderboard has no parameter {name!r}; it has {', '.join(known)}.", param=name
                )
            times = len(given.getlist(name))
            if times > (_MOST_REPEATS if name in REPEATED else 1):
                raise InvalidRequest(
                    f"{name} is given {times} times; give it {'up to six times' if name in REPEATED else 'once'}.",
                    param=name,
                )
            if any(len(value) > _MOST_LETTERS for value in given.getlist(name)):
                raise InvalidRequest(f"{name} has more than {_MOST_LETTERS} characters.", param=name)
        sort = _one_of(given, "sort", SORT_KEYS, "rank")
        anchor = given.get("anchor", "")
        if anchor:
            anchor_of(anchor)
        source = tuple(dict.fromkeys(given.getlist("source")))
        for name in ("judge", "same_names"):
            if name in given and not source:
                raise InvalidRequest(f"{name} says how to read source; give that too.", param="source")
        return cls(
            source=source,
            judge=given.get("judge", ""),
            same_names=_one_of(given, "same_names", ("no", "yes"), "no") == "yes",
            window=str(Window.parse(given.get("window", "all"))),
            where=tuple(str(Condition.parse(text)) for text in given.getlist("where")),
            control=tuple(dict.fromkeys(given.getlist("control"))),
            weight=tuple(str(Weight.parse(text)) for text in given.getlist("weight")),
            both_bad=_one_of(given, "both_bad", BOTH_BAD, "tie"),
            ties=_one_of(given, "ties", TIES, "half"),
            by_voter=_one_of(given, "by_voter", ("no", "yes"), "no") == "yes",
            anchor=anchor,
            confidence=_number(given, "confidence", 0.95, 0.5, 0.9999),
            ridge=_number(given, "ridge", 0.0, 0.0, 1e9),
            bootstrap=_whole_number(given, "bootstrap", 0, least=2, most=_MOST_RESAMPLES),
            seed=_whole_number(given, "seed", 0, least=0, most=MOST_SEED),
            minimum_votes=_whole_number(given, "minimum_votes", minimum_votes),
            matrix=_one_of(given, "matrix", MATRICES, "observed"),
            sort=sort,
            order=_one_of(given, "order", ORDERS, FIRST_ORDER[sort]),
            format=_one_of(given, "format", FORMATS, None),
        )

    @property
    def sources(self) -> Sources | None:
        """Where the votes are; `None` for the arena's own."""
        return Sources(self.source, self.judge or None, self.same_names) if self.source else None

    @property
    def question(self) -> Question:
        """What is to be computed; order and form do not matter for it."""
        return Question(
            options=RatingOptions(
                both_bad=self.both_bad,
                ties=self.ties,
                anchor=self._anchor(),
                confidence=self.confidence,
                conditions=tuple(map(Condition.parse, self.where)),
                weights=tuple(map(Weight.parse, self.weight)),
                by_voter=self.by_voter,
                controls=self.control,
                ridge=self.ridge,
                bootstrap=self.bootstrap,
                seed=self.seed,
            ),
            window=Window.parse(self.window),
            minimum_votes=self.minimum_votes,
        )

    def _anchor(self) -> tuple[str, float] | None:
        """The anchor by the key that its name has among the votes."""
        if not self.anchor:
            return None
        name, points = anchor_of(self.anchor)
        return (
            declared_key("" if self.same_names else self.source[0], name) if self.source else name
        ), points

    def sorted_by(self, key: SortKey) -> LeaderboardQuery:
        """Sort by a column, or turn the direction when it is sorted by it already."""
        order = FIRST_ORDER[key]
        if key == self.sort:
            order = "desc" if self.order == "asc" else "asc"
        return replace(self, sort=key, order=order)

    def sliced(self, trait: str, *conditions: str) -> LeaderboardQuery:
        """Replace the conditions on one trait; none of them takes that slice away."""
        kept = tuple(text for text in self.where if Condition.parse(text).trait != trait)
        return replace(self, where=(*kept, *conditions))

    def toggled(self, control: str) -> LeaderboardQuery:
        """Turn a control on, or off when it is on."""
        if control in self.control:
            return replace(self, control=tuple(name for name in self.control if name != control))
        return replace(self, control=(*self.control, control))

    def address(self, path: str, default: LeaderboardQuery, **extra: str) -> str:
        """Write the address of this question, leaving out what is the default."""
        changed: list[tuple[str, str]] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "order":  # what a bare `sort` means depends on the column
                if self.order != FIRST_ORDER[self.sort]:
                    changed.append(("order", self.order))
            elif value != getattr(default, field.name):
                values = value if isinstance(value, tuple) else (value,)
                changed += [(field.name, "yes" if one is True else str(one)) for one in values]
        query = urlencode([*changed, *extra.items()])
        return f"{path}?{query}" if query else path


def _one_of(given: QueryParams, name: str, allowed: Iterable[T], default: T) -> T:
    text = given.get(name)
    if text is None:
        return default
    for value in allowed:
        if value == text:
            return value
    raise InvalidRequest(f"{name} is {text[:40]!r}; it may be {', '.join(map(repr, allowed))}.", param=name)


def _whole_number(
    given: QueryParams, name: str, default: int, *, least: int = 1, most: int = _MOST_MINIMUM_VOTES
) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or not least <= int(text[:12]) <= most:
        raise InvalidRequest(
            f"{name} is {text[:40]!r}; it is a whole number from {least} to {most:,}.", param=name
        )
    return int(text)


def _number(given: QueryParams, name: str, default: float, least: float, most: float) -> float:
    text = given.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise InvalidRequest(
            f"{name} is {text[:40]!r}; it is a number from {least:g} to {most:g}.", param=name
        )
    return number

"""k-anonymity of columns that somebody may know of a person from elsewhere: made coarser, else left out; both are counted.

A release is k-anonymous in its quasi-identifiers when every combination of their values is shared by at least k people
(Sweeney 2002); people, not rows, since one voter's k rows hide nobody. All battles of which nobody knows who voted count as one person's, unless the plan
says that each is somebody else's (`anonymity.unknown`). Columns are made coarser for all rows alike, the one with the most values first (Datafly), until at most the
allowed share of rows stands in too small a group; those are left out. It says nothing of what people wrote: a text can name its author.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from tiltyard.errors import InvalidRequest
from tiltyard.governance.datasets.languages import language_name
from tiltyard.governance.datasets.plan import Anonymity, Quasi
from tiltyard.governance.datasets.rows import Facts
from tiltyard.identity.canonical import Json

Value: TypeAlias = str | int | None
Levels: TypeAlias = Mapping[Quasi, str]
"""How coarse each column is."""

GONE: Final = "gone"
"""The coarsest level: nothing is said."""
_SECOND_US: Final = 1_000_000


def _time(level: str) -> Callable[[Facts], Value]:
    def read(facts: Facts) -> Value:
        return None if facts.time_us is None else floor_seconds(facts.time_us, level)

    return read


def floor_seconds(time_us: int, level: str) -> int:
    """Return the beginning of the second, hour, day, week (Monday), month or year, in seconds since 1970, UTC.

    >>> floor_seconds(1_682_351_591_132_200, "month") == int(datetime(2023, 4, 1, tzinfo=UTC).timestamp())
    True
    """
    moment = datetime.fromtimestamp(time_us // _SECOND_US, UTC)
    match level:
        case "hour":
            moment = moment.replace(minute=0, second=0)
        case "day":
            moment = moment.replace(hour=0, minute=0, second=0)
        case "week":
            moment = moment.replace(hour=0, minute=0, second=0) - timedelta(days=moment.weekday())
        case "month":
            moment = moment.replace(day=1, hour=0, minute=0, second=0)
        case "year":
            moment = moment.replace(month=1, day=1, hour=0, minute=0, second=0)
    return int(moment.timestamp())


def _band(turns: int) -> int:
    """The fewest turns of the band: 1, 2, 3 to 5, 6 and more."""
    return turns if turns < 3 else 3 if turns < 6 else 6


LADDERS: Final[Mapping[Quasi, tuple[tuple[str, Callable[[Facts], Value]], ...]]] = {
    "time": (
        *((level, _time(level)) for level in ("second", "hour", "day", "week", "month", "year")),
        (GONE, lambda _: None),
    ),
    "language": (
        ("tag", lambda facts: facts.language),
        ("language", lambda facts: facts.language.partition("-")[0]),
        (GONE, lambda _: None),
    ),
    "turns": (
        ("exact", lambda facts: facts.turns),
        ("band", lambda facts: _band(facts.turns)),
        (GONE, lambda _: None),
    ),
    "category": (("exact", lambda facts: facts.category), (GONE, lambda _: None)),
}
"""From fine to coarse."""


class Anonymised(NamedTuple):
    """What was decided for a release."""

    levels: Levels
    suppressed: frozenset[int]
    """Places of the rows that are left out."""
    generalised: Mapping[Quasi, int]
    """Rows whose value became coarser."""
    groups: int
    smallest: int
    """People in the smallest group that is left."""


@dataclass(frozen=True)
class _Column:
    name: Quasi
    level: int

    def value(self, facts: Facts) -> Value:
        return LADDERS[self.name][self.level][1](facts)

    @property
    def coarsest(self) -> bool:
        return self.level == len(LADDERS[self.name]) - 1


def anonymise(rows: Sequence[Facts], people: Sequence[str], terms: Anonymity) -> Anonymised:
    """Choose levels and what is left out; `people` says who is behind each row.

    Raises `InvalidRequest` where fewer than k people are behind all rows together.
    """
    columns = [_Column(name, 0) for name in terms.columns]
    while True:
        groups = _groups(rows, columns)
        who = {key: _people(places, people) for key, places in groups.items()}
        small = frozenset(place for key, places in groups.items() if who[key] < terms.k for place in places)
        if len(small) <= terms.most_suppressed * len(rows):
            break
        finer = [column for column in columns if not column.coarsest]
        if not finer:
            raise InvalidRequest(
                f"{_people(range(len(rows)), people)} people are behind these {len(rows):,} rows, and anonymity.k is "
                f"{terms.k}. Take in more of them with where and sample, or ask for less; battles of nobody known count as one "
                "person's, unless you know better and say anonymity.unknown: each.",
                param="anonymity.k",
            )
        values = {column: len({column.value(facts) for facts in rows}) for column in finer}
        widest = max(finer, key=lambda column: values[column])  # of equals the one that the plan names first
        columns = [_Column(one.name, one.level + 1) if one == widest else one for one in columns]
    left = [who[key] for key in groups if who[key] >= terms.k]
    return Anonymised(
        levels={column.name: LADDERS[column.name][column.level][0] for column in columns},
        suppressed=small,
        generalised={
            column.name: sum(
                column.value(facts) != LADDERS[column.name][0][1](facts)
                for place, facts in enumerate(rows)
                if place not in small
            )
            for column in columns
        },
        groups=len(left),
        smallest=min(left, default=0),
    )


def coarse(row: Mapping[str, Json], facts: Facts, levels: Levels) -> dict[str, Json]:
    """Return a row with its columns at their levels; the time is to the second where no level is said."""
    changed = dict(row)
    by_name = {name: dict(LADDERS[name])[level](facts) for name, level in levels.items()}
    if "tstamp" in row:
        time = by_name["time"] if "time" in by_name else _time("second")(facts)
        changed["tstamp"] = None if time is None else float(time)
    if "language" in by_name:
        tag = by_name["language"]
        changed["language_tag"] = tag
        changed["language"] = None if tag is None else language_name(str(tag))
    if "turns" in by_name and "turn" in row:
        changed["turn"] = by_name["turns"]
    if "category" in by_name:
        changed["category"] = by_name["category"]
    return changed


def _groups(rows: Sequence[Facts], columns: Sequence[_Column]) -> dict[tuple[Value, ...], list[int]]:
    groups: defaultdict[tuple[Value, ...], list[int]] = defaultdict(list)
    for place, facts in enumerate(rows):
        groups[tuple(column.value(facts) for column in columns)].append(place)
    return groups


def _people(places: Sequence[int] | range, people: Sequence[str]) -> int:
    return len({people[place] for place in places})

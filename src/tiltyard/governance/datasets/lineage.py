"""What was made of what: who used a release, which releases hold a conversation, what an erasure leaves to be made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tiltyard.errors import NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.permissions import person_of, subject_belongs
from tiltyard.events.schema import (
    DatasetReleased,
    DatasetRowsReleased,
    DatasetUsed,
    FeedbackReviewed,
    PreferenceModelTrained,
    ReleasedRow,
    SubjectErased,
)
from tiltyard.governance.datasets.verification import releases_of, revoked_rows, rows_of

BATTLE: Final = "bat_"
GENERATION: Final = "gen_"


class Use(NamedTuple):
    """Something that was made of a release, or of votes that are in it."""

    kind: str
    """`identity`, `scorer`, `set`, `other`; `preference model` where the log itself shows it."""
    name: str
    how: str


class Holding(NamedTuple):
    """A release that holds rows of something."""

    release: DatasetReleased
    rows: int


@dataclass(frozen=True)
class Origins:
    """Where a release came from and where it went."""

    release: DatasetReleased
    origins: dict[str, int]
    """Rows by source: `arena`, `requests` of tenants, or the id of an import."""
    answered: dict[str, int]
    """Generations by the identity that made them; none for imports."""
    uses: tuple[Use, ...]
    revoked: int
    """Rows whose people were erased since."""


@dataclass(frozen=True)
class ToRebuild:
    """What an erasure leaves to be made again."""

    erased: bool
    """Whether the person was erased already; else what would be."""
    holdings: tuple[Holding, ...]
    uses: tuple[Use, ...]


def find_release(log: EventLog, name: str) -> DatasetReleased:
    """Find a release by its id, its digest or `NAME-VERSION`; raises `NotFound`."""
    releases = releases_of(log)
    for one in reversed(releases):
        if name in {one.release, one.digest, f"{one.name}-{one.version}"}:
            return one
    known = ", ".join(f"{one.name}-{one.version}" for one in releases[-5:]) or "none"
    raise NotFound(f"there is no release {name[:80]!r}; known are {known}.", param="release")


def origins_of(log: EventLog, release: DatasetReleased) -> Origins:
    """Say where the rows of a release came from, and what was made of it; blocks."""
    rows = list(rows_of(log, release.release))
    origins = Counter(_source(row.origin) for row in rows)
    notes = release.manifest.get("identities", [])
    answered: dict[str, int] = {}
    for note in notes if isinstance(notes, list) else ():
        if isinstance(note, dict):
            answered[str(note["name"])] = int(str(note["generations"]))
    revoked = len(revoked_rows(log, release.release))
    return Origins(release, dict(origins), answered, tuple(uses_of(log, release, rows)), revoked)


def uses_of(log: EventLog, release: DatasetReleased, rows: list[ReleasedRow] | None = None) -> list[Use]:
    """Return what was said to use a release, and preference models that were fitted to votes in it."""
    uses = [
        Use(event.data.kind, event.data.name, f"{event.data.why or 'used it'}, says {event.data.by}")
        for event in log.read(types=(DatasetUsed,), subject=release.release)
        if isinstance(event.data, DatasetUsed)
    ]
    battles = {row.origin for row in (rows if rows is not None else rows_of(log, release.release))}
    uses += _fitted_to(log, {battle for battle in battles if battle.startswith(BATTLE)})
    return uses


def holdings_of(log: EventLog, what: str) -> list[Holding]:
    """Return the releases that hold a conversation, named by its battle, a generation of it, or `imp_…:LINE`; blocks."""
    return _holding(log, lambda row: what == row.origin or what in row.generations)


def to_rebuild(log: EventLog, subject: str) -> ToRebuild:
    """Say what the erasure of a data subject leaves to be made again; blocks.

    Votes and ratings stay, and so do leaderboards. A release that holds rows of the person needs a new version, and whatever
    used such a release, was fitted to the person's votes or has items of the person's words has to be made again.
    """
    person = person_of(subject)
    holdings = _holding(log, lambda row: any(subject_belongs(whose, person) for whose in row.subjects))
    uses = [use for one in holdings for use in uses_of(log, one.release)]
    votes = {vote.battle for vote in log.votes() if subject_belongs(vote.voter, person)}
    uses += _fitted_to(log, votes)
    uses += _sets_with(log, person)
    erased = log.find(SubjectErased, subject=person) is not None
    return ToRebuild(erased, tuple(holdings), tuple(dict.fromkeys(uses)))


def _holding(log: EventLog, holds: Callable[[ReleasedRow], bool]) -> list[Holding]:
    counts: Counter[str] = Counter()
    for event in log.read(types=(DatasetRowsReleased,)):
        if isinstance(event.data, DatasetRowsReleased):
            counts[event.data.release] += sum(holds(row) for row in event.data.rows)
    return [Holding(one, counts[one.release]) for one in releases_of(log) if counts[one.release]]


def _fitted_to(log: EventLog, battles: set[str]) -> list[Use]:
    """Preference models whose range of votes has some of these battles."""
    places = sorted(vote.sequence for vote in log.votes() if vote.battle in battles)
    found = []
    for event in log.read(types=(PreferenceModelTrained,)):
        if isinstance(event.data, PreferenceModelTrained):
            first, last = event.data.first_sequence, event.data.last_sequence
            if shared := sum(first <= place <= last for place in places):
                name = f"{event.data.method}@{event.data.model.removeprefix('sha256:')[:12]}"
                found.append(
                    Use(
                        "preference model",
                        name,
                        f"{shared:,} of these votes are in the range that it was fitted to",
                    )
                )
    return found


def _sets_with(log: EventLog, person: str) -> list[Use]:
    """Fixed sets with items that were accepted from the person's words (`tiltyard release feedback`)."""
    items: Counter[str] = Counter()
    for event in log.read(types=(FeedbackReviewed,)):
        reviewed = event.data
        if isinstance(reviewed, FeedbackReviewed) and reviewed.set_name and reviewed.item is not None:
            items[reviewed.set_name] += subject_belongs(reviewed.item.subject, person)
    return [Use("set", name, f"{count:,} items are of this person") for name, count in items.items() if count]


def _source(origin: str) -> str:
    if origin.startswith(BATTLE):
        return "arena"
    return "requests" if origin.startswith(GENERATION) else origin.partition(":")[0]


class Due(NamedTuple):
    """A release that lost rows, and what was made of it: all of that has to be made again."""

    release: DatasetReleased
    revoked: int
    uses: tuple[Use, ...]


CHANGES: Final = (SubjectErased, DatasetReleased, DatasetUsed, PreferenceModelTrained)
"""Events after which the answers of this module may be others."""


def due(log: EventLog) -> list[Due]:
    """Return what all erasures so far leave to be made again, oldest release first; blocks.

    Of several versions of a data set only the newest is due: who has an older one was told to take the newer.
    """
    newest = {one.name: one for one in releases_of(log)}
    found = []
    for one in newest.values():
        if revoked := len(revoked_rows(log, one.release)):
            found.append(Due(one, revoked, tuple(uses_of(log, one))))
    return found

"""What the log says may be done with a data subject's words: its own consent, or else the terms of its tenant or source.

::

    arena:voter_1f…    a voter: the consent of `voter_1f…`, without which nothing but nothing; for how long: `arena`, then `*`
    acme:bob           its own consent if there is one; else the terms of `acme:bob`, `acme`, `*`; else serve and evaluate
    some-source/ann    words of an import: the same, with the source where the tenant is
    tiltyard-eval      nobody's: the house's own questions
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, func, or_, select

from tiltyard.errors import ContentMissing
from tiltyard.events.dialect import Database
from tiltyard.events.schema import PURPOSES, Purpose
from tiltyard.events.tables import battles, consents, data_terms, expiries, imports, votes

DEFAULT_PURPOSES: Final[frozenset[Purpose]] = frozenset({"serve", "evaluate"})
"""What a tenant without terms has agreed to by asking: to be answered, and that answers are studied."""
ARENA: Final = "arena"
"""The scope of voters' terms, and the tenant under which the arena asks where there are keys."""
EVERYBODY: Final = "*"
IMPORT: Final = "imp_"
"""How the id of an import begins: the subject of imported words whose people are not known."""
HOUSE: Final = frozenset({"tiltyard-eval", "judge-set"})
"""Subjects that are no people: the questions of fixed sets, and what models said to them."""
DAY_US: Final = 86_400_000_000

_VOTER = re.compile(r"(?:arena:)?(voter_[0-9a-f]{32})")


class PurposeRefused(ContentMissing):
    """Nobody allowed this use of the words, or somebody took it back."""

    status = 403
    default_code = "purpose_not_allowed"


@dataclass(frozen=True)
class Permission:
    """What may be done with the words of one data subject."""

    purposes: frozenset[Purpose]
    days: dict[Purpose, int | None]
    """For how long after they were written, where that is limited."""
    because: str
    """What says so."""

    def refusal(self, purpose: Purpose, age_us: int) -> str | None:
        """Why words of that age are not given out for a purpose; `None`: they are."""
        if purpose not in self.purposes:
            allowed = ", ".join(sorted(self.purposes)) or "nothing"
            return f"{self.because} allows {allowed}, not {purpose}"
        if (days := self.days.get(purpose)) is not None and age_us > days * DAY_US:
            return f"{self.because} allows {purpose} for {days:,} days; the words are {age_us // DAY_US:,} days old"
        return None


class Consent(NamedTuple):
    """What a data subject agreed to last."""

    version: str
    purposes: frozenset[Purpose]


class PermissionQueries:
    """Asks one database; every method blocks for less than a millisecond."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def permission(self, subject: str) -> Permission:
        """What may be done with the words of a data subject."""
        with self._database.reading() as connection:
            return permission_of(connection, subject)

    def consent(self, subject: str) -> Consent | None:
        """What a data subject agreed to itself, whatever its tenant's terms say."""
        query = select(consents.c.version, consents.c.purposes).where(
            consents.c.subject == person_of(subject)
        )
        with self._database.reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else Consent(row.version, _purposes(row.purposes))

    def counts_of_voter(self, voter: str) -> tuple[int, int]:
        """How many battles and votes there are of a voter."""
        with self._database.reading() as connection:
            counts = [
                connection.execute(
                    select(func.count()).select_from(table).where(table.c.voter == voter)
                ).scalar_one()
                for table in (battles, votes)
            ]
        return counts[0], counts[1]

    def data_terms(self) -> dict[str, dict[Purpose, int | None]]:
        """Allowed purposes and their days, by scope."""
        with self._database.reading() as connection:
            return data_terms_in(connection)


def person_of(subject: str) -> str:
    """The one name of a person who has two: the arena asks the gateway under its own tenant.

    >>> person_of("arena:voter_" + "0" * 32)
    'voter_00000000000000000000000000000000'
    >>> person_of("acme:bob")
    'acme:bob'
    """
    match = _VOTER.fullmatch(subject)
    return match[1] if match else subject


def subject_belongs(name: str, subject: str) -> bool:
    """Whether words under `name` go when `subject` is erased: under each of its names, and of all people of a tenant.

    >>> subject_belongs("acme:bob", "acme"), subject_belongs("acmes:bob", "acme")
    (True, False)
    """
    person = person_of(subject)
    return person_of(name) == person or name.startswith((person + ":", person + "/"))


def is_voter(subject: str) -> bool:
    """Whether a subject is a voter of the arena, who must have consented."""
    return _VOTER.fullmatch(subject) is not None


def is_house(subject: str) -> bool:
    """Whether the words are nobody's."""
    return subject.rpartition(":")[2] in HOUSE


def scopes_of(subject: str) -> tuple[str, ...]:
    """Whose terms hold for a subject, the nearest first.

    >>> scopes_of("acme:bob")
    ('acme:bob', 'acme', '*')
    """
    if is_voter(subject):
        return person_of(subject), ARENA, EVERYBODY
    found = [subject]
    while (cut := max(subject.rfind(":"), subject.rfind("/"))) > 0:
        subject = subject[:cut]
        found.append(subject)
    return *found, EVERYBODY


def permission_of(connection: Connection, subject: str) -> Permission:
    """What the log allows now."""
    nearest, days = _nearest_terms(connection, subject)
    person = person_of(subject)
    given = connection.execute(select(consents.c.purposes).where(consents.c.subject == person)).scalar()
    if is_house(subject):
        return Permission(frozenset(PURPOSES), {}, "the house")
    if given is not None:
        agreed = _purposes(given)
        if nearest is None:
            return Permission(agreed, {}, f"the consent of {person}")
        # Terms can narrow what a person agreed to; they cannot widen it.
        return Permission(
            agreed & days.keys(), days, f"the consent of {person}, under the terms of {nearest},"
        )
    if is_voter(subject):
        return Permission(frozenset(), {}, f"{person} never consented, which")
    if nearest is None:
        return Permission(DEFAULT_PURPOSES, {}, f"{person} has no terms, which")
    return Permission(frozenset(days), days, f"the terms of {nearest}")


def nearest_scope(connection: Connection, subject: str) -> str | None:
    """Whose terms hold for a subject; `None`: nobody's."""
    return _nearest_terms(connection, subject)[0]


def data_terms_in(connection: Connection) -> dict[str, dict[Purpose, int | None]]:
    """Allowed purposes and their days, by scope."""
    query = select(data_terms.c.scope, data_terms.c.purposes_json).order_by(data_terms.c.scope)
    return {row.scope: json.loads(row.purposes_json) for row in connection.execute(query)}


def _nearest_terms(connection: Connection, subject: str) -> tuple[str | None, dict[Purpose, int | None]]:
    scopes = scopes_of(subject)
    if subject.startswith(IMPORT):
        # Words of nobody known: the source's terms, which the subject does not name.
        source = select(imports.c.source).where(imports.c.import_id == subject)
        scopes = subject, *connection.execute(source).scalars(), EVERYBODY
    query = select(data_terms.c.scope, data_terms.c.purposes_json).where(data_terms.c.scope.in_(scopes))
    by_scope = {row.scope: json.loads(row.purposes_json) for row in connection.execute(query)}
    nearest = next((scope for scope in scopes if scope in by_scope), None)
    return nearest, {} if nearest is None else by_scope[nearest]


def _purposes(joined: str) -> frozenset[Purpose]:
    return frozenset(one for one in PURPOSES if one in joined.split(","))


def expired_before_us(connection: Connection, subject: str) -> int:
    """Words of a subject that were written before this moment were destroyed by a retention; 0: none were."""
    query = select(expiries.c.before_us).where(expiries.c.scope.in_(scopes_of(subject)))
    return max(map(int, connection.execute(query).scalars()), default=0)


def written_us(content: str) -> int:
    """When a vault row was made, by its UUIDv7, to the millisecond."""
    return (uuid.UUID(content).int >> 80) * 1000


def of_subject(column: ColumnElement[str], subject: str) -> ColumnElement[bool]:
    """The rows of a data subject: under each of its names, and of all people of a tenant or a source."""
    person = person_of(subject)
    names = (person, f"{ARENA}:{person}") if is_voter(person) else (person,)
    return or_(
        column.in_(names), *(column.startswith(person + joint, autoescape=True) for joint in (":", "/"))
    )

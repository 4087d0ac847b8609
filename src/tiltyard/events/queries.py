"""Questions that the log and its projections answer."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from pydantic import JsonValue
from sqlalchemy import Column, Connection, RowMapping, Select, func, literal, select

from tiltyard.errors import NotFound
from tiltyard.events.envelope import StoredEvent, parse_data
from tiltyard.events.imported import ImportQueries
from tiltyard.events.permissions import of_subject, person_of
from tiltyard.events.schema import (
    Choice,
    Credential,
    EventData,
    GenerationFinished,
    IdentityRegistered,
    VoteCast,
    VoteWithdrawn,
)
from tiltyard.events.tables import (
    api_keys,
    battles,
    contents,
    embeddings,
    events,
    generations,
    identities,
    key_uses,
    tenant_terms,
    votes,
)

PAGE_EVENTS = 500
"""Events fetched by one query; between pages no transaction is open, so a slow reader blocks nobody."""

DAY_US = 86_400_000_000

_ENVELOPE = (
    events.c.sequence,
    events.c.id,
    events.c.source,
    events.c.type,
    events.c.time_us,
    events.c.subject,
    events.c.tenant,
    events.c.traceparent,
    events.c.data_json,
)


@dataclass(frozen=True)
class VoteRow:
    """One vote, as ratings read it."""

    sequence: int
    time_us: int
    tenant: str
    battle: str
    voter: str
    choice: Choice
    identity_a: str
    identity_b: str
    behaviour_a: str
    behaviour_b: str
    pair_probability: float
    side_probability: float
    turns: int


@dataclass(frozen=True)
class BattleRow:
    """One battle and how far it has come."""

    battle: str
    sequence: int
    opened_us: int
    tenant: str
    voter: str
    identity_a: str
    identity_b: str
    behaviour_a: str
    behaviour_b: str
    pair_probability: float
    side_probability: float
    policy: str
    vote_token_digest: str
    turns: int
    """User messages so far, regenerations not counted."""
    choice: Choice | None
    """The vote, once there is one."""
    voted_us: int | None


class AnswerFigures(NamedTuple):
    """How long an answer is and how it was timed."""

    sequence: int
    """Log position of its end."""
    tokens: int
    time_to_first_token_ms: float | None
    total_ms: float


@dataclass(frozen=True)
class ApiKeyRow:
    """One API key as the log knows it; times are microseconds since 1970."""

    key: str
    sequence: int
    issued_us: int
    tenant: str
    label: str
    credential: Credential
    scopes: tuple[str, ...]
    digest: str
    expires_us: int | None
    revoked_us: int | None
    replaces: str | None
    last_used_us: int | None


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one tenant in one day of UTC."""

    tenant: str
    day: str
    """`YYYYMMDD`."""
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class PairCount:
    """How the votes between two behaviours fell, `a` having been shown on side a."""

    behaviour_a: str
    behaviour_b: str
    a: int
    b: int
    tie: int
    both_bad: int


class VotePositions(NamedTuple):
    """How far the table of votes follows the log."""

    log_sequence: int
    """Newest vote among the events that was not withdrawn; 0 without one."""
    projection_sequence: int
    """Newest vote in the table."""
    in_log: int
    in_projection: int
    newest_us: int | None
    """When the newest vote of the log was cast."""


def stored_event(row: RowMapping) -> StoredEvent:
    """Make an event from a row that begins with the envelope's columns."""
    return StoredEvent(**{column.name: row[column.name] for column in _ENVELOPE})


def envelope_columns() -> tuple[Column[object], ...]:
    """Return the columns that make a `StoredEvent`."""
    return _ENVELOPE


def select_envelope() -> Select[tuple[object, ...]]:
    """Begin a query for events."""
    return select(*_ENVELOPE)


def read_page(connection: Connection, *, after: int) -> list[StoredEvent]:
    """Return the next events in the log, oldest first, at most `PAGE_EVENTS`."""
    query = select_envelope().where(events.c.sequence > after)
    rows = connection.execute(query.order_by(events.c.sequence).limit(PAGE_EVENTS)).mappings()
    return [stored_event(row) for row in rows]


class Queries(ImportQueries):
    """Reads one database; every method blocks for as long as the query takes (mostly below a millisecond)."""

    def read(
        self,
        *,
        after: int = 0,
        types: Collection[type[EventData]] | None = None,
        subject: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[StoredEvent]:
        """Go through events with a sequence beyond `after`, page by page."""
        columns = events.c
        query = select_envelope().order_by(columns.sequence.desc() if newest_first else columns.sequence)
        if types is not None:
            query = query.where(columns.type.in_([event_type.TYPE for event_type in types]))
        if subject is not None:
            query = query.where(columns.subject == subject)
        left = limit
        lower, upper = after, None
        while left is None or left > 0:
            page = query.where(columns.sequence > lower)
            if upper is not None:
                page = page.where(columns.sequence < upper)
            size = PAGE_EVENTS if left is None else min(PAGE_EVENTS, left)
            with self._database.reading() as connection:
                found = [stored_event(row) for row in connection.execute(page.limit(size)).mappings()]
            yield from found
            if len(found) < size:
                return
            if newest_first:
                upper = found[-1].sequence
            else:
                lower = found[-1].sequence
            left = None if left is None else left - len(found)

    def find(self, event_type: type[EventData], *, subject: str) -> StoredEvent | None:
        """Return the newest event of a type about a subject, or `None`."""
        return next(self.read(types=(event_type,), subject=subject, limit=1, newest_first=True), None)

    def has_subject(self, subject: str) -> bool:
        """Whether anything was ever kept or written about a data subject: words, or an event."""
        kept = select(contents.c.id).where(of_subject(contents.c.subject, subject)).limit(1)
        with self._database.reading() as connection:
            if connection.execute(kept).first() is not None:
                return True
        return next(self.read(subject=person_of(subject), limit=1), None) is not None

    def event(self, event_id: str) -> StoredEvent:
        """Return the event with an id; raises `NotFound`."""
        with self._database.reading() as connection:
            row = connection.execute(select_envelope().where(events.c.id == event_id)).mappings().first()
        if row is None:
            raise NotFound(f"no event has the id {event_id!r}")
        return stored_event(row)

    def known_keys(self, keys: Collection[str]) -> set[str]:
        """Return those of some unique keys that are in the log: what need not be done again."""
        wanted, known = list(keys), set[str]()
        with self._database.reading() as connection:
            for start in range(0, len(wanted), PAGE_EVENTS):
                query = select(events.c.unique_key).where(
                    events.c.unique_key.in_(wanted[start : start + PAGE_EVENTS])
                )
                known.update(str(key) for (key,) in connection.execute(query))
        return known

    def last_sequence(self) -> int:
        """Return the sequence of the newest event, 0 when there is none."""
        with self._database.reading() as connection:
            newest = connection.execute(select(func.max(events.c.sequence))).scalar()
        return newest or 0

    def moment_of(self, sequence: int) -> int | None:
        """Return when an event was appended, in microseconds since 1970; `None` for one that is not there."""
        with self._database.reading() as connection:
            return connection.execute(
                select(events.c.time_us).where(events.c.sequence == sequence)
            ).scalar_one_or_none()

    def sequence_before(self, time_us: int) -> int:
        """Return the sequence of the last event before a moment, 0 when there is none: about twenty looks in a million events.

        Events that were appended at once may be numbered in another order than their times; who needs all of them begins a little earlier.
        """
        low, high = 0, self.last_sequence()  # the log has no gaps
        while low < high:
            middle = (low + high + 1) // 2
            moment_us = self.moment_of(middle)
            if moment_us is not None and moment_us < time_us:
                low = middle
            else:
                high = middle - 1
        return low

    def votes(self, *, after: int = 0) -> list[VoteRow]:
        """Return the votes with a sequence beyond `after`, oldest first."""
        names = VoteRow.__dataclass_fields__
        query = select(*(votes.c[name] for name in names)).where(votes.c.sequence > after)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(votes.c.sequence)).mappings()
            return [VoteRow(**row) for row in rows]

    def vote_positions(self) -> VotePositions:
        """Compare the table of votes with the votes in the log that stand; both are of one moment."""
        withdrawn = select(events.c.subject).where(events.c.type == VoteWithdrawn.TYPE)
        logged = select(func.max(events.c.sequence), func.count()).where(
            events.c.type == VoteCast.TYPE, events.c.subject.not_in(withdrawn)
        )
        kept = select(func.max(votes.c.sequence), func.count()).select_from(votes)
        with self._database.reading() as connection:
            newest, in_log = connection.execute(logged).one()
            placed, in_projection = connection.execute(kept).one()
            when = select(events.c.time_us).where(events.c.sequence == newest)
            newest_us = None if newest is None else connection.execute(when).scalar_one()
        return VotePositions(newest or 0, placed or 0, in_log, in_projection, newest_us)

    def pair_counts(self, after_sequence: int = 0) -> list[PairCount]:
        """Count the votes beyond `after_sequence` for each ordered pair of behaviours that met."""
        columns = votes.c
        query = (
            select(columns.behaviour_a, columns.behaviour_b, columns.choice, func.count())
            .where(columns.sequence > after_sequence)
            .group_by(columns.behaviour_a, columns.behaviour_b, columns.choice)
        )
        tallies: dict[tuple[str, str], dict[str, int]] = {}
        with self._database.reading() as connection:
            for behaviour_a, behaviour_b, choice, count in connection.execute(query):
                tallies.setdefault((behaviour_a, behaviour_b), {})[choice] = count
        return [
            PairCount(
                behaviour_a,
                behaviour_b,
                a=tally.get("a", 0),
                b=tally.get("b", 0),
                tie=tally.get("tie", 0),
                both_bad=tally.get("both_bad", 0),
            )
            for (behaviour_a, behaviour_b), tally in sorted(tallies.items())
        ]

    def battle(self, battle: str) -> BattleRow | None:
        """Return a battle, or `None`."""
        with self._database.reading() as connection:
            row = connection.execute(select(battles).where(battles.c.battle == battle)).mappings().first()
        return None if row is None else BattleRow(**row)

    def generation(self, generation: str) -> GenerationFinished:
        """Return how a generation ended; raises `NotFound`."""
        query = (
            select(events.c.data_json)
            .join(generations, generations.c.sequence == events.c.sequence)
            .where(generations.c.generation == generation)
        )
        with self._database.reading() as connection:
            row = connection.execute(query).first()
        if row is None:
            raise NotFound(f"no generation {generation!r} is in the log; ids begin with gen_")
        return GenerationFinished.model_validate_json(row.data_json)

    def answer_figures(self, names: Collection[str]) -> dict[str, AnswerFigures]:
        """Return length and times of those generations that the log has, a query for each few hundred."""
        found = {}
        columns = generations.c
        order = sorted(names)
        for start in range(0, len(order), PAGE_EVENTS):
            query = select(
                columns.generation,
                columns.sequence,
                columns.completion_tokens,
                columns.time_to_first_token_ms,
                columns.total_ms,
            ).where(columns.generation.in_(order[start : start + PAGE_EVENTS]))
            with self._database.reading() as connection:
                for name, *figures in connection.execute(query):
                    found[name] = AnswerFigures(*figures)
        return found

    def api_keys(self) -> list[ApiKeyRow]:
        """Return every API key that was ever issued, oldest first."""
        query = select(api_keys, key_uses.c.last_used_us).outerjoin(
            key_uses, key_uses.c.key == api_keys.c.key
        )
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(api_keys.c.issued_us, api_keys.c.key)).mappings()
            return [ApiKeyRow(**{**row, "scopes": tuple(row["scopes"].split(","))}) for row in rows]

    def tenant_terms(self) -> dict[str, dict[str, JsonValue]]:
        """Return the terms of the tenants that have some in the log."""
        query = select(tenant_terms.c.tenant, tenant_terms.c.terms_json)
        with self._database.reading() as connection:
            rows = connection.execute(query.where(tenant_terms.c.terms_json.is_not(None))).all()
        return {row.tenant: json.loads(row.terms_json) for row in rows}

    def access_version(self) -> int:
        """Return the sequence of the newest event about an API key or a tenant's terms, 0 when there is none."""
        newest = (
            func.coalesce(func.max(column), 0) for column in (api_keys.c.sequence, tenant_terms.c.sequence)
        )
        with self._database.reading() as connection:
            row = connection.execute(select(*(one.scalar_subquery() for one in map(select, newest)))).one()
            return max(int(sequence) for sequence in row)

    def token_usage(self, *, since_us: int) -> list[TokenUsage]:
        """Return the tokens of each tenant and day of UTC from a time on (microseconds since 1970)."""
        found: dict[tuple[str, int], list[int]] = {}
        for table, output in ((generations, generations.c.completion_tokens), (embeddings, literal(0))):
            day = table.c.time_us // DAY_US
            query = (
                select(table.c.tenant, day, func.sum(table.c.prompt_tokens), func.sum(output))
                .where(table.c.time_us >= since_us)
                .group_by(table.c.tenant, day)
            )
            with self._database.reading() as connection:
                for tenant, number, prompt_tokens, completion_tokens in connection.execute(query):
                    sums = found.setdefault((tenant, number), [0, 0])
                    sums[0] += int(prompt_tokens)
                    sums[1] += int(completion_tokens)
        return [
            TokenUsage(
                tenant, datetime.fromtimestamp(number * DAY_US // 1_000_000, UTC).strftime("%Y%m%d"), *sums
            )
            for (tenant, number), sums in sorted(found.items())
        ]

    def identities(self) -> list[IdentityRegistered]:
        """Return every registration, oldest first; a name that was redefined occurs more than once."""
        query = (
            select(events.c.type, events.c.data_json)
            .join(identities, identities.c.sequence == events.c.sequence)
            .order_by(identities.c.sequence)
        )
        with self._database.reading() as connection:
            found = [parse_data(row.type, row.data_json) for row in connection.execute(query)]
        return [data for data in found if isinstance(data, IdentityRegistered)]

"""Commits one batch: unique keys, sequences, contents, seal and projections in a single transaction."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from tiltyard.errors import Conflict, TiltyardError
from tiltyard.events.dialect import Database
from tiltyard.events.envelope import StoredEvent
from tiltyard.events.migrations import refuse_moved
from tiltyard.events.permissions import scopes_of
from tiltyard.events.projections import project
from tiltyard.events.roles import Role, role_refusal
from tiltyard.events.schema import EventData, SubjectErased
from tiltyard.events.seals import Seal, Sealer, leaf_hash
from tiltyard.events.tables import contents, events, seals
from tiltyard.events.vault import NewContent, Vault


@dataclass(frozen=True, eq=False)
class Draft:
    """An event on its way into the log: all but its sequence."""

    id: str
    source: str
    time_us: int
    subject: str
    tenant: str
    traceparent: str | None
    data: EventData
    data_json: str
    contents: tuple[NewContent, ...]
    done: Future[StoredEvent]
    """Resolved when the batch is durable, or refused."""

    def placed(self, sequence: int) -> StoredEvent:
        """Return the event at its place."""
        event = StoredEvent(
            sequence=sequence,
            id=self.id,
            source=self.source,
            type=self.data.TYPE,
            time_us=self.time_us,
            subject=self.subject,
            tenant=self.tenant,
            traceparent=self.traceparent,
            data_json=self.data_json,
        )
        event.__dict__["data"] = self.data  # no need to parse what we were given
        return event


@dataclass(frozen=True)
class Outcome:
    """What became of a draft."""

    draft: Draft
    result: StoredEvent | TiltyardError


class Committer:
    """Turns drafts into sealed events."""

    def __init__(self, database: Database, vault: Vault, sealer: Sealer, role: Role = "owner") -> None:
        self._database = database
        self._vault = vault
        self._sealer = sealer
        self._role: Role = role
        self.last_seal: Seal | None = None
        """The newest seal that this process made."""

    def commit(self, drafts: Sequence[Draft]) -> list[Outcome]:
        """Store drafts in one durable transaction; raises `StorageFailed` when none of them was stored."""
        erased = self._vault.keep_keys(content.key for draft in drafts for content in draft.contents)
        with self._database.writing() as connection:
            refuse_moved(connection, self._database.name)
            taken = _taken_keys(connection, drafts)
            erased |= _keys_before_erasure(connection, drafts)
            outcomes: list[Outcome] = []
            before = newest_seal(connection)
            sequence = before.last_sequence if before else 0
            for draft in drafts:
                refusal = role_refusal(self._role, draft.data) or _refusal(draft, taken, erased)
                if refusal is not None:
                    outcomes.append(Outcome(draft, refusal))
                    continue
                if (key := draft.data.unique_key()) is not None:
                    taken.add(key)
                sequence += 1
                outcomes.append(Outcome(draft, draft.placed(sequence)))
            seal = self._store(connection, before, outcomes)
        if seal is not None:
            self.last_seal = seal
        return outcomes

    def _store(self, connection: Connection, before: Seal | None, outcomes: list[Outcome]) -> Seal | None:
        stored = [
            (outcome.draft, outcome.result) for outcome in outcomes if isinstance(outcome.result, StoredEvent)
        ]
        if not stored:
            return None
        rows = [event_row(event, draft.data.unique_key()) for draft, event in stored]
        words = [
            {
                "id": content.ref.id,
                "subject": content.ref.subject,
                "key_id": content.key.key_id,
                "ciphertext": content.ciphertext,
            }
            for draft, _ in stored
            for content in draft.contents
        ]
        if words:
            connection.execute(insert(contents), words)
        connection.execute(insert(events), rows)
        seal = self._sealer.seal(before, [row["leaf"] for row in rows if isinstance(row["leaf"], bytes)])
        connection.execute(insert(seals), [vars(seal)])
        project(connection, (event for _, event in stored))
        return seal


def event_row(event: StoredEvent, unique_key: str | None) -> dict[str, object]:
    """Return the columns of an event, its leaf hash among them."""
    return {
        "sequence": event.sequence,
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "time_us": event.time_us,
        "subject": event.subject,
        "tenant": event.tenant,
        "traceparent": event.traceparent,
        "data_json": event.data_json,
        "unique_key": unique_key,
        "leaf": leaf_hash(event.canonical_bytes()),
    }


def newest_seal(connection: Connection) -> Seal | None:
    """Return the seal at the head of the chain."""
    row = connection.execute(select(seals).order_by(seals.c.number.desc()).limit(1)).mappings().first()
    return None if row is None else Seal(**row)


def _taken_keys(connection: Connection, drafts: Sequence[Draft]) -> set[str]:
    # The write lock is held: nobody can take a key between this question and the commit.
    wanted = {key for draft in drafts if (key := draft.data.unique_key()) is not None}
    if not wanted:
        return set()
    query = select(events.c.unique_key).where(events.c.unique_key.in_(sorted(wanted)))
    return {key for key in connection.execute(query).scalars() if key is not None}


def _keys_before_erasure(connection: Connection, drafts: Sequence[Draft]) -> set[str]:
    """Keys that are older than the tombstone of their subject, though nobody destroyed them: they were not stored by then."""
    keys = {content.key.key_id: content.key for draft in drafts for content in draft.contents}
    if not keys:
        return set()
    scopes = {key.key_id: scopes_of(key.subject) for key in keys.values()}
    query = select(events.c.subject, func.max(events.c.time_us)).where(
        events.c.type == SubjectErased.TYPE,
        events.c.subject.in_(sorted({scope for one in scopes.values() for scope in one})),
    )
    erased_us = {subject: int(us) for subject, us in connection.execute(query.group_by(events.c.subject))}
    return {
        key_id
        for key_id, key in keys.items()
        if key.created_us <= max((erased_us.get(scope, -1) for scope in scopes[key_id]), default=-1)
    }


def _refusal(draft: Draft, taken: set[str], erased: set[str]) -> TiltyardError | None:
    key = draft.data.unique_key()
    if key is not None and key in taken:
        return Conflict(f"{draft.data.TYPE} about {draft.subject} is in the log already ({key})")
    for content in draft.contents:
        if content.key.key_id in erased:
            return Conflict(
                f"{content.ref.subject} was erased while words were being written; "
                "nothing was stored: encrypt them again with log.content()",
                code="subject_erased",
            )
    return None

"""Words whose time is over: which they are, and how they go.

Terms with a limit for each of their purposes (`DataTermsSet`) end: what is older than the longest of them is emptied out of the
vault. Once nothing is left under a key, and no new words can come under it, the key is destroyed too: then the words are gone
from older backups of the log as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, exists, func, select, update

from tiltyard.events.dialect import Database
from tiltyard.events.ids import uuid7
from tiltyard.events.permissions import DAY_US, data_terms_in, nearest_scope
from tiltyard.events.tables import contents, subject_keys
from tiltyard.events.vault import KEY_DAYS

SUBJECTS_AT_ONCE = 500


@dataclass(frozen=True)
class Due:
    """Words of one scope whose time is over."""

    scope: str
    before_us: int
    subjects: tuple[str, ...]
    contents: int


class Expiring:
    """Over one log and its keys; every method blocks."""

    def __init__(self, database: Database, keys: Database) -> None:
        self._database = database
        self._keys = keys

    def due(self, now_us: int) -> list[Due]:
        """What is over at a moment, by scope."""
        found = []
        with self._database.reading() as connection:
            for scope, days in data_terms_in(connection).items():
                limits = list(days.values())
                if not limits or None in limits:
                    continue  # something is kept for ever, or nothing was said
                before_us = now_us - max(limit for limit in limits if limit is not None) * DAY_US
                by_subject = dict(self._old(connection, scope, before_us))
                if by_subject:
                    found.append(Due(scope, before_us, tuple(sorted(by_subject)), sum(by_subject.values())))
        return found

    def destroy(self, due: Due) -> int:
        """Empty the rows and destroy the keys under which nothing is left; returns how many keys."""
        destroyed = 0
        for start in range(0, len(due.subjects), SUBJECTS_AT_ONCE):
            some = due.subjects[start : start + SUBJECTS_AT_ONCE]
            with self._database.writing() as connection:
                chosen = contents.c.subject.in_(some) & _full() & _older(due.before_us)
                connection.execute(update(contents).where(chosen).values(ciphertext=b""))
            destroyed += self._destroy_keys(some, due.before_us)
        if destroyed:
            self._keys.sweep(subject_keys)
        return destroyed

    def _old(self, connection: Connection, scope: str, before_us: int) -> Iterator[tuple[str, int]]:
        query = (
            select(contents.c.subject, func.count())
            .where(_older(before_us), _full())
            .group_by(contents.c.subject)
        )
        for subject, count in connection.execute(query).all():
            if nearest_scope(connection, subject) == scope:
                yield subject, count

    def _destroy_keys(self, subjects: Sequence[str], before_us: int) -> int:
        """Keys too old for new words, with no words left."""
        columns = subject_keys.c
        old = (
            columns.subject.in_(subjects),
            columns.wrapped.is_not(None),
            columns.created_us < before_us - KEY_DAYS * DAY_US,
        )
        with self._keys.reading() as connection:
            keys = list(connection.execute(select(columns.key_id).where(*old)).scalars())
        with self._database.reading() as connection:
            empty = [
                key
                for key in keys
                if not connection.execute(select(exists().where(contents.c.key_id == key, _full()))).scalar()
            ]
        if not empty:
            return 0
        with self._keys.writing() as connection:
            gone = update(subject_keys).where(columns.key_id.in_(empty), columns.wrapped.is_not(None))
            return connection.execute(gone.values(wrapped=None, destroyed_us=before_us)).rowcount


def _full() -> ColumnElement[bool]:
    return func.length(contents.c.ciphertext) > 0


def _older(before_us: int) -> ColumnElement[bool]:
    # A row's id is a UUIDv7, which sorts by its time as text too.
    return contents.c.id < str(uuid7(before_us * 1000, 0))

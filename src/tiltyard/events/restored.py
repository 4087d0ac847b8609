"""What has to be done to a log that came out of a backup, before anybody reads it: erasures that it does not know hold all the same."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, select, update

from tiltyard.events.dialect import Database
from tiltyard.events.permissions import of_subject
from tiltyard.events.schema import SubjectErased
from tiltyard.events.tables import contents, events, subject_keys

ROWS = 500


class Reapplied(NamedTuple):
    """What was done."""

    keys: int
    """Destroyed again: the log has their tombstone, and the keys had come out of an older copy."""
    contents: int
    """Rows of the vault that were emptied, since their keys are destroyed."""
    subjects: tuple[str, ...]
    """Erased after the backup was made: the log gets their tombstone again."""


def reapply_erasures(log: Database, keys: Database) -> Reapplied:
    """Destroy keys that are older than a tombstone, and empty rows whose keys are destroyed; blocks.

    Returns subjects all of whose keys were destroyed after the log's newest event: the caller appends their tombstones.
    """
    again = _destroy_by_tombstones(log, keys)
    with log.reading() as connection:
        newest_us = connection.execute(select(func.max(events.c.time_us))).scalar() or 0
    with keys.reading() as connection:
        rows = connection.execute(
            select(subject_keys.c.key_id, subject_keys.c.subject, subject_keys.c.destroyed_us).where(
                subject_keys.c.wrapped.is_(None)
            )
        ).all()
        living = set(
            connection.execute(
                select(subject_keys.c.subject).where(subject_keys.c.wrapped.is_not(None)).distinct()
            ).scalars()
        )
    emptied = 0
    names = [row.key_id for row in rows]
    for start in range(0, len(names), ROWS):
        some = contents.c.key_id.in_(names[start : start + ROWS])
        with log.writing() as connection:
            full = update(contents).where(some, func.length(contents.c.ciphertext) > 0)
            emptied += connection.execute(full.values(ciphertext=b"")).rowcount
    late = {row.subject for row in rows if (row.destroyed_us or 0) > newest_us and row.subject not in living}
    return Reapplied(again, emptied, tuple(sorted(late)))


def _destroy_by_tombstones(log: Database, keys: Database) -> int:
    """The keys may be older than the log: what it says was erased stays so."""
    query = select(events.c.subject, func.max(events.c.time_us)).where(events.c.type == SubjectErased.TYPE)
    with log.reading() as connection:
        tombstones = connection.execute(query.group_by(events.c.subject)).all()
    destroyed = 0
    for subject, erased_us in tombstones:
        old = update(subject_keys).where(
            of_subject(subject_keys.c.subject, subject),
            subject_keys.c.wrapped.is_not(None),
            subject_keys.c.created_us <= erased_us,
        )
        with keys.writing() as connection:
            destroyed += connection.execute(old.values(wrapped=None, destroyed_us=erased_us)).rowcount
    if destroyed:
        keys.sweep(subject_keys)
    return destroyed

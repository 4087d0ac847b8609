"""Imports as the raw events say they are, whatever became of the tables made of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tiltyard.events.dialect import SqliteDatabase
from tiltyard.events.imported import ImportQueries
from tiltyard.events.projections import project
from tiltyard.events.queries import Queries
from tiltyard.events.schema import (
    JudgmentsImported,
    PairCountsImported,
    VoteImportFinished,
    VoteImportStarted,
    VotesImported,
)
from tiltyard.events.tables import log_metadata

_TYPES = (VoteImportStarted, VotesImported, JudgmentsImported, PairCountsImported, VoteImportFinished)


@contextmanager
def imports_from_events(log: Queries, imports: Collection[str]) -> Iterator[ImportQueries]:
    """Make the tables of these imports (ids) anew in a scratch file, and answer from them; blocks.

    They hold no words: those are in the vault, and nothing of it is copied. A withdrawal is not heeded.
    """
    with TemporaryDirectory(prefix="tiltyard-imports-") as folder:
        database = SqliteDatabase(Path(folder) / "imports.db")
        try:
            database.create(log_metadata)
            for import_id in sorted(imports):
                with database.writing() as connection:
                    for event in log.read(types=_TYPES, subject=import_id):
                        project(connection, [event])
            yield ImportQueries(database)
        finally:
            database.close()

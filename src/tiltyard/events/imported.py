"""Questions about imported votes: which files there are, and what came out of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import JsonValue
from sqlalchemy import Table, func, select, union

from tiltyard.events.dialect import Database
from tiltyard.events.schema import Choice, ContentRef, Refused
from tiltyard.events.tables import imported_judgments, imported_pairs, imported_votes, imports

_PAGE_ROWS = 5000


@dataclass(frozen=True)
class ImportRow:
    """One import; it counts when it is finished and not withdrawn."""

    import_id: str
    sequence: int
    started_us: int
    source: str
    licence: str
    format: str
    file_name: str
    file_digest: str
    terms: dict[str, JsonValue]
    finished_us: int | None
    last_sequence: int | None
    """Of its last event."""
    file_rows: int | None
    votes: int | None
    judgments: int | None
    refused: tuple[Refused, ...]
    withdrawn_us: int | None

    @property
    def counts(self) -> bool:
        """Whether boards may read it."""
        return self.finished_us is not None and self.withdrawn_us is None


class ImportedVoteRow(NamedTuple):
    """One imported vote."""

    import_id: str
    line: int
    a: str
    b: str
    choice: Choice
    voter: str | None
    time_us: int | None
    turns: int | None
    id: str | None
    anonymous: bool | None
    pair_probability: float | None
    traits_json: str | None
    text_json: str | None

    @property
    def traits(self) -> dict[str, bool | float | str]:
        """What is known of the battle besides its outcome."""
        known: dict[str, bool | float | str] = json.loads(self.traits_json) if self.traits_json else {}
        return known

    @property
    def text(self) -> ContentRef | None:
        """Where its words are."""
        return ContentRef.model_validate_json(self.text_json) if self.text_json else None


class ImportedJudgmentRow(NamedTuple):
    """One imported verdict of a judge model."""

    import_id: str
    line: int
    judge: str
    template: str | None
    question: str | None
    turn: int | None
    a: str
    b: str | None
    verdict: Choice | None
    verdict_swapped: Choice | None
    both_orders: bool
    score: float | None
    time_us: int | None
    text_json: str | None

    @property
    def outcome(self) -> Choice | None:
        """What it says of the pair: both orders must agree, else it is a tie; `None` when unread or a score (MT-Bench's rule)."""
        if not self.both_orders:
            return self.verdict
        if self.verdict is None or self.verdict_swapped is None:
            return None
        return self.verdict if self.verdict == self.verdict_swapped else "tie"

    @property
    def text(self) -> ContentRef | None:
        """Where the judge's words are."""
        return ContentRef.model_validate_json(self.text_json) if self.text_json else None


class ImportedPairRow(NamedTuple):
    """How the votes of one pair fell."""

    import_id: str
    line: int
    a: str
    b: str
    wins_a: int
    wins_b: int
    ties: int
    both_bad: int


class ImportQueries:
    """Reads one database; every method blocks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def imports(self) -> list[ImportRow]:
        """Return every import that was ever begun, oldest first."""
        with self._database.reading() as connection:
            rows = connection.execute(select(imports).order_by(imports.c.sequence)).mappings().all()
        return [
            ImportRow(
                **{name: row[name] for name in ImportRow.__dataclass_fields__ if name in row},
                terms=json.loads(row["terms_json"]),
                refused=tuple(Refused(**one) for one in json.loads(row["refused_json"] or "[]")),
            )
            for row in rows
        ]

    def imported_votes(self, import_id: str) -> Iterator[ImportedVoteRow]:
        """Go through the votes of one import in the file's order."""
        for row in self._imported(imported_votes, ImportedVoteRow._fields, import_id):
            yield ImportedVoteRow._make(row)

    def imported_judgments(self, import_id: str) -> Iterator[ImportedJudgmentRow]:
        """Go through the verdicts of one import in the file's order."""
        for row in self._imported(imported_judgments, ImportedJudgmentRow._fields, import_id):
            yield ImportedJudgmentRow._make(row)

    def imported_pairs(self, import_id: str) -> Iterator[ImportedPairRow]:
        """Go through the pair counts of one import in the file's order."""
        for row in self._imported(imported_pairs, ImportedPairRow._fields, import_id):
            yield ImportedPairRow._make(row)

    def imported_rows(self, import_id: str) -> int:
        """Return how many votes, verdicts and pairs of an import are in the log."""
        with self._database.reading() as connection:
            return sum(
                connection.execute(
                    select(func.count()).select_from(table).where(table.c.import_id == import_id)
                ).scalar_one()
                for table in (imported_votes, imported_judgments, imported_pairs)
            )

    def imported_keys(self, source: str) -> set[str]:
        """Return the keys of the votes and verdicts of a source, those of withdrawn imports left out."""
        each = [
            select(table.c.key)
            .join(imports, imports.c.import_id == table.c.import_id)
            .where(imports.c.source == source, imports.c.withdrawn_us.is_(None), table.c.key.is_not(None))
            for table in (imported_votes, imported_judgments)
        ]
        with self._database.reading() as connection:
            return {key for key in connection.execute(union(*each)).scalars() if key is not None}

    def _imported(self, table: Table, names: tuple[str, ...], import_id: str) -> Iterator[tuple[object, ...]]:
        columns = table.c
        query = (
            select(columns.sequence, columns.place, *(columns[name] for name in names))
            .where(columns.import_id == import_id)
            .order_by(columns.sequence, columns.place)
            .limit(_PAGE_ROWS)
        )
        sequence, place = 0, 0
        while True:
            after = (columns.sequence > sequence) | ((columns.sequence == sequence) & (columns.place > place))
            with self._database.reading() as connection:
                rows = connection.execute(query.where(after)).all()
            for row in rows:
                yield tuple(row)[2:]
            if len(rows) < _PAGE_ROWS:
                return
            sequence, place = rows[-1].sequence, rows[-1].place

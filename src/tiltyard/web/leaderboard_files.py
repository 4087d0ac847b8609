"""A leaderboard as a file: CSV that a spreadsheet may open, Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Sequence
from typing import Final

from tiltyard.errors import Unavailable
from tiltyard.identity.canonical import Json
from tiltyard.rating.leaderboard import Leaderboard, LeaderboardRow
from tiltyard.wire.escaping import for_csv

HOW_TO_INSTALL: Final = "pip install 'tiltyard[parquet]'"

COLUMNS: Final = (
    "rank",
    "rank_worst",
    "rank_by_differences",
    "rank_by_differences_worst",
    "rank_simultaneous",
    "rank_simultaneous_worst",
    "status",
    "name",
    "rating",
    "lower",
    "upper",
    "votes",
    "wins",
    "losses",
    "ties",
    "both_bad",
    "votes_needed",
    "organization",
    "license",
    "behaviour",
    "superseded",
    "notes",
)
"""Of both files, in this order."""

_TEXT: Final = frozenset({"status", "name", "organization", "license", "behaviour", "notes"})
_REAL: Final = frozenset({"rating", "lower", "upper"})


def values_of(row: LeaderboardRow) -> dict[str, Json]:
    """Return what a row has in each of `COLUMNS`."""
    best, worst = row.ranks_simultaneous or (None, None)
    whole = {
        **row.to_json(),
        "rank_simultaneous": best,
        "rank_simultaneous_worst": worst,
        "notes": "; ".join(row.notes),
    }
    return {column: whole[column] for column in COLUMNS}


def to_csv(rows: Sequence[LeaderboardRow]) -> str:
    """Write rows as CSV; a text that a spreadsheet would run as a formula is prefixed with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        values = {**values_of(row), "superseded": "true" if row.model.superseded else "false"}
        writer.writerow([for_csv(values[column]) for column in COLUMNS])
    return out.getvalue()


def to_parquet(board: Leaderboard) -> bytes:
    """Write rows as Parquet, with the digest, method and ruleset in the file's metadata.

    Raises `Unavailable` when pyarrow is not installed: it is large, and only this file needs it.
    """
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as missing:
        raise Unavailable(
            f"Parquet needs one more package: {HOW_TO_INSTALL}. CSV and JSON have the same numbers.",
            code="parquet_missing",
        ) from missing
    rows = [values_of(row) for row in board.rows]
    schema = arrow.schema(
        [
            (
                column,
                arrow.string()
                if column in _TEXT
                else arrow.float64()
                if column in _REAL
                else arrow.bool_()
                if column == "superseded"
                else arrow.int64(),
            )
            for column in COLUMNS
        ],
        metadata={
            "tiltyard.digest": board.digest,
            "tiltyard.method": board.ratings.method,
            "tiltyard.ruleset": board.evidence.ruleset,
        },
    )
    out = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), out)
    return out.getvalue()

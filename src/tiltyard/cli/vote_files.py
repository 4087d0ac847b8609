"""Votes from a CSV file: three columns that every vote has, and those that some options need."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tiltyard.errors import InvalidRequest
from tiltyard.rating.votes import Unknown, Votes

COLUMNS: Final = ("model_a", "model_b", "winner")
"""Columns that every votes file has; all others but those below become traits."""
VOTER: Final = ("voter", "judge", "worker", "user")
"""Names that a column of voters goes by; the first that is there counts."""
TIME: Final = ("tstamp", "timestamp")
"""Names of the time: seconds since 1970 UTC, with or without a fraction."""
PAIR_PROBABILITY: Final = ("pair_probability", "pair_prob")
"""Names of the probability with which the pair was drawn."""


def read_table(path: Path) -> dict[str, list[str]]:
    """Read a CSV file by column; raises `InvalidRequest` naming the file and the column or the line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            header = next(reader, [])
            missing = [column for column in COLUMNS if column not in header]
            if missing:
                raise InvalidRequest(
                    f"{path} has no column {', '.join(missing)}; its first line names "
                    f"{', '.join(header) or 'nothing'}. A votes file has {', '.join(COLUMNS)}.",
                    param="votes",
                )
            columns: list[list[str]] = [[] for _ in header]
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise InvalidRequest(
                        f"{path}, line {reader.line_num}: {len(row)} values; the header has {len(header)}.",
                        param="votes",
                    )
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest(
            f"{path} cannot be read as a CSV file in UTF-8: {error}", param="votes"
        ) from None
    return dict(zip(header, columns, strict=True))


def read_votes(path: Path, *, unknown: Unknown = "refuse") -> Votes:
    """Read a CSV file of votes; raises `InvalidRequest` naming the file and the column or the outcome."""
    table = read_table(path)
    voter, time, probability = (
        next((name for name in names if name in table), None) for names in (VOTER, TIME, PAIR_PROBABILITY)
    )
    traits = {
        name: _numbers_or_text(values)
        for name, values in table.items()
        if name and name not in {*COLUMNS, voter, time, probability}
    }
    return Votes.from_columns(
        *(table[column] for column in COLUMNS),
        unknown=unknown,
        voter=table[voter] if voter else None,
        time_us=[round(second * 1e6) for second in _numbers(path, time, table[time])] if time else None,
        pair_probability=_numbers(path, probability, table[probability]) if probability else None,
        traits=traits,
    )


def _numbers(path: Path, name: str, values: Sequence[str]) -> list[float]:
    numbers = []
    for row, value in enumerate(values, 1):
        try:
            numbers.append(float(value))
        except ValueError:
            raise InvalidRequest(
                f"{path}, vote {row:,}: {name} is {value[:40]!r}, which is no number.", param="votes"
            ) from None
    return numbers


def _numbers_or_text(values: Sequence[str]) -> list[float] | list[str]:
    try:
        return [float(value) for value in values]
    except ValueError:
        return list(values)

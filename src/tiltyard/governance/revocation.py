"""Rows of dataset releases that an erasure takes back: which releases hold them, and the file that says so to whoever has one.

A release that went out cannot be called back. Its revocation file lists, by digest, every row that may not be used any
longer; it grows with each erasure, and a reader of the release leaves those rows out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from tiltyard.errors import StorageFailed
from tiltyard.events.envelope import format_time
from tiltyard.events.log import EventLog
from tiltyard.events.permissions import subject_belongs
from tiltyard.events.schema import DatasetRowsReleased, SubjectErased
from tiltyard.identity.canonical import Digest, Json, canonical_json

FORMAT: Final = "tiltyard.revocation/1"


@dataclass(frozen=True)
class Held:
    """Rows of one release that hold words or choices of an erased subject."""

    release: str
    rows: tuple[Digest, ...]
    """In the release's order."""


def releases_that_hold(log: EventLog, subject: str) -> list[Held]:
    """The releases whose rows name a data subject, oldest first. Blocks."""
    found: dict[str, list[Digest]] = {}
    for event in log.read(types=[DatasetRowsReleased]):
        if isinstance(event.data, DatasetRowsReleased):
            rows = [
                row.digest
                for row in event.data.rows
                if any(subject_belongs(whose, subject) for whose in row.subjects)
            ]
            if rows:
                found.setdefault(event.data.release, []).extend(rows)
    return [Held(release, tuple(rows)) for release, rows in found.items()]


def revocation_of(log: EventLog, release: str) -> dict[str, Json]:
    """Every row of a release that was revoked so far, signed by the log's owner. Blocks."""
    erased = {
        event.data.erased: event.time_us
        for event in log.read(types=[SubjectErased])
        if isinstance(event.data, SubjectErased)
    }
    rows: list[Json] = [
        {"row": row, "revoked": format_time(time_us)}
        for row, time_us in _revoked(log, release, erased.items())
    ]
    said: dict[str, Json] = {"format": FORMAT, "release": release, "rows": rows}
    signature = log.sign(canonical_json(said))
    return {**said, "public_key": signature.public_key, "signature": signature.signature}


def write_revocations(log: EventLog, releases: Iterable[str], folder: Path) -> list[Path]:
    """Write `<release>.json` anew for each release; raises `StorageFailed` when the disk refuses."""
    paths = []
    try:
        for release in releases:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{release}.json"
            aside = path.with_suffix(".tmp")
            aside.write_bytes(orjson.dumps(revocation_of(log, release), option=orjson.OPT_INDENT_2) + b"\n")
            aside.replace(path)
            paths.append(path)
    except OSError as error:
        raise StorageFailed(f"the revocations cannot be written to {folder}: {error.strerror}") from error
    return paths


def _revoked(log: EventLog, release: str, erased: Iterable[tuple[str, int]]) -> Iterator[tuple[Digest, int]]:
    people = list(erased)
    for event in log.read(types=[DatasetRowsReleased], subject=release):
        if not isinstance(event.data, DatasetRowsReleased):
            continue
        for row in event.data.rows:
            # Who was erased before the release, and came back, is in it by a new consent.
            times = [
                time_us
                for subject, time_us in people
                if time_us > event.time_us and any(subject_belongs(whose, subject) for whose in row.subjects)
            ]
            if times:
                yield row.digest, min(times)

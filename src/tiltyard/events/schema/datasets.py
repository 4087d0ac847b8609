"""Dataset releases: what went out, row by row, and who made what of it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import JsonValue

from tiltyard.events.schema.record import EventData
from tiltyard.identity.canonical import Digest
from tiltyard.identity.manifest import Frozen

Layout = Literal["conversations", "preferences", "pairs"]
"""One conversation a row (as LMSYS-Chat-1M), one vote a row (as the arena sets), or chosen and rejected (as TRL reads them)."""


class ReleasedRow(Frozen):
    """Where one row of a release came from."""

    id: str
    """The row's id in the release: a keyed digest of its origin, so that no time or order can be read from it."""
    digest: Digest
    """SHA-256 of the row in canonical JSON, as published."""
    subjects: tuple[str, ...]
    """Data subjects whose words or choices it holds; when one is erased, the row is revoked."""
    origin: str
    """Battle id, `imp_…:<line>` of an import, or generation id."""
    generations: tuple[str, ...] = ()
    """Generations whose words it holds."""


class DatasetRowsReleased(EventData):
    """Written by `tiltyard data release`: a batch of rows of a release, before the release itself."""

    TYPE: ClassVar[str] = "tiltyard.dataset.rows.released.v1"
    release: str
    """Release id; also the event's subject."""
    place: int
    """Number of the first row of this batch in the release."""
    rows: tuple[ReleasedRow, ...]
    """The rows, in the release's order."""

    def unique_key(self) -> str | None:
        """A batch is written once."""
        return f"dataset-rows:{self.release}:{self.place}"


class DatasetReleased(EventData):
    """Written by `tiltyard data release` when all files of a release are on the disk and signed."""

    TYPE: ClassVar[str] = "tiltyard.dataset.released.v1"
    release: str
    """Release id, `dat_…`, the beginning of `digest`; also the event's subject."""
    name: str
    """Name of the data set."""
    version: str
    """Its version."""
    layout: Layout
    """Shape of its rows."""
    position: int
    """The log up to this event was read; the same plan and position give the same bytes."""
    digest: Digest
    """Digest of `manifest.json`, which names every file by its digest."""
    manifest: dict[str, JsonValue]
    """`manifest.json`: plan, files, columns, what was left out and why."""
    rows: int
    """How many rows it has."""
    key: str
    """Public key that signed it: 32 bytes in hexadecimal."""
    by: str
    """Who released it."""

    def unique_key(self) -> str | None:
        """The same bytes are released once."""
        return f"dataset:{self.digest}"


class DatasetUsed(EventData):
    """Written by `tiltyard data use` when something was made of a release: lineage that no digest shows by itself."""

    TYPE: ClassVar[str] = "tiltyard.dataset.used.v1"
    release: str
    """Release id; also the event's subject."""
    kind: Literal["identity", "scorer", "set", "other"]
    """A served model, a judge or reward scorer, a fixed set, or something outside of this log."""
    name: str
    """Its name."""
    behaviour: Digest | None = None
    """Behaviour digest of an identity."""
    why: str = ""
    """What for, in words."""
    by: str
    """Who said so."""

    def unique_key(self) -> str | None:
        """Said once of a thing."""
        return f"dataset-used:{self.release}:{self.kind}:{self.name}:{self.behaviour or ''}"

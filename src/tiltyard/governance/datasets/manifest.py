"""`manifest.json`: everything that a release is and how it came about; card, lineage and page are made of it alone."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from tiltyard.errors import InvalidRequest
from tiltyard.events.schema import Layout
from tiltyard.governance.datasets.columns import Kind
from tiltyard.governance.datasets.plan import Plan, Quasi
from tiltyard.identity.canonical import Digest, canonical_json

FORMAT: Final = "tiltyard-dataset/1"
"""Changes with anything that changes a byte of a release of the same plan."""


class BadRelease(InvalidRequest):
    """A directory that is no release, or no whole one."""

    default_code = "bad_release"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ColumnNote(_Part):
    """One column."""

    name: str
    kind: Kind
    meaning: str


class FileNote(_Part):
    """One file."""

    digest: Digest
    bytes: int


class AnonymityNote(_Part):
    """What k-anonymity came to."""

    k: int
    levels: dict[Quasi, str]
    suppressed: int
    generalised: dict[Quasi, int]
    groups: int
    smallest: int


class RedactionNote(_Part):
    """What redaction came to."""

    rows: int
    found: dict[str, int]


class Window(_Part):
    """First and last day, as coarse as the rows."""

    first: str
    last: str


class Source(_Part):
    """Where records came from."""

    source: str
    licence: str
    imports: tuple[str, ...]
    files: tuple[Digest, ...]


class IdentityNote(_Part):
    """An identity whose answers are in the release."""

    behaviour: Digest
    name: str
    generations: int


class Manifest(_Part):
    """`manifest.json`."""

    format: str
    name: str
    version: str
    layout: Layout
    licence: str
    log: str
    position: int
    as_of: str
    ruleset: str
    plan: Plan
    columns: tuple[ColumnNote, ...]
    rows: int
    rows_digest: Digest
    records: int
    left_out: dict[str, int]
    duplicates: int
    not_drawn: int
    anonymity: AnonymityNote | None
    people: int
    rows_of_nobody_known: int
    redacted: RedactionNote
    collected: Window | None
    languages: dict[str, int]
    models: dict[str, int]
    winners: dict[str, int]
    sources: tuple[Source, ...]
    identities: tuple[IdentityNote, ...]
    software: dict[str, str]
    files: dict[str, FileNote] = {}
    """By path in the release; the manifest and its signature are not among them."""

    def to_bytes(self) -> bytes:
        """The bytes of `manifest.json`."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def label(self) -> str:
        """What people call it."""
        return f"{self.name}-{self.version}"


def parse_manifest(data: bytes, shown: str) -> Manifest:
    """Read a manifest; raises `BadRelease` naming the field."""
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise BadRelease(f"{shown}: {field}: {first['msg']}", param=field) from None

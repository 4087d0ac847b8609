"""Whether a directory is the release that it says: digests, signature, and, with the log at hand, the same bytes again.

What was erased since cannot be made again. Then every row that is still there is made again for itself, under the columns' recorded
levels, and compared by digest; what lacks must be revoked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import DatasetReleased, DatasetRowsReleased, ReleasedRow
from tiltyard.governance.datasets.anonymity import coarse
from tiltyard.governance.datasets.building import MANIFEST, build, released_row, rows_digest
from tiltyard.governance.datasets.files import digest_of_file
from tiltyard.governance.datasets.manifest import BadRelease, Manifest, parse_manifest
from tiltyard.governance.datasets.preparation import Means, Pinned, prepare_rows
from tiltyard.governance.datasets.release import PREDICATE, SIGNATURE, release_id
from tiltyard.governance.revocation import revocation_of
from tiltyard.identity.canonical import Digest, digest_of
from tiltyard.identity.signature import verify_statement

_MOST_NAMED: Final = 5


@dataclass(frozen=True)
class Held:
    """A directory whose files are those that its signature names."""

    directory: Path
    manifest: Manifest
    digest: Digest
    public_key: str

    @property
    def release(self) -> str:
        """Its id."""
        return release_id(self.digest)


@dataclass(frozen=True)
class Remade:
    """What making it again from the log came to."""

    same_bytes: bool
    rows: int
    """Of the release."""
    same: int
    """Made again with the same digest."""
    revoked: int
    """Revoked since, and so not made again."""
    wrong: tuple[str, ...]
    """Ids of rows that came out otherwise, or are gone without being revoked."""

    @property
    def good(self) -> bool:
        """Whether the log explains the release."""
        return self.same_bytes or not self.wrong


def check_directory(directory: Path) -> Held:
    """Check files against manifest and signature; raises `BadRelease` or `BadSignature` naming the first fault."""
    for name in (MANIFEST, SIGNATURE):
        if not (directory / name).is_file():
            raise BadRelease(f"{directory} has no {name}: it is no release, or not a whole one.", param=name)
    data = (directory / MANIFEST).read_bytes()
    digest = digest_of(data)
    manifest = parse_manifest(data, str(directory / MANIFEST))
    signed = verify_statement((directory / SIGNATURE).read_bytes())
    if signed.predicate_type != PREDICATE:
        raise BadRelease(f"{directory / SIGNATURE} signs {signed.predicate_type!r}, which is no data set.")
    wanted = {path: note.digest for path, note in manifest.files.items()} | {MANIFEST: digest}
    if signed.subjects != wanted:
        raise BadRelease(
            f"{directory / SIGNATURE} is of another {MANIFEST} than the one beside it.", param=MANIFEST
        )
    for path, note in manifest.files.items():
        place = directory / path
        if not place.resolve().is_relative_to(directory.resolve()):
            raise BadRelease(f"{MANIFEST} names {path!r}, which is outside of the release.", param="files")
        if not place.is_file():
            raise BadRelease(f"{place} is missing.", param=path)
        if (actual := digest_of_file(place)) != note.digest:
            raise BadRelease(f"{place} was changed: it is {actual}, not {note.digest}.", param=path)
    _check_nothing_else(directory, manifest)
    return Held(directory, manifest, digest, signed.public_key)


def _check_nothing_else(directory: Path, manifest: Manifest) -> None:
    named = {*manifest.files, MANIFEST, SIGNATURE}
    for found in sorted(directory.rglob("*")):
        path = found.relative_to(directory)
        if any(part.startswith(".") for part in path.parts):
            continue  # what version control and loaders keep for themselves
        if found.is_file() and path.as_posix() not in named:
            raise BadRelease(
                f"{found} is no file of the release: whoever loads the folder may take it for one. Move it away.",
                param=path.as_posix(),
            )


def make_again(means: Means, held: Held, ruleset: str) -> Remade:
    """Make the release again from the log and compare; raises `InvalidRequest` where this log cannot have made it."""
    manifest = held.manifest
    if manifest.log != means.log.id:
        raise InvalidRequest(
            f"{held.manifest.label} was made from the log {manifest.log}, and this is {means.log.id}. Name its data "
            "directory with --data.",
            param="log",
        )
    if manifest.ruleset != ruleset and manifest.plan.where.votes == "counting":
        raise InvalidRequest(
            f"{held.manifest.label} was made under the ruleset {manifest.ruleset}, and {ruleset} is in force. Name a file "
            "with that ruleset in arena.ruleset to make it again.",
            param="ruleset",
        )
    pinned = Pinned(manifest.plan, manifest.position, manifest.ruleset)
    with tempfile.TemporaryDirectory(prefix="tiltyard-verify-") as folder:
        work = Path(folder) / "work"
        try:
            built = build(means, pinned, work, Path(folder) / "release")
            if digest_of(built.manifest.to_bytes()) == held.digest:
                rows = len(built.rows)
                return Remade(True, rows=rows, same=rows, revoked=0, wrong=())
        except InvalidRequest:
            pass  # no row, or no k people, are left; the rows that are can still be compared
        return _row_by_row(means, held, pinned, work)


def rows_of(log: EventLog, release: str) -> Iterator[ReleasedRow]:
    """Go through the rows of a release as the log has them."""
    for event in log.read(types=(DatasetRowsReleased,), subject=release):
        if isinstance(event.data, DatasetRowsReleased):
            yield from event.data.rows


def releases_of(log: EventLog) -> list[DatasetReleased]:
    """Return every release, oldest first."""
    return [
        event.data for event in log.read(types=(DatasetReleased,)) if isinstance(event.data, DatasetReleased)
    ]


def revoked_rows(log: EventLog, release: str) -> dict[Digest, str]:
    """Return the digests of rows that were revoked so far, and when."""
    listed = revocation_of(log, release)["rows"]
    found: dict[Digest, str] = {}
    for row in listed if isinstance(listed, list) else ():
        found[str(row["row"])] = str(row["revoked"])
    return found


def _row_by_row(means: Means, held: Held, pinned: Pinned, work: Path) -> Remade:
    manifest = held.manifest
    levels = {} if manifest.anonymity is None else manifest.anonymity.levels
    prepared = prepare_rows(means, pinned, work)
    now = {
        entry.id: released_row(entry, coarse(row, entry.facts, levels)).digest
        for entry, row in zip(prepared.entries, prepared.rows(prepared.entries), strict=True)
    }
    revoked = revoked_rows(means.log, held.release)
    told = list(rows_of(means.log, held.release))
    if len(told) != manifest.rows or rows_digest(told) != manifest.rows_digest:
        raise BadRelease(
            f"the log tells of {len(told):,} rows of {held.release}, and they are not the {manifest.rows:,} of the release: "
            "this log never released it.",
            param="rows",
        )
    same = sum(now.get(row.id) == row.digest for row in told)
    gone = [row for row in told if now.get(row.id) != row.digest]
    wrong = [row.id for row in gone if row.digest not in revoked]
    return Remade(False, len(told), same, len(gone) - len(wrong), tuple(wrong[:_MOST_NAMED]))

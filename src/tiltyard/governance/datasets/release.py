"""Makes a release: built beside its place, signed, told to the log, and there whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tiltyard.errors import ConfigurationError, Conflict, InvalidRequest, StorageFailed
from tiltyard.events.log import EventLog
from tiltyard.events.schema import DatasetReleased, DatasetRowsReleased, ReleasedRow
from tiltyard.governance.datasets.building import MANIFEST, Built, build
from tiltyard.governance.datasets.files import ROWS_A_GROUP
from tiltyard.governance.datasets.manifest import Manifest
from tiltyard.governance.datasets.plan import Plan
from tiltyard.governance.datasets.preparation import Means, Pinned, state_of, wanted_of
from tiltyard.identity.canonical import Digest, digest_of
from tiltyard.identity.signature import Signing, signed_statement, verify_statement

SOURCE: Final = "tiltyard/data"
SIGNATURE: Final = "signature.json"
PREDICATE: Final = "urn:tiltyard:dataset-release:1"


@dataclass(frozen=True)
class Released:
    """A release that is there."""

    release: str
    directory: Path
    manifest: Manifest
    digest: Digest
    key: str
    """Public key that signed it, in hexadecimal."""
    was_there: bool
    """Whether the log knew it already: the same bytes."""


def release(means: Means, plan: Plan, directory: Path, *, ruleset: str) -> Released:
    """Make the release of a plan in `directory`, going on where a cut run ended; blocks.

    Raises `InvalidRequest` where the plan gives nothing or the directory is taken, `ConfigurationError` without pyarrow,
    `StorageFailed` when the disk refuses.
    """
    directory = directory.absolute()
    if directory.exists():
        raise InvalidRequest(
            f"{directory} is there already, and a release is never written over. Name another with --output, or raise "
            "the plan's version.",
            param="output",
        )
    work = directory.with_name(f"{directory.name}.part")
    try:
        with _only_one(work):
            out = work / "release"
            shutil.rmtree(out, ignore_errors=True)
            try:
                pinned = pin(means.log, plan, ruleset, work / "work")
                built = build(means, pinned, work / "work", out)
            except (InvalidRequest, ConfigurationError):
                shutil.rmtree(work)  # the plan has to be another one: nothing of this run can be gone on from
                raise
            digest, key = _sign(means.log, built, out)
            _refuse_another(means.log, built.manifest, digest)
            was_there = _tell(means, built, digest, key)
            for path in (*out.iterdir(), out):
                _sync(path)
            out.rename(directory)
            shutil.rmtree(work)
            return Released(release_id(digest), directory, built.manifest, digest, key, was_there)
    except OSError as error:
        raise StorageFailed(f"{error.filename or directory} cannot be written: {error.strerror}") from error


def release_id(digest: Digest) -> str:
    """Name a release by the beginning of its manifest's digest.

    >>> release_id("sha256:" + "ab" * 32)
    'dat_abababababababababababababababab'
    """
    return f"dat_{digest.removeprefix('sha256:')[:32]}"


def pin(log: EventLog, plan: Plan, ruleset: str, work: Path) -> Pinned:
    """Fix the log position: the plan's, that of a cut run of the same plan, or the log's end."""
    last = log.last_sequence()
    if plan.position is not None:
        if plan.position > last:
            raise InvalidRequest(
                f"position is {plan.position:,}, and the log ends at {last:,}. Leave it out to take the log's end.",
                param="position",
            )
        return Pinned(plan, plan.position, ruleset)
    state = state_of(work)
    for position in (state.get("position"), last):
        if isinstance(position, int) and position:
            pinned = Pinned(plan.model_copy(update={"position": position}), position, ruleset)
            if position == last or state.get("wanted") == wanted_of(pinned):
                return pinned
    raise InvalidRequest("the log is empty: there is nothing to release.", param="sources")


def _sign(log: EventLog, built: Built, out: Path) -> tuple[Digest, str]:
    """Sign the release; return the manifest's digest, and the public key in hexadecimal."""
    manifest = built.manifest
    digest = digest_of((out / MANIFEST).read_bytes())
    subjects = {path: note.digest for path, note in manifest.files.items()} | {MANIFEST: digest}
    predicate = {"name": manifest.name, "version": manifest.version, "release": release_id(digest)}

    def sign(data: bytes) -> Signing:
        signed = log.sign(data)
        return Signing(bytes.fromhex(signed.signature), bytes.fromhex(signed.public_key))

    envelope = signed_statement(subjects, PREDICATE, predicate, sign)
    (out / SIGNATURE).write_bytes(envelope)
    return digest, verify_statement(envelope).public_key


def _refuse_another(log: EventLog, manifest: Manifest, digest: Digest) -> None:
    """One name and version are one set of bytes, in whatever folder."""
    for event in log.read(types=(DatasetReleased,)):
        if not isinstance(known := event.data, DatasetReleased) or known.digest == digest:
            continue
        if (known.name, known.version) == (manifest.name, manifest.version):
            raise InvalidRequest(
                f"{manifest.label} was released already, with other rows ({known.release}, at position {known.position:,}). "
                "Raise the plan's version, or pin that position to make it again.",
                param="version",
            )


def _tell(means: Means, built: Built, digest: Digest, key: str) -> bool:
    """Append what the log does not have yet; say whether it had all."""
    log, name = means.log, release_id(digest)
    manifest, rows = built.manifest, built.rows
    for place, batch in _batches(rows):
        with suppress(Conflict):  # a run that was cut wrote it
            log.append_blocking(
                DatasetRowsReleased(release=name, place=place, rows=batch), subject=name, source=SOURCE
            )
        means.progress("recording", (place + len(batch)) / len(rows))
    done = DatasetReleased(
        release=name,
        name=manifest.name,
        version=manifest.version,
        layout=manifest.layout,
        position=manifest.position,
        digest=digest,
        manifest=manifest.model_dump(mode="json"),
        rows=manifest.rows,
        key=key,
        by=means.by,
    )
    try:
        log.append_blocking(done, subject=name, source=SOURCE)
    except Conflict:
        return True
    return False


def _batches(rows: Sequence[ReleasedRow]) -> Iterator[tuple[int, tuple[ReleasedRow, ...]]]:
    for place in range(0, len(rows), ROWS_A_GROUP):
        yield place, tuple(rows[place : place + ROWS_A_GROUP])


@contextmanager
def _only_one(work: Path) -> Iterator[None]:
    """Hold the work folder; raises `Conflict` where another process does."""
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another process is making {work.stem} now; let it finish.") from None
        yield


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

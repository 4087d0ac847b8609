"""What a backup says of itself: every file with its digest, where the log ended, which models it needs; signed by the log's owner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

import orjson
from pydantic import ValidationError

from tiltyard.errors import InvalidRequest, LogTampered, StorageFailed
from tiltyard.events.signing import Signature, is_signed
from tiltyard.identity.canonical import Digest, canonical_json, digest_of_stream
from tiltyard.identity.manifest import Frozen

FORMAT: Final = "tiltyard.backup/1"
NAME: Final = "manifest.json"
LOG: Final = "log.db"


class KeptFile(Frozen):
    """One file of a backup."""

    path: str
    """From the backup's directory, with slashes."""
    size_bytes: int
    sha256: Digest


class NeededModel(Frozen):
    """A model that the settings name; its weights are in the backup only if that was asked for."""

    name: str
    source: str
    sha256: Digest | None
    """Of the file or directory as it was registered on this machine; `None`: it was not there, and nothing pins it."""
    kept: str | None = None
    """Where it is in the backup."""


class BackupManifest(Frozen):
    """Everything but the signature."""

    format: Literal["tiltyard.backup/1"] = "tiltyard.backup/1"
    made_at: str
    """UTC, ISO 8601."""
    tiltyard: str
    reason: str
    log_id: str
    schema_version: int
    events: int
    head: str | None
    """`<number>:<hash>` of the log's newest seal, as `tiltyard events verify --head` takes it."""
    newest_event: str | None
    """When the newest event was appended."""
    files: tuple[KeptFile, ...]
    models: tuple[NeededModel, ...] = ()

    @property
    def bytes(self) -> bytes:
        """What is signed: canonical JSON (RFC 8785)."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)


def written(manifest: BackupManifest, signature: Signature) -> bytes:
    """The file `manifest.json`."""
    document = manifest.model_dump(mode="json")
    document |= {"public_key": signature.public_key, "signature": signature.signature}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"


def read_manifest(backup: Path, *, public_key: str | None = None) -> BackupManifest:
    """Read and check a backup's manifest.

    Raises `InvalidRequest` where it is none, `LogTampered` where the signature does not fit, or is not of `public_key`.
    """
    path = backup / NAME
    try:
        document = orjson.loads(path.read_bytes())
        signature = Signature(str(document.pop("public_key")), str(document.pop("signature")))
        manifest = BackupManifest.model_validate(document)
    except OSError as error:
        raise InvalidRequest(
            f"{backup} is no backup: {path} cannot be read ({error.strerror}). `tiltyard backup list` shows those there are"
        ) from None
    except (orjson.JSONDecodeError, KeyError, AttributeError, ValidationError) as error:
        raise InvalidRequest(
            f"{path} is not the manifest of a backup that this tiltyard reads: {error}"
        ) from None
    if not is_signed(manifest.bytes, signature):
        raise LogTampered(f"{path} was changed since it was signed; do not restore this backup")
    if public_key is not None and signature.public_key != public_key:
        raise LogTampered(
            f"{path} was not signed with this log's master key (by {signature.public_key[:16]}…, expected {public_key[:16]}…). "
            "Bring the master.key of the machine on which it was made"
        )
    return manifest


def digest_of_file(path: Path) -> tuple[int, Digest]:
    """Size and digest of a file; raises `StorageFailed`."""
    try:
        with path.open("rb") as stream:
            return os.fstat(stream.fileno()).st_size, digest_of_stream(stream)
    except OSError as error:
        raise StorageFailed(f"cannot read {path}: {error.strerror}") from None

"""Where fetched models lie, and the promise that what lies there is whole and is what its sidecar says.

::

    <cache>/models/<slug>/<file>.gguf    put there by one atomic rename, after its digest was checked
                         /model.json     the sidecar: source, file, sha256, size_bytes, mtime_ns
                         /partial/       what an interrupted fetch left; never read as a model
                         /lock           held by the one process that fetches
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tiltyard.errors import ConfigurationError, DigestMismatch, ModelRejected, StorageFailed
from tiltyard.identity.canonical import CHUNK_BYTES, Digest, Json, digest_of_json
from tiltyard.models.directory_files import fingerprint, model_files
from tiltyard.models.progress import ProgressReport, SilentProgress

CACHE_VARIABLE = "TILTYARD_CACHE"
SIDECAR = "model.json"
DISK_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


@dataclass(frozen=True)
class CachedModel:
    """A model file that is known to have a digest."""

    path: Path
    sha256: Digest
    size_bytes: int


@dataclass(frozen=True)
class Sidecar:
    """What was true of a file when it was hashed; while size and time agree, the digest holds."""

    source: str
    path: str
    sha256: Digest
    size_bytes: int
    mtime_ns: int
    """Of a directory a hash of its files' sizes and times (`directory.fingerprint`)."""


def default_cache() -> Path:
    """Return `TILTYARD_CACHE`, or `tiltyard` in the user's cache directory."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tiltyard"


def normalized_digest(text: str) -> Digest:
    """Return `sha256:` and 64 lower-case hex digits; raises `ConfigurationError` for anything else.

    >>> normalized_digest("AB" * 32)[:11]
    'sha256:abab'
    """
    value = text.lower().removeprefix("sha256:")
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ConfigurationError(f"sha256 {text!r} is not a digest; write 64 hex digits", param="sha256")
    return f"sha256:{value}"


class CacheSlot:
    """The directory of one source."""

    def __init__(self, cache: Path, source: str) -> None:
        self.source = source
        readable = re.sub(r"[^a-z0-9.]+", "-", source.lower()).strip("-.")[:80]
        # The digest keeps sources apart whose readable parts are equal.
        self.directory = (
            cache.resolve() / "models" / f"{readable}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
        )
        self.partial = self.directory / "partial"

    @classmethod
    def of_file(cls, cache: Path, path: Path) -> CacheSlot:
        """The slot of a model that the user already has; `path` is absolute."""
        # The full path, so that two projects' `file:model.gguf` do not share a sidecar.
        return cls(cache, f"file:{path}")

    def unchanged(self) -> CachedModel | None:
        """Return the model without hashing, if its file has the size and time that the sidecar says."""
        return unchanged_model(self.directory)

    def recorded(self) -> CachedModel | None:
        """Return what the sidecar says, even if the file has changed or gone since."""
        known = read_sidecar(self.directory)
        return None if known is None else CachedModel(Path(known.path), known.sha256, known.size_bytes)

    def adopt(self, expected: Digest | None, report: ProgressReport) -> CachedModel | None:
        """Hash model files that lie here without a fitting sidecar; keep the one with the expected digest."""
        known = read_sidecar(self.directory)
        expected = expected or (known.sha256 if known else None)
        if expected is None:
            return None
        for path in sorted((*self.directory.glob("*.gguf"), *self.directory.glob("model"))):
            if hash_model(path, report) == expected:
                return self.record(path, expected)
        return None

    def put(self, finished: Path, digest: Digest) -> CachedModel:
        """Move a checked file to its place and write the sidecar."""
        target = self.directory / finished.name
        with disk_errors(target):
            if target.is_dir():  # an earlier download that has changed since
                shutil.rmtree(target)
            finished.replace(target)
            sync_directory(self.directory)
        return self.record(target, digest)

    def record(self, path: Path, digest: Digest) -> CachedModel:
        """Write the sidecar for a file."""
        with disk_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            size_bytes, stamp = fingerprint(path)
            sidecar = Sidecar(self.source, str(path), digest, size_bytes, stamp)
            temporary = self.directory / f"{SIDECAR}.{os.getpid()}"
            temporary.write_text(json.dumps(asdict(sidecar), indent=1) + "\n")
            temporary.replace(self.directory / SIDECAR)
        return CachedModel(path, digest, size_bytes)

    @contextmanager
    def locked(self, report: ProgressReport) -> Iterator[None]:
        """Hold the slot; a second process waits and says so. The system lets go when a process dies."""
        with disk_errors(self.directory):
            self.partial.mkdir(parents=True, exist_ok=True)
            stream = (self.directory / "lock").open("w")
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report.begin(f"waiting for another process that fetches {self.source}", None)
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX)
                finally:
                    report.end()
            yield


def read_sidecar(directory: Path) -> Sidecar | None:
    """Return a directory's sidecar, whatever has become of its file; `None` if none can be read."""
    try:
        return Sidecar(**json.loads((directory / SIDECAR).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def unchanged_model(directory: Path) -> CachedModel | None:
    """Return the model of a directory without hashing, if it has the size and time that the sidecar says."""
    known = read_sidecar(directory)
    if known is None:
        return None
    try:
        if fingerprint(Path(known.path)) != (known.size_bytes, known.mtime_ns):
            return None
    except (OSError, ModelRejected):
        return None
    return CachedModel(Path(known.path), known.sha256, known.size_bytes)


def digest_of_model(path: Path, report: ProgressReport | None = None) -> Digest:
    """Return a model file's digest, from its sidecar while that fits (beside it, or a `file:` source's), else by hashing."""
    return _digest_by_sidecar(path) or hash_model(path, report or SilentProgress())


def _digest_by_sidecar(path: Path) -> Digest | None:
    path = path.resolve()
    for model in (unchanged_model(path.parent), CacheSlot.of_file(default_cache(), path).unchanged()):
        if model is not None and model.path == path:
            return model.sha256
    return None


class Rehashing:
    """A model that is about to be served is hashed while it is loaded; a sidecar is believed about nothing but the name.

    ::

        with ThreadPoolExecutor() as aside:
            weights = Rehashing(path, aside)
            ...                       # load under the name `weights.digest`
            weights.verify()          # before anything is kept or answered under that name
    """

    def __init__(self, path: Path, aside: Executor, report: ProgressReport | None = None) -> None:
        """Begin to hash; waits for it where no sidecar says what the file is called."""
        self._path = path
        known = _digest_by_sidecar(path)
        self._actual = aside.submit(hash_model, path, report or SilentProgress())
        self.digest = self._actual.result() if known is None else known

    def verify(self) -> None:
        """Wait for the bytes.

        Raises `DigestMismatch` where size and time are those of the sidecar and the bytes are not: what was registered was
        changed behind its name.
        """
        actual = self._actual.result()
        if actual != self.digest:
            changed = f"{self._path}, changed since it was first read,"
            raise DigestMismatch(changed, expected=self.digest, actual=actual)


def hash_model(path: Path, report: ProgressReport) -> Digest:
    """Name a model: a file by its bytes, a directory by the canonical list of its files, their sizes and digests."""
    if not path.is_dir():
        return hash_file(path, report)
    listing: dict[str, Json] = {
        file.name: {"sha256": hash_file(file, report), "size_bytes": file.stat().st_size}
        for file in model_files(path)
    }
    return digest_of_json({"files": listing})


def hash_file(path: Path, report: ProgressReport) -> Digest:
    """Name a file by its SHA-256, with progress; raises `ModelRejected` if it cannot be read."""
    hasher = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            report.begin(f"hashing {path.name}", path.stat().st_size)
            try:
                done = 0
                while chunk := stream.read(CHUNK_BYTES):
                    hasher.update(chunk)
                    done += len(chunk)
                    report.advance_to(done)
            finally:
                report.end()
    except OSError as error:
        raise ModelRejected(f"{path} cannot be read: {error.strerror}") from error
    return "sha256:" + hasher.hexdigest()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write under `path` into one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise StorageFailed(
                f"the disk is full: {path} could not be written. Free some space, or set {CACHE_VARIABLE} "
                "to a directory on another disk."
            ) from error
        raise StorageFailed(
            f"{path} could not be written: {error.strerror or error}. Set {CACHE_VARIABLE} to a directory "
            "that you may write."
        ) from error


def sync_directory(directory: Path) -> None:
    """Make a rename durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

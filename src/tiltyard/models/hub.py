"""Fetch a file or a model directory from a Hugging Face repository, through `huggingface_hub` if it is installed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

from tiltyard.errors import ConfigurationError, FetchFailed
from tiltyard.models.cache import DISK_FULL, disk_errors
from tiltyard.models.progress import ProgressReport


class Hub(Protocol):
    """The part of `huggingface_hub` that we use."""

    def hf_hub_download(self, repo_id: str, filename: str, *, revision: str | None, local_dir: str) -> str:
        """Download a file (resuming if it can) and return its path."""

    def snapshot_download(
        self, repo_id: str, *, revision: str | None, local_dir: str, allow_patterns: list[str]
    ) -> str:
        """Download the files that match (resuming if it can) and return their directory."""


def installed_hub() -> Hub:
    """Return the library, loaded only now since it is heavy; raises `ConfigurationError` naming the extra."""
    try:
        return cast("Hub", importlib.import_module("huggingface_hub"))
    except ImportError as error:
        raise ConfigurationError(
            "hf: sources need huggingface_hub, which is not installed. Run: pip install 'tiltyard[hf]'",
            param="source",
        ) from error


DIRECTORY_PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "*.safetensors",
    "model.safetensors.index.json",
)
"""No code: nothing that a repository brings is ever run."""
UNREACHABLE = "LocalEntryNotFoundError"
"""What the library raises when nobody answers: after six tries of at most ten seconds, and 23 s between them."""


@contextmanager
def _without_its_log() -> Iterator[None]:
    """Keep the library's warnings, one or two for each try, out of the user's terminal."""
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def obtain_from_hub(
    repo: str,
    revision: str | None,
    file: str,
    partial: Path,
    report: ProgressReport,
    *,
    find_hub: Callable[[], Hub] | None = None,
) -> Path:
    """Bring a file into `partial`; the library shows its own bar and resumes its own downloads."""

    def download(hub: Hub) -> Path:
        fetch = hub.hf_hub_download  # loads the library's modules, which set up their log
        with _without_its_log():
            return Path(fetch(repo, file, revision=revision, local_dir=str(partial)))

    found = _obtain(f"{repo}/{file}", partial, report, download, find_hub)
    target = partial / found.name
    with disk_errors(target):
        found.replace(target)
    return target


def obtain_directory_from_hub(
    repo: str,
    revision: str | None,
    partial: Path,
    report: ProgressReport,
    *,
    find_hub: Callable[[], Hub] | None = None,
) -> Path:
    """Bring what a model directory needs into `partial / "model"`: configuration, tokenizer, safetensors."""
    target = partial / "model"

    def download(hub: Hub) -> Path:
        fetch = hub.snapshot_download
        with _without_its_log():
            return Path(
                fetch(repo, revision=revision, local_dir=str(target), allow_patterns=list(DIRECTORY_PATTERNS))
            )

    return _obtain(repo, partial, report, download, find_hub)


def _obtain(
    what: str,
    partial: Path,
    report: ProgressReport,
    download: Callable[[Hub], Path],
    find_hub: Callable[[], Hub] | None,
) -> Path:
    """Download, and turn whatever the library raises into one line."""
    hub = (find_hub or installed_hub)()
    report.begin(f"fetching hf:{what} with huggingface_hub", None)
    try:
        return download(hub)
    # The library raises its own errors, its HTTP client's and the system's; each ends as one line.
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            with disk_errors(partial):
                raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if type(error).__name__ == UNREACHABLE:  # its words are about its own cache
            reason = "the hub cannot be reached; check the network, HTTPS_PROXY and HF_ENDPOINT"
        raise FetchFailed(f"hf:{what} could not be fetched: {reason}") from error
    finally:
        report.end()

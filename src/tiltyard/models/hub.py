"""Fetch one file from a Hugging Face repository, through `huggingface_hub` if it is installed."""

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


def installed_hub() -> Hub:
    """Return the library, loaded only now since it is heavy; raises `ConfigurationError` naming the extra."""
    try:
        return cast("Hub", importlib.import_module("huggingface_hub"))
    except ImportError as error:
        raise ConfigurationError(
            "hf: sources need huggingface_hub, which is not installed. Run: pip install 'tiltyard[hf]'",
            param="source",
        ) from error


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
    hub = (find_hub or installed_hub)()
    report.begin(f"fetching {file} from {repo} with huggingface_hub", None)
    try:
        download = hub.hf_hub_download  # loads the library's modules, which set up their log
        with _without_its_log():
            found = Path(download(repo, file, revision=revision, local_dir=str(partial)))
    # The library raises its own errors, its HTTP client's and the system's; each ends as one line.
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            with disk_errors(partial):
                raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if type(error).__name__ == UNREACHABLE:  # its words are about its own cache
            reason = "the hub cannot be reached; check the network, HTTPS_PROXY and HF_ENDPOINT"
        raise FetchFailed(f"hf:{repo}/{file} could not be fetched: {reason}") from error
    finally:
        report.end()
    target = partial / found.name
    with disk_errors(target):
        found.replace(target)
    return target

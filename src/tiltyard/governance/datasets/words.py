"""The one way by which a release reads words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tiltyard.events.log import EventLog
from tiltyard.events.schema import ContentRef


class Words(Protocol):
    """The vault as a release sees it."""

    def read(self, ref: ContentRef) -> bytes:
        """Return the words; raises `ContentMissing` when they were erased or never kept."""


class _Vault:
    def __init__(self, log: EventLog) -> None:
        self._log = log

    def read(self, ref: ContentRef) -> bytes:
        return self._log.read_content(ref)


@contextmanager
def publishable_words(log: EventLog) -> Iterator[Words]:
    """Open the vault to read what shall be published."""
    yield _Vault(log)

"""How long work says how far it is; who shows it, and how, is the caller's affair."""

from __future__ import annotations

from typing import Protocol


class ProgressReport(Protocol):
    """Hears about one piece of work at a time: `begin`, any number of `advance_to`, `end`."""

    def begin(self, what: str, total_bytes: int | None) -> None:
        """Start a piece of work; `total_bytes` is `None` when nobody knows."""

    def advance_to(self, done_bytes: int) -> None:
        """Say how many bytes of it are done."""

    def end(self) -> None:
        """Finish it, whether done or failed."""


class SilentProgress:
    """Shows nothing."""

    def begin(self, what: str, total_bytes: int | None) -> None:
        """Ignore."""

    def advance_to(self, done_bytes: int) -> None:
        """Ignore."""

    def end(self) -> None:
        """Ignore."""

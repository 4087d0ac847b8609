"""Where worker processes can run: on this machine, on a Ray cluster. What keeps them running is the same for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tiltyard.errors import UpstreamFailed
from tiltyard.wire.worker import WorkerSpec


class WorkerFailed(UpstreamFailed):
    """A worker did not start, with its own last words."""

    default_code = "worker_failed"


@dataclass(frozen=True)
class LaunchProgress:
    """How far a starting worker is."""

    worker: str
    seconds: float
    line: str
    """The newest line of its log."""


@dataclass(frozen=True)
class Ready:
    """What the worker wrote into its ready file."""

    url: str
    load_ms: float
    trusted_host: str | None = None
    """Where a place of ours has put it, if that is not this machine."""


class Placed(Protocol):
    """A worker process, wherever it runs."""

    async def until_ready(self, timeout_s: float, report: Callable[[LaunchProgress], None]) -> Ready:
        """Wait until it serves; raises `WorkerFailed` when it ends first or takes too long."""

    async def ended(self) -> str:
        """Wait for its end and say how it ended."""

    async def end(self, grace_s: float) -> None:
        """Give it `grace_s` to end by itself, then ask it to end, then kill it."""

    async def kill(self) -> None:
        """End it now, even if it is stopped or hangs."""

    def memory_bytes(self) -> int | None:
        """Memory of its own, without what it maps from files; `None` where nobody can tell."""


class Place(Protocol):
    """Starts worker processes."""

    async def start(self, spec: WorkerSpec) -> Placed:
        """Start one; raises a `TiltyardError` when that cannot be done."""

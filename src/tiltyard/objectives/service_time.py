"""For how long could identities be asked? From the events of workers that came and went.

A second of an identity counts from the moment at which one of our workers first served it. It is good while at least one worker serves it, and
bad from a worker's unwanted end (it crashed, hung, outgrew its memory or was restarted) until the next one is ready. A worker that was told to
end takes its identities out of the count until they come back: a server that nobody keeps running promises nothing. A server that
was killed could not write down its end: its time ends with the last event before the worker is ready again, and what lies between is bad.

Engines of others (`tiltyard fleet add`) have no process of ours, and so no end in the log; their failures are in `error_rate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from tiltyard.events.schema import WorkerReady, WorkerStopped
from tiltyard.objectives.status import Counts

ASKED_TO_END: Final = ("stopped", "scaled down", "the server ended")
"""How the reason of a `WorkerStopped` begins where the fleet's owner wanted it."""

_Span = tuple[float, float, Literal["up", "down"]]


@dataclass
class _Identity:
    workers: set[str] = field(default_factory=set)
    state: Literal["up", "down", "away"] = "away"
    since_us: int = 0
    spans: list[_Span] = field(default_factory=list)

    def become(self, state: Literal["up", "down", "away"], at_us: int) -> None:
        if self.state == state:
            return
        if self.state != "away" and at_us > self.since_us:
            self.spans.append((self.since_us, at_us, self.state))
        self.state, self.since_us = state, at_us


class ServiceTime:
    """Takes events of workers in, oldest first."""

    def __init__(self) -> None:
        self._identities: dict[str, _Identity] = {}
        self._serves: dict[str, tuple[str, ...]] = {}
        """Identities by worker that is ready."""

    def ready(self, data: WorkerReady, at_us: int, last_us: int) -> None:
        """A worker came; `last_us` is when the event before was written."""
        if not data.load_ms:
            return  # an engine of others
        if data.worker in self._serves:  # its end was never written down
            self._gone(data.worker, min(last_us, at_us), wanted=False)
        self._serves[data.worker] = tuple(data.identities)
        for name in data.identities:
            identity = self._identities.setdefault(name, _Identity())
            identity.workers.add(data.worker)
            identity.become("up", at_us)

    def stopped(self, data: WorkerStopped, at_us: int) -> None:
        """A worker went."""
        self._gone(data.worker, at_us, wanted=data.reason.startswith(ASKED_TO_END))

    def counts(self, identity: str | None, since_us: int, until_us: int) -> Counts:
        """Seconds, and bad ones, of one identity or of all."""
        total = bad = 0.0
        for name, one in self._identities.items():
            if identity not in (None, name):
                continue
            spans = [*one.spans]
            if one.state != "away":
                spans.append((one.since_us, until_us, one.state))
            for began, ended, state in spans:
                seconds = (min(ended, until_us) - max(began, since_us)) / 1e6
                if seconds > 0:
                    total += seconds
                    bad += seconds if state == "down" else 0.0
        return Counts(total, bad)

    def _gone(self, worker: str, at_us: int, *, wanted: bool) -> None:
        for name in self._serves.pop(worker, ()):
            identity = self._identities[name]
            identity.workers.discard(worker)
            if not identity.workers:
                identity.become("away" if wanted else "down", at_us)

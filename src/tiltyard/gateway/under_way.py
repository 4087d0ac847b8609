"""The requests that are with a worker now, so that they can be taken from one that has gone silent.

A worker that is stopped, hung or cut off from us keeps its connections open: who waits on them waits for ever. When its lease
lapses, requests of which nothing has come yet go elsewhere at once; answers that have begun get `CUT_AFTER_S` more, for a
worker that was only slow, and then end as lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tiltyard.fleet.registry import Worker

CUT_AFTER_S = 10.0


class UnderWayAttempt(Protocol):
    """What is needed of an attempt."""

    begun: bool
    """Whether something of the answer has come."""

    def lose(self) -> None:
        """Give the worker up."""


class UnderWay:
    """By worker."""

    def __init__(self, *, cut_after_s: float = CUT_AFTER_S) -> None:
        self._cut_after_s = cut_after_s
        self._attempts: dict[str, set[UnderWayAttempt]] = {}

    @contextmanager
    def at(self, worker: str, attempt: UnderWayAttempt) -> Iterator[None]:
        """Know of an attempt for the length of the block."""
        attempts = self._attempts.setdefault(worker, set())
        attempts.add(attempt)
        try:
            yield
        finally:
            attempts.discard(attempt)

    def look(self, worker: Worker) -> None:
        """A worker was asked how it is."""
        silent_s = worker.silent_s
        if silent_s <= 0:
            return
        for attempt in [*self._attempts.get(worker.name, ())]:
            if not attempt.begun or silent_s > self._cut_after_s:
                attempt.lose()

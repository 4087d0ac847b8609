"""How fast a worker gets rid of what it has to do, measured where the work is handed out.

pace = tokens gone / seconds busy, both forgotten exponentially: a worker that stands idle is not slow, and what was a minute ago
hardly counts. Gone is what was computed, and what an answer that ended early no longer needs.
"""

from __future__ import annotations

import math

FORGET_S = 20.0
KNOWN_AFTER_S = 1.0
"""Busy seconds before a pace is believed."""


class Pace:
    """One worker's; times are seconds of any one clock."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._running = 0
        self._at = 0.0

    def begin(self, now: float) -> None:
        """A request goes to the worker."""
        self._advance(now)
        self._running += 1

    def gone(self, tokens: float, now: float) -> None:
        """So many tokens need no more work."""
        self._advance(now)
        self._tokens += tokens

    def end(self, now: float) -> None:
        """A request has ended."""
        self._advance(now)
        self._running -= 1

    def tokens_per_s(self, now: float) -> float | None:
        """The pace; `None` while too little was seen."""
        self._advance(now)
        if self._seconds < KNOWN_AFTER_S or self._tokens <= 0:
            return None
        return self._tokens / self._seconds

    def _advance(self, now: float) -> None:
        passed = max(0.0, now - self._at)
        if (
            self._running
        ):  # an idle worker forgets nothing: its next work will find it as fast as the last did
            kept = math.exp(-passed / FORGET_S)
            self._tokens *= kept
            self._seconds = self._seconds * kept + FORGET_S * (1 - kept)
        self._at = max(self._at, now)

"""A circuit breaker: a worker whose requests fail gets none for a while, then one to try, then all again.

A worker can answer every question about its health and fail every request; leases do not see that. States::

    closed --(failures in a row, or one that says it is gone)--> open --(back-off)--> half open --(one success)--> closed
                                                                   ^-----(failure: twice the back-off)---'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FAILURES = 3
"""In a row, of a worker that goes on answering; one that is gone needs no second."""
FIRST_BACK_OFF_S = 1.0
LONGEST_BACK_OFF_S = 30.0
TRIAL_S = 60.0
"""A trial of which nobody told the end is forgotten after so long, lest a worker stays half open for ever."""

State = Literal["closed", "open", "half open"]


@dataclass
class Breaker:
    """Of one worker; times are seconds of any one clock."""

    failures: int = 0
    """In a row."""
    reason: str = ""
    """What the last one was."""
    _until_s: float | None = None
    _back_off_s: float = FIRST_BACK_OFF_S
    _trying_since_s: float | None = None

    def state(self, now_s: float) -> State:
        """What it is now."""
        if self._until_s is None:
            return "closed"
        return "open" if now_s < self._until_s else "half open"

    def allows(self, now_s: float) -> bool:
        """Whether a request may be sent: any while it is closed, one at a time while it is half open."""
        state = self.state(now_s)
        if state != "half open":
            return state == "closed"
        return self._trying_since_s is None or now_s - self._trying_since_s > TRIAL_S

    def began(self, now_s: float) -> None:
        """A request is sent."""
        if self.state(now_s) == "half open":
            self._trying_since_s = now_s

    def gave_up(self) -> None:
        """A request ended without a word of the worker, and it was not the worker's fault."""
        self._trying_since_s = None

    def succeeded(self) -> None:
        """The worker began to answer a request."""
        self.failures, self.reason = 0, ""
        self._until_s, self._trying_since_s, self._back_off_s = None, None, FIRST_BACK_OFF_S

    def failed(self, now_s: float, reason: str, *, gone: bool = False) -> None:
        """A request failed; `gone` says that the worker is not there at all."""
        self.failures += 1
        self.reason = reason
        trial = self.state(now_s) == "half open"
        self._trying_since_s = None
        if trial:
            self._back_off_s = min(2 * self._back_off_s, LONGEST_BACK_OFF_S)
        if trial or gone or self.failures >= FAILURES:
            self._until_s = now_s + self._back_off_s

"""A worker's right to be given work: every answer of it renews the lease, silence ends it.

A lease lapses `LEASE_S` after the last answer, if a question that was asked since has not been answered. The second half
matters: a gateway that was itself too busy to ask has learnt nothing about its workers, and must not refuse everybody
because of that (llm-d-router #2881: two looks at the same load at different moments, and 503 for requests that had a place).
"""

from __future__ import annotations

from dataclasses import dataclass

LEASE_S = 3.0


@dataclass
class Lease:
    """Of one worker, as one gateway holds it; times are seconds of any one clock."""

    renewed_s: float | None = None
    """When it last answered; `None`: never."""
    unanswered: int = 0
    """Questions in a row that got no answer."""

    def renew(self, now_s: float) -> None:
        """It answered."""
        self.renewed_s = now_s
        self.unanswered = 0

    def missed(self) -> None:
        """It did not answer in time."""
        self.unanswered += 1

    def holds(self, now_s: float) -> bool:
        """Whether it may be given new work."""
        return self.renewed_s is not None and self.lapsed_s(now_s) == 0.0

    def lapsed_s(self, now_s: float) -> float:
        """For how long it has lapsed; 0 while it holds, or while it never did."""
        if self.renewed_s is None or not self.unanswered:
            return 0.0
        return max(0.0, now_s - self.renewed_s - LEASE_S)

"""The ledgers under test, each under a clock of the test's own."""

from __future__ import annotations

from tiltyard.router.ledger import Account, Ask, Hold, Ledger, Used
from tiltyard.router.tenants import TenantTerms

NOON_US = 1_796_040_000_000_000
"""2026-11-30 12:00 UTC: the next day begins the next month."""
HOUR_US = 3_600_000_000


class Clock:
    """Microseconds since 1970, moved by hand."""

    def __init__(self) -> None:
        self.now_us = NOON_US

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1e6)


async def held(ledger: Ledger, terms: TenantTerms, tokens: float = 0, worst: int = 0) -> Hold:
    """Reserve what must be granted."""
    verdict = await ledger.reserve("acme", terms, Ask(tokens, worst))
    assert isinstance(verdict, Hold), verdict
    return verdict


async def denied(
    ledger: Ledger, terms: TenantTerms, tokens: float = 0, worst: int = 0
) -> tuple[str, float | None]:
    """Reserve what must be denied."""
    verdict = await ledger.reserve("acme", terms, Ask(tokens, worst))
    assert not isinstance(verdict, Hold)
    return verdict.reason, verdict.retry_after_s


async def settle(ledger: Ledger, terms: TenantTerms, hold: Hold, tokens: float = 0, cost: int = 0) -> None:
    await ledger.settle(hold, terms, Used(tokens, cost))


NOTHING = Account()

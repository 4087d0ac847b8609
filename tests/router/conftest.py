from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from ledgers import Clock

from tiltyard.router.ledger import Ledger, MemoryLedger


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory"])
async def ledger(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Ledger]:
    ledger = MemoryLedger(clock)
    yield ledger
    await ledger.aclose()

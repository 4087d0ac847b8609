from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from ledgers import Clock

from tiltyard.events.ids import new_id
from tiltyard.router.ledger import Ledger, MemoryLedger
from tiltyard.router.redis_ledger import RedisLedger


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis"])
async def ledger(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Ledger]:
    ledger: Ledger
    if request.param == "memory":
        ledger = MemoryLedger(clock)
    else:
        ledger = RedisLedger(request.getfixturevalue("redis_url"), prefix=new_id(), clock_us=clock)
    yield ledger
    await ledger.aclose()

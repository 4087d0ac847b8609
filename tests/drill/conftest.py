from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from drill_yard import PATIENCE_S, Drill, Yard
from real_postgres import RealPostgres


@pytest.fixture(scope="session")
def yard(tmp_path_factory: pytest.TempPathFactory, postgres: RealPostgres, redis_url: str) -> Iterator[Yard]:
    """One for all drills: each leaves it as it was."""
    made = Yard(tmp_path_factory.mktemp("yard"), postgres, redis_url)
    yield made
    made.close()


@pytest.fixture
async def drill(yard: Yard) -> AsyncIterator[Drill]:
    async with httpx2.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        made = Drill(yard, http, yard.log.last_sequence())
        for gateway in (yard.one, yard.two):
            await made.alive(gateway, "near", "far")
        yield made

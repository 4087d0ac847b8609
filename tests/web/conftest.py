from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from arena_standin import StandIn, serving
from arena_yard import CONTESTANTS, REPLAY, Yard, page_routes
from board_stage import Start, starting
from starlette.applications import Starlette
from starlette.routing import Mount

from tiltyard.arena.pairing import Entrant
from tiltyard.arena.screening import Screening
from tiltyard.arena.transcript import Limits
from tiltyard.client import ModelClient
from tiltyard.events.log import EventLog
from tiltyard.web.app import create_web

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as opened:
        yield opened


@pytest.fixture
def models(log: EventLog) -> StandIn:
    return StandIn(log, {one.name: one.behaviour for one in CONTESTANTS})


@pytest.fixture
def models_url(models: StandIn) -> Iterator[str]:
    with serving(models.app()) as url:
        yield url


@pytest.fixture
def open_yard(log: EventLog, models: StandIn, models_url: str) -> Iterator[Callable[..., Yard]]:
    """Start an arena with given limits or contestants; a test may start several over one log."""
    stack: list[Iterator[None]] = []

    def start(
        *,
        limits: Limits | None = None,
        contestants: list[Entrant] | None = None,
        screening: Screening | None = None,
    ) -> Yard:
        people = CONTESTANTS if contestants is None else contestants
        client = ModelClient(models_url)
        web = create_web(
            log=log,
            client=client,
            contestants=lambda: people,
            rng=random.Random(7),
            limits=limits,
            screening=screening,
            replay=REPLAY,
            routes=page_routes(log),
        )

        @asynccontextmanager
        async def lifespan(_app: Starlette) -> AsyncIterator[None]:
            async with client:
                yield
                await web.state.arena.close()

        # mounted under another app, as `tiltyard up` does
        context = serving(Starlette(routes=[Mount("/", web)], lifespan=lifespan))
        url = context.__enter__()
        stack.append(context)
        return Yard(url, log, models, web.state.arena, people)

    yield start
    for context in reversed(stack):
        context.__exit__(None, None, None)


@pytest.fixture
def yard(open_yard: Callable[..., Yard]) -> Yard:
    return open_yard()


@pytest.fixture
def start(log: EventLog) -> Iterator[Start]:
    """The leaderboard's pages over the log: a client of them, however often it is called."""
    with starting(log) as started:
        yield started

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import orjson
import pytest
from arena_standin import StandIn, entrant, serving
from starlette.applications import Starlette
from starlette.routing import Mount

from tiltyard.arena.battle import Arena
from tiltyard.arena.pairing import Entrant
from tiltyard.arena.transcript import Limits
from tiltyard.client import ModelClient
from tiltyard.events.log import EventLog
from tiltyard.web.app import create_web

CONTESTANTS = [
    entrant("quillon-cold", temperature=0.0),
    entrant("quillon-warm"),
    entrant("vamplate-raw", template=False),
]


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


@dataclass
class Yard:
    """A running arena: its address, its models and its log."""

    url: str
    log: EventLog
    models: StandIn
    arena: Arena
    contestants: list[Entrant] = field(default_factory=list)

    def visitor(self, **headers: str) -> httpx2.Client:
        """A client that keeps its cookies, as a browser does."""
        return httpx2.Client(base_url=self.url, headers=headers, trust_env=False, timeout=20)


@pytest.fixture
def open_yard(log: EventLog, models: StandIn, models_url: str) -> Iterator[Callable[..., Yard]]:
    """Start an arena with given limits or contestants; a test may start several over one log."""
    stack: list[Iterator[None]] = []

    def start(*, limits: Limits | None = None, contestants: list[Entrant] | None = None) -> Yard:
        people = CONTESTANTS if contestants is None else contestants
        client = ModelClient(models_url)
        web = create_web(
            log=log, client=client, contestants=lambda: people, rng=random.Random(7), limits=limits
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


@dataclass
class Heard:
    """What one event stream said."""

    text: dict[str, str] = field(default_factory=lambda: {"a": "", "b": ""})
    done: dict[str, dict[str, object]] = field(default_factory=dict)
    settled: dict[str, object] | None = None
    raw: str = ""
    events: list[str] = field(default_factory=list)


def listen(visitor: httpx2.Client, battle: str, *, until: Callable[[Heard], bool] | None = None) -> Heard:
    """Read a battle's events until they end, or until `until` says so."""
    heard = Heard()
    with visitor.stream("GET", f"/api/arena/battles/{battle}/events") as response:
        assert response.status_code == 200, response.read()
        heard.raw += str(response.headers)
        event = ""
        for line in response.iter_lines():
            heard.raw += line + "\n"
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = orjson.loads(line.removeprefix("data: "))
                heard.events.append(event)
                if event == "delta":
                    heard.text[data["side"]] += data["text"]
                elif event == "done":
                    heard.done[data["side"]] = data
                elif event == "settled":
                    heard.settled = data
                if until is not None and until(heard):
                    break
    return heard


def open_battle(visitor: httpx2.Client, content: str = "Why is the sky blue?") -> tuple[str, str]:
    """Open a battle through the API; returns its id and its vote token."""
    response = visitor.post("/api/arena/battles", json={"messages": [{"role": "user", "content": content}]})
    assert response.status_code == 201, response.text
    opened = response.json()
    return opened["battle"], opened["vote_token"]

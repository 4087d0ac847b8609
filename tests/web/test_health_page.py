"""The arena's health over HTTP, with a real arena, real votes and a real browser's view of the page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx2
import pytest
from arena_standin import Refuse, StandIn, serving
from arena_yard import CONTESTANTS, Yard, listen, open_battle
from starlette.applications import Starlette
from starlette.routing import Mount

from tiltyard.arena.health import HOUR_US, AppendTimes, Health
from tiltyard.client import ModelClient
from tiltyard.events.log import EventLog
from tiltyard.web.app import create_web
from tiltyard.web.health import health_routes


@contextmanager
def arena(log: EventLog, models: StandIn, models_url: str, hours_later: float) -> Iterator[Yard]:
    """An arena whose health is looked at some hours after now."""
    client, appends = ModelClient(models_url), AppendTimes()
    health = Health(log, appends=appends, held_back=True)
    routes = health_routes(health, clock_us=lambda: time.time_ns() // 1000 + int(hours_later * HOUR_US))
    web = create_web(log=log, client=client, contestants=CONTESTANTS, routes=routes, appends=appends)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> object:
        async with client:
            yield
            await web.state.arena.close()

    with serving(Starlette(routes=[Mount("/", web)], lifespan=lifespan)) as url:
        yield Yard(url, log, models, web.state.arena, CONTESTANTS)


def fight(yard: Yard, *, vote: bool = True) -> None:
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        listen(visitor, battle)
        if vote:
            voted = visitor.post(
                f"/api/arena/battles/{battle}/vote", json={"vote_token": token, "choice": "a"}
            )
            assert voted.status_code == 200, voted.text


@pytest.fixture
def failing(models: StandIn) -> str:
    """A contestant that refuses whatever it is asked."""

    def refuse(_messages: list[dict[str, str]]) -> list[str]:
        raise Refuse(503, "unavailable", "no worker")

    models.answers["vamplate-raw"] = refuse
    return "vamplate-raw"


def test_a_failed_battle_and_a_vote_appear_in_page_and_json(
    log: EventLog, models: StandIn, models_url: str, failing: str
) -> None:
    """The void battle is counted under the model that failed; the vote's write time is measured at the append."""
    with arena(log, models, models_url, hours_later=2) as yard:
        while failing not in {model for model, _ in models.asked}:  # uniform: two of three draws have it
            fight(yard, vote=False)
        yard.arena.contestants = lambda: [one for one in CONTESTANTS if one.name != failing]
        fight(yard)
        found = httpx2.get(f"{yard.url}/api/arena/health", trust_env=False).json()
        page = httpx2.get(f"{yard.url}/arena/health", trust_env=False)
    voided = {model["behaviour"]: model["voided"] for model in found["models"]}
    assert voided[models.identities[failing]] == 1
    assert found["so_far"]["voided"] == 1
    assert found["so_far"]["votes"] == 1
    assert found["lag"]["votes_in_projection"] == 1
    assert found["vote_write"]["votes"] == 1
    assert found["vote_write"]["p99_s"] > 0
    assert [check["name"] for check in found["checks"]][:2] == ["pair_assignment", "side_assignment"]
    assert page.status_code == 200
    assert "Pairs are drawn as recorded" in page.text
    assert "not_started" in page.text


def test_a_voter_who_watches_sees_no_model_move(log: EventLog, models: StandIn, models_url: str) -> None:
    with arena(log, models, models_url, hours_later=0) as yard:
        address = f"{yard.url}/api/arena/health"
        before = httpx2.get(address, trust_env=False).json()
        fight(yard, vote=False)
        after = httpx2.get(address, trust_env=False).json()
    assert after["last_hour"]["battles"] == before["last_hour"]["battles"] + 1
    assert after["models"] == before["models"] == []
    assert after["assignment"] == before["assignment"]
    for one in CONTESTANTS:
        assert one.name not in str(after)
        assert one.behaviour not in str(after)

"""Requests for a model whose worker is still to come: who waits, how long, and who is sent away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from gateway_stage import ALIASES, served, worker_spec
from stand_in_worker import StandIn

from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.app import create_gateway
from tiltyard.gateway.waiting import WaitingRoom
from tiltyard.router.router import Router

ASKED = {"model": "chat", "messages": [{"role": "user", "content": "good morning"}]}


@contextmanager
def empty_house(
    log: EventLog, directory: Path, **room: object
) -> Iterator[tuple[str, Registry, WaitingRoom]]:
    """A gateway that knows its models and has no worker yet."""
    registry = Registry()
    registry.expect("w0", ["plain"])
    registry.withdraw("w0", "has no replicas now")
    waiting = WaitingRoom(registry, **{"may_come": lambda name: name == "plain", **room})  # type: ignore[arg-type]
    with served(create_gateway(router=Router(registry, ALIASES), log=log, waiting=waiting)) as url:
        yield url, registry, waiting


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_waits_for_the_worker_that_it_calls_up(
    log: EventLog, tmp_path: Path, stream: bool
) -> None:
    """llm-d-router's waiting room: scaled to zero, the first request is answered, not refused."""
    after = log.last_sequence()
    stand_in = StandIn(worker_spec("w0", tmp_path))
    with empty_house(log, tmp_path) as (url, registry, room), served(stand_in.app) as worker:
        async with httpx2.AsyncClient(timeout=30) as http:
            asking = asyncio.create_task(
                http.post(f"{url}/v1/chat/completions", json={**ASKED, "stream": stream})
            )
            while not room.waiting_requests:  # noqa: ASYNC110 - in the gateway's thread
                await asyncio.sleep(0.01)
            assert room.waiting_tokens({"plain"}) == 12 // 4 + 256
            assert room.waiting_tokens({"warm"}) == 0
            registry.announce("w0", worker, await registry.ask(worker))
            answer = await asking
            assert answer.status_code == 200
            assert "goo" in answer.text  # a stream comes in pieces
            assert room.waiting_requests == 0
    await registry.aclose()
    assert [e.data.worker for e in log.read(after=after, types=(GenerationFinished,))] == ["w0"]  # type: ignore[union-attr]


async def test_nobody_came_is_503_and_a_full_room_is_429(log: EventLog, tmp_path: Path) -> None:
    with empty_house(log, tmp_path, patience_s=0.2, places=1) as (url, registry, room):
        async with httpx2.AsyncClient(timeout=30) as http:
            first = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json=ASKED))
            while not room.waiting_requests:  # noqa: ASYNC110 - in the gateway's thread
                await asyncio.sleep(0.005)
            second = await http.post(f"{url}/v1/chat/completions", json=ASKED)
            assert (second.status_code, second.headers["retry-after"]) == (429, "5")
            told = await first
            assert (told.status_code, told.json()["error"]["code"]) == (503, "unavailable")
            assert "no worker for plain has started within 0 s" in told.json()["error"]["message"]
    await registry.aclose()


async def test_a_client_that_leaves_the_room_holds_no_place(log: EventLog, tmp_path: Path) -> None:
    with empty_house(log, tmp_path) as (url, registry, room):
        async with httpx2.AsyncClient(timeout=30) as http:
            asking = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json=ASKED))
            while not room.waiting_requests:  # noqa: ASYNC110 - in the gateway's thread
                await asyncio.sleep(0.005)
            asking.cancel()
            while room.waiting_requests:  # noqa: ASYNC110 - in the gateway's thread
                await asyncio.sleep(0.005)
    await registry.aclose()


async def test_a_model_for_which_nobody_can_come_is_refused_at_once(log: EventLog, tmp_path: Path) -> None:
    with empty_house(log, tmp_path, may_come=lambda _name: False) as (url, registry, _room):
        async with httpx2.AsyncClient(timeout=30) as http:
            told = await http.post(f"{url}/v1/chat/completions", json=ASKED)
            assert (told.status_code, told.json()["error"]["code"]) == (503, "unavailable")
    await registry.aclose()

"""What one tenant has been answered, another can neither go on from, resume, repeat, see, nor end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from gateway_stage import Stage, staged
from websockets.asyncio.client import connect

from tiltyard.events.log import EventLog
from tiltyard.gateway.keyring import KeyRing
from tiltyard.router.tenants import TenantTerms

CHAT = "/v1/chat/completions"


@pytest.fixture
def houses(tmp_path: Path) -> Iterator[tuple[Stage, httpx2.Client, httpx2.Client, dict[str, str]]]:
    """A gateway with keys of two tenants, and a client of each; one of them keeps no content."""
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        ring = KeyRing(log)
        keys = {name: ring.issue(name, ["inference"]).secret for name in ("eva", "mallory", "silent")}
        terms = {"silent": TenantTerms(keep_content=False)}
        with staged(log, tmp_path, tenants=terms) as stage:

            def client(name: str) -> httpx2.Client:
                return httpx2.Client(
                    base_url=stage.url, timeout=30, headers={"authorization": f"Bearer {keys[name]}"}
                )

            with client("eva") as eva, client("mallory") as mallory:
                yield stage, eva, mallory, keys


def chat(text: str, **fields: object) -> dict[str, Any]:
    return {"model": "chat", "messages": [{"role": "user", "content": text}], **fields}


def test_responses_are_the_tenants_own(houses: tuple[Stage, httpx2.Client, httpx2.Client, Any]) -> None:
    _, eva, mallory, _ = houses
    made = eva.post("/v1/responses", json={"model": "chat", "input": "secret"}).json()
    assert eva.get(f"/v1/responses/{made['id']}").json()["output"] == made["output"]
    seen = mallory.get(f"/v1/responses/{made['id']}")
    assert (seen.status_code, seen.json()["error"]["code"]) == (404, "response_not_found")
    body = {"model": "chat", "input": "and?", "previous_response_id": made["id"]}
    assert eva.post("/v1/responses", json=body).status_code == 200
    assert mallory.post("/v1/responses", json=body).status_code == 404


def test_keys_and_streams_are_the_tenants_own(
    houses: tuple[Stage, httpx2.Client, httpx2.Client, Any],
) -> None:
    _stage, eva, mallory, _ = houses
    body, headers = chat("!count 3", stream=True), {"idempotency-key": "k"}
    mine = eva.post(CHAT, json=body, headers=headers)
    theirs = mallory.post(CHAT, json=body, headers=headers)
    assert "idempotent-replayed" not in theirs.headers
    assert mine.headers["x-tiltyard-generation"] != theirs.headers["x-tiltyard-generation"]
    resume = {"last-event-id": mine.headers["x-tiltyard-generation"] + ":0"}
    assert eva.post(CHAT, json=body, headers=resume).status_code == 200
    stolen = mallory.post(CHAT, json=body, headers=resume)
    assert (stolen.status_code, stolen.json()["error"]["code"]) == (404, "stream_not_found")


async def test_nobody_ends_the_answer_of_another(
    houses: tuple[Stage, httpx2.Client, httpx2.Client, Any],
) -> None:
    _stage, eva, mallory, _ = houses
    with eva.stream("POST", CHAT, json=chat("!count 100000", stream=True)) as answer:
        path = f"/v1/generations/{answer.headers['x-tiltyard-generation']}/cancel"
        assert mallory.post(path).status_code == 404
        assert eva.post(path).status_code == 200
        assert '"finish_reason":"cancelled"' in answer.read().decode()


async def test_sessions_of_one_name_are_two_tenants_two_conversations(
    houses: tuple[Stage, httpx2.Client, httpx2.Client, dict[str, str]],
) -> None:
    stage, _, _, keys = houses
    turns = []
    for name in ("eva", "mallory", "eva"):
        headers = {"authorization": f"Bearer {keys[name]}"}
        url = stage.url.replace("http", "ws") + "/v1/chat/ws"
        async with connect(url, additional_headers=headers) as socket:
            await socket.send(json.dumps({"model": "chat", "session": "s", "prompt": f"I am {name}."}))
            while (frame := json.loads(await socket.recv()))["type"] != "done":
                assert frame["type"] == "delta"
            turns.append(frame["turn"])
    assert turns == [1, 1, 2]
    said: Any = stage.workers[0].bodies[-1]["messages"]
    assert "I am mallory." not in [message["content"] for message in said]


def test_an_answer_whose_words_were_not_to_be_kept_is_not_given_again(
    houses: tuple[Stage, httpx2.Client, httpx2.Client, dict[str, str]],
) -> None:
    stage, _, _, keys = houses
    headers = {"authorization": f"Bearer {keys['silent']}"}
    with httpx2.Client(base_url=stage.url, headers=headers, timeout=30) as silent:
        made = silent.post("/v1/responses", json={"model": "chat", "input": "x"}).json()
        assert silent.get(f"/v1/responses/{made['id']}").status_code == 404
        key = {"idempotency-key": "k"}
        first = silent.post(CHAT, json=chat("x"), headers=key)
        assert silent.post(CHAT, json=chat("x"), headers=key).json() == first.json()  # from memory
        stage.app.state.tellings.forget()
        again = silent.post(CHAT, json=chat("x"), headers=key)
        assert (again.status_code, again.json()["error"]["code"]) == (409, "answer_not_kept")

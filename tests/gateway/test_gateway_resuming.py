"""Answers that outlive their connection: `Last-Event-ID`, `Idempotency-Key`, and what survives a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from gateway_stage import ALIASES, Stage, served

from tiltyard.errors import Overloaded
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.app import create_gateway
from tiltyard.gateway.telling import MAX_BYTES, MAX_OF_TENANT, Asking, StreamGone, Telling, Tellings
from tiltyard.router.router import Router

CHAT = "/v1/chat/completions"


def chat(text: str, **fields: object) -> dict[str, Any]:
    return {"model": "chat", "messages": [{"role": "user", "content": text}], **fields}


def events(text: str) -> list[tuple[str, bytes]]:
    """`(id, data)` of each event of a stream."""
    found: list[tuple[str, bytes]] = []
    for block in text.split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((lines["id"], lines["data"].encode()))
    return found


def said(data: list[bytes]) -> str:
    chunks = [orjson.loads(item) for item in data if item != b"[DONE]"]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


def finished(stage: Stage, after: int) -> list[GenerationFinished]:
    return [e.data for e in stage.log.read(after=after) if isinstance(e.data, GenerationFinished)]


@asynccontextmanager
async def cut_off(
    url: str, body: dict[str, Any], headers: dict[str, str], after_events: int
) -> AsyncIterator[list[tuple[str, bytes]]]:
    """Ask, hear so many events, and hang up."""
    text = ""
    async with httpx2.AsyncClient() as http:
        async with http.stream("POST", url, json=body, headers=headers) as answer:
            async for piece in answer.aiter_text():
                text += piece
                if text.count("\n\n") >= after_events:
                    break
        yield events(text[: text.rindex("\n\n") + 2])


async def test_a_client_that_lost_its_connection_hears_the_rest(stage: Stage) -> None:
    """vLLM and SGLang have no way to resume a stream (anchors: "resumable SSE after a drop")."""
    before = stage.log.last_sequence()
    body = chat("!count 200", stream=True, stream_options={"include_usage": True})
    headers = {"x-tiltyard-resume-ms": "20000"}
    async with cut_off(stage.url + CHAT, body, headers, 5) as heard, httpx2.AsyncClient() as http:
        last = heard[-1][0]
        rest = await http.post(stage.url + CHAT, json=body, headers={"last-event-id": last})
        assert rest.headers["content-type"].startswith("text/event-stream")
        together = [*heard, *events(rest.text)]
        # Once more, from the very beginning, after the end.
        again = await http.post(stage.url + CHAT, json=body, headers={"last-event-id": heard[0][0]})
        assert [*heard[:1], *events(again.text)] == together
    assert said([data for _, data in together]) == "".join(f"{i} " for i in range(200))
    assert together[-1][1] == b"[DONE]"
    numbers = [int(event_id.partition(":")[2]) for event_id, _ in together]
    assert numbers == [*range(len(together))]
    (event,) = finished(stage, before)
    assert event.choices[0].finish_reason == "stop"


async def test_an_event_that_was_never_told_is_not_a_place_to_go_on_from(stage: Stage) -> None:
    """An empty 200 would look like an answer that had ended."""
    body = chat("!count 50", stream=True)
    async with cut_off(stage.url + CHAT, body, {"x-tiltyard-resume-ms": "20000"}, 5) as heard:
        generation = heard[0][0].partition(":")[0]
        async with httpx2.AsyncClient() as http:
            answer = await http.post(
                stage.url + CHAT, json=body, headers={"last-event-id": f"{generation}:99999"}
            )
            # Heard to its end, which the next test would else find in the log.
            rest = await http.post(stage.url + CHAT, json=body, headers={"last-event-id": heard[-1][0]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "last-event-id")
    assert "names event 99999" in answer.json()["error"]["message"]
    assert events(rest.text)[-1][1] == b"[DONE]"


async def test_a_stream_nobody_comes_back_to_is_cancelled(stage: Stage) -> None:
    """SGLang #36333: an answer went on for ever without a reader."""
    before = stage.log.last_sequence()
    headers = {"x-tiltyard-resume-ms": "1"}
    async with cut_off(stage.url + CHAT, chat("!count 100000", stream=True), headers, 3) as heard:
        async with asyncio.timeout(10):
            async for stored in stage.log.follow(before, types=[GenerationFinished]):
                assert isinstance(stored.data, GenerationFinished)
                assert stored.data.choices[0].finish_reason == "cancelled"
                break
    gone = httpx2.post(
        stage.url + CHAT, json=chat("!count 100000", stream=True), headers={"last-event-id": heard[-1][0]}
    )
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "stream_not_found")


@pytest.mark.parametrize("stream", [False, True])
def test_the_same_key_is_not_run_twice(stage: Stage, stream: bool) -> None:
    before = stage.log.last_sequence()
    headers = {"idempotency-key": f"twice-{stream}"}
    body = chat("!count 5", stream=stream)
    first = httpx2.post(stage.url + CHAT, json=body, headers=headers)
    second = httpx2.post(stage.url + CHAT, json=body, headers=headers)
    assert first.content == second.content
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert first.headers["x-tiltyard-generation"] == second.headers["x-tiltyard-generation"]
    found = finished(stage, before)
    assert len(found) == 1, [
        (e.generation, e.choices[0].finish_reason, e.stream, e.error, e.total_ms) for e in found
    ]


async def test_a_key_joins_the_answer_that_is_still_being_given(stage: Stage) -> None:
    before = stage.log.last_sequence()
    body, headers = chat("!count 100", stream=True), {"idempotency-key": "joined"}
    async with httpx2.AsyncClient() as http:
        answers = await asyncio.gather(
            *(http.post(stage.url + CHAT, json=body, headers=headers) for _ in range(5))
        )
    assert len({answer.content for answer in answers}) == 1
    found = finished(stage, before)
    assert len(found) == 1, [
        (e.generation, e.choices[0].finish_reason, e.stream, e.error, e.total_ms) for e in found
    ]


def test_a_key_with_another_body_or_route_is_refused(stage: Stage) -> None:
    headers = {"idempotency-key": "reused"}
    assert httpx2.post(stage.url + CHAT, json=chat("one"), headers=headers).status_code == 200
    other = httpx2.post(stage.url + CHAT, json=chat("two"), headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    route = httpx2.post(stage.url + "/v1/messages", json=chat("one", max_tokens=3), headers=headers)
    assert (route.status_code, route.json()["error"]["type"]) == (422, "invalid_request_error")


def test_a_key_whose_answer_failed_may_be_used_again(stage: Stage) -> None:
    headers = {"idempotency-key": "failed"}
    refused = httpx2.post(stage.url + CHAT, json=chat("!refuse"), headers=headers)
    assert refused.status_code == 400
    broken = httpx2.post(stage.url + CHAT, json=chat("!error 2", stream=True), headers=headers)
    assert "engine_failed" in broken.text
    assert httpx2.post(stage.url + CHAT, json=chat("fine"), headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat("!count 5", n=2)),
        (CHAT, chat("!count 5", stream=True)),
        ("/v1/completions", {"model": "chat", "prompt": "!count 5", "max_tokens": 3}),
        ("/v1/responses", {"model": "chat", "input": "!count 5"}),
        ("/v1/messages", chat("!count 5", max_tokens=3)),
    ],
)
def test_a_key_survives_a_restart(stage: Stage, tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    headers = {"idempotency-key": "restart"}
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:

        def serve_and_ask(body: dict[str, Any]) -> httpx2.Response:
            with served(create_gateway(router=Router(stage.registry, ALIASES), log=log)) as url:
                return httpx2.post(url + path, json=body, headers=headers)

        first, second = serve_and_ask(body), serve_and_ask(body)
        assert second.headers["idempotent-replayed"] == "true"
        assert len(list(log.read(types=[GenerationFinished]))) == 1
        if body.get("stream"):
            texts = [said([data for _, data in events(answer.text)]) for answer in (first, second)]
            assert texts == ["0 1 2 3 4 "] * 2
        else:
            mine, theirs = first.json(), second.json()
            mine.pop("completed_at", None), theirs.pop("completed_at", None)
            assert mine == theirs
        other = serve_and_ask({**body, "temperature": 0.5})
        assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


def test_scores_that_were_not_kept_are_not_made_up_after_a_restart(stage: Stage, tmp_path: Path) -> None:
    headers, body = {"idempotency-key": "scores"}, chat("!count 5", logprobs=True)
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        for status in (200, 409):
            with served(create_gateway(router=Router(stage.registry, ALIASES), log=log)) as url:
                answer = httpx2.post(url + CHAT, json=body, headers=headers)
                assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == "answer_not_kept"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("idempotency-key", "a b"),
        ("idempotency-key", "x" * 256),
        ("x-tiltyard-resume-ms", "0"),
        ("x-tiltyard-resume-ms", "300001"),
        ("x-tiltyard-resume-ms", "soon"),
        ("last-event-id", "7"),
    ],
)
def test_a_wrong_header_is_named(stage: Stage, name: str, value: str) -> None:
    answer = httpx2.post(stage.url + CHAT, json=chat("x", stream=True), headers={name: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_only_a_stream_is_resumed_and_only_by_the_request_that_began_it(stage: Stage) -> None:
    headers = {"x-tiltyard-resume-ms": "1000"}
    begun = httpx2.post(stage.url + CHAT, json=chat("x", stream=True), headers=headers)
    (first, _), *_ = events(begun.text)
    for body, param in ((chat("x"), "stream"), (chat("y", stream=True), "last-event-id")):
        answer = httpx2.post(stage.url + CHAT, json=body, headers={"last-event-id": first})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_slow_listener_slows_its_answer_instead_of_losing_it() -> None:
    telling = Telling(Asking("default", "sha256:"))
    frames = telling.after(-1)

    async def tell() -> None:
        for _ in range(40):
            telling.add(b"x" * (MAX_BYTES // 10))
            await telling.room()
        telling.end()

    telling.add(b"first")
    assert await anext(frames) == b"first"
    telling_all = asyncio.create_task(tell())
    await asyncio.sleep(0)
    assert telling.next < 10  # it waits: half of what is kept is not heard
    heard = [frame async for frame in frames]
    assert len(heard) == 40
    await telling_all


async def test_what_is_kept_of_an_answer_is_bounded() -> None:
    telling = Telling(Asking("default", "sha256:"))
    for _ in range(40):
        telling.add(b"x" * (MAX_BYTES // 10))
    telling.end()
    with pytest.raises(StreamGone):
        telling.check_kept(28)
    kept = [frame async for frame in telling.after(29)]
    assert len(kept) == 10


async def test_a_tenant_cannot_take_all_the_room_for_answers_that_are_kept() -> None:
    tellings = Tellings()
    forever = asyncio.Event()

    async def tell(_telling: Telling) -> None:
        await forever.wait()

    for _ in range(MAX_OF_TENANT):
        tellings.start(Asking("loud", "sha256:"), tell)
    with pytest.raises(Overloaded):
        tellings.start(Asking("loud", "sha256:"), tell)
    tellings.start(Asking("quiet", "sha256:"), tell)
    forever.set()
    await asyncio.sleep(0)  # one turn of the loop: the tasks hear it and end
    await asyncio.sleep(0)
    tellings.start(Asking("loud", "sha256:"), tell)  # in place of one that has ended
    await tellings.aclose()

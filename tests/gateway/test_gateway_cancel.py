"""`POST /v1/generations/{generation}/cancel`: an answer ends with `cancelled`, in each protocol's words."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import orjson
import pytest
from gateway_stage import Stage

from tiltyard.wire.sse import DONE, SseParser


def chat(text: str, **fields: object) -> dict[str, Any]:
    return {"model": "chat", "messages": [{"role": "user", "content": text}], **fields}


async def streamed_and_cancelled(stage: Stage, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of all events of a stream that is cancelled from elsewhere once it has begun."""
    data: list[dict[str, Any]] = []
    parser = SseParser()
    async with (
        asyncio.timeout(20),
        httpx2.AsyncClient() as http,
        http.stream("POST", stage.url + path, json={**body, "stream": True}) as answer,
    ):
        name = answer.headers["x-tiltyard-generation"]
        asked = False
        async for piece in answer.aiter_raw():
            data += [orjson.loads(event.data) for event in parser.feed(piece) if event.data != DONE]
            if not asked and len(data) > 5:
                asked = True
                told = await http.post(f"{stage.url}/v1/generations/{name}/cancel")
                assert told.json() == {"id": name, "object": "generation.cancelled", "cancelled": True}
    event = stage.log.generation(name)
    assert (event.choices[0].finish_reason, event.error) == ("cancelled", None)
    return data


async def test_a_chat_ends_as_cancelled_with_its_usage(stage: Stage) -> None:
    body = chat("!count 100000", stream_options={"include_usage": True})
    *_, last, usage = await streamed_and_cancelled(stage, "/v1/chat/completions", body)
    assert last["choices"][0]["finish_reason"] == "cancelled"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] >= 4


async def test_a_completion_ends_as_cancelled(stage: Stage) -> None:
    body = {"model": "chat", "prompt": "!count 100000"}
    *_, last = await streamed_and_cancelled(stage, "/v1/completions", body)
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["text"]) == ("cancelled", "")


async def test_a_response_ends_as_cancelled_with_its_usage(stage: Stage) -> None:
    body = {"model": "chat", "input": "!count 100000"}
    *_, last = await streamed_and_cancelled(stage, "/v1/responses", body)
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert last["response"]["usage"]["output_tokens"] > 0
    assert last["response"]["output"][0]["content"][0]["text"].startswith("0 1 ")


async def test_a_message_ends_as_cancelled_with_its_usage(stage: Stage) -> None:
    body = chat("!count 100000", max_tokens=99999)
    *_, delta, stop = await streamed_and_cancelled(stage, "/v1/messages", body)
    assert (delta["delta"]["stop_reason"], stop["type"]) == ("cancelled", "message_stop")
    assert delta["usage"]["output_tokens"] > 0


async def running(stage: Stage) -> str:
    """The generation that the worker took last, once it runs."""
    async with asyncio.timeout(10):
        while not stage.workers[0].running:  # noqa: ASYNC110 - another thread's
            await asyncio.sleep(0.01)
    return stage.workers[0].served[-1]


@pytest.mark.parametrize("text", ["!wait", "!count 100000"])
async def test_who_waits_for_the_whole_answer_gets_what_there_is(stage: Stage, text: str) -> None:
    async with httpx2.AsyncClient() as http:
        asking = asyncio.create_task(http.post(stage.url + "/v1/chat/completions", json=chat(text)))
        name = await running(stage)
        # By the id of a message: it is the same answer.
        told = await http.post(f"{stage.url}/v1/generations/{name.replace('gen_', 'msg_')}/cancel")
        assert told.status_code == 200
        answer = (await asking).json()
    assert answer["choices"][0]["finish_reason"] == "cancelled"
    assert "0 1 ".startswith(answer["choices"][0]["message"]["content"][:4])


def test_what_does_not_run_cannot_be_cancelled(stage: Stage) -> None:
    for name in ("gen_" + "0" * 32, "nonsense"):
        answer = httpx2.post(f"{stage.url}/v1/generations/{name}/cancel")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "generation_not_running")

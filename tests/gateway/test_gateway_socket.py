from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import orjson
import pytest
from gateway_stage import ALIASES, Stage
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.generation import Generation


@asynccontextmanager
async def opened(stage: Stage, **options: object) -> AsyncIterator[ClientConnection]:
    url = stage.url.replace("http", "ws") + "/v1/chat/ws"
    async with asyncio.timeout(30), connect(url, **options) as socket:  # type: ignore[arg-type]
        yield socket


async def turn(socket: ClientConnection, **fields: object) -> None:
    await socket.send(json.dumps({"type": "turn", **fields}))


async def answer(socket: ClientConnection) -> tuple[str, dict[str, object]]:
    """The text of one answer and its last frame."""
    text = ""
    while True:
        message = json.loads(await socket.recv())
        if message["type"] != "delta":
            return text, message
        text += message["content"]


async def test_many_turns_are_one_conversation(stage: Stage) -> None:
    async with opened(stage) as socket:
        await turn(socket, model="chat", content="你好", max_tokens=50)
        text, done = await answer(socket)
        assert text == "你好"
        assert (done["type"], done["finish_reason"]) == ("done", "stop")
        assert done["usage"] == {
            "prompt_tokens": 7,
            "completion_tokens": 1,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 4},
        }
        await turn(socket, content="and again")  # the model is remembered
        text, done = await answer(socket)
        assert text == "and again"
    assert stage.workers[0].bodies[-1]["messages"] == [
        {"role": "user", "content": "你好"},
        {"role": "assistant", "content": "你好"},
        {"role": "user", "content": "and again"},
    ]
    event = stage.log.generation(str(done["generation"]))
    assert isinstance(event, GenerationFinished)
    assert (event.identity, event.behaviour) == (done["model"], done["identity"])


async def test_messages_replace_the_conversation(stage: Stage) -> None:
    async with opened(stage) as socket:
        await turn(socket, model="chat", content="first")
        await answer(socket)
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "second"}]
        await turn(socket, messages=messages)
        assert (await answer(socket))[0] == "second"
    assert stage.workers[0].bodies[-1]["messages"] == messages


async def test_cancel_stops_the_answer_and_keeps_what_came(stage: Stage) -> None:
    async with opened(stage) as socket:
        await turn(socket, model="chat", content="!count 100000")
        first = json.loads(await socket.recv())["content"]
        await socket.send('{"type": "cancel"}')
        rest, done = await answer(socket)
        assert (done["type"], done["finish_reason"]) == ("done", "cancelled")
        event = stage.log.generation(str(done["generation"]))
        assert event.choices[0].finish_reason == "cancelled"
        assert event.response is not None
        kept = orjson.loads(stage.log.own_words("test").read(event.response))
        assert kept["choices"][0]["text"].startswith(first + rest)
        await turn(socket, content="go on")
        assert (await answer(socket))[0] == "go on"
    messages = stage.workers[0].bodies[-1]["messages"]
    assert isinstance(messages, list)
    assert messages[1] == {"role": "assistant", "content": kept["choices"][0]["text"]}


async def test_a_cancel_with_nothing_to_stop_is_no_error(stage: Stage) -> None:
    async with opened(stage) as socket:
        await socket.send('{"type": "cancel"}')
        await turn(socket, model="chat", content="still fine")
        assert (await answer(socket))[0] == "still fine"


async def test_a_cancel_right_behind_its_turn_still_ends_with_a_done_frame(stage: Stage) -> None:
    async with opened(stage) as socket:
        for _ in range(20):
            await turn(socket, model="chat", content="!count 1000")
            await socket.send('{"type": "cancel"}')
            assert (await answer(socket))[1]["type"] == "done"


async def test_a_client_that_goes_frees_the_worker(stage: Stage) -> None:
    before = stage.log.last_sequence()
    async with opened(stage) as socket:
        await turn(socket, model="chat", content="!count 100000")
        await socket.recv()
    async with asyncio.timeout(10), httpx2.AsyncClient() as http:
        async for event in stage.log.follow(before):
            if isinstance(event.data, GenerationFinished):
                assert event.data.choices[0].finish_reason == "cancelled"
                break
        url = stage.registry.workers[0].url
        while (await http.get(f"{url}/worker")).json()["running"]:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("frame", "code", "message"),
    [
        ("not json", "invalid_json", "not valid JSON"),
        ('{"type": "hello"}', "invalid_value", "it must be 'turn' or 'cancel'"),
        ('{"type": "turn", "model": "chat"}', "invalid_value", "a turn needs either content"),
        ('{"type": "turn", "content": "x"}', "missing_required_parameter", "model is required"),
        ('{"type": "turn", "model": "gpt", "content": "x"}', "model_not_found", "available: chat"),
        ('{"type": "turn", "model": "chat", "content": "x", "n": 2}', "invalid_value", "n has no meaning"),
        ('{"type": "turn", "model": "chat", "content": "x", "tmp": 1}', "unknown_parameter", "unknown field"),
        (
            '{"type": "turn", "model": "chat", "content": 5}',
            "invalid_value",
            "content is 5; it must be a string",
        ),
        ('{"type": "turn", "model": "chat", "content": "!refuse"}', "context_length_exceeded", "too long"),
        ('{"type": "turn", "model": "chat", "content": "!error 1"}', "engine_failed", "broke"),
    ],
)
async def test_an_error_is_a_frame_and_the_socket_goes_on(
    stage: Stage, frame: str, code: str, message: str
) -> None:
    async with opened(stage) as socket:
        await socket.send(frame)
        _, error = await answer(socket)
        body = error["error"]
        assert isinstance(body, dict)
        assert (error["type"], body["code"]) == ("error", code)
        assert message in body["message"]
        await turn(socket, model="chat", content="hello")
        assert (await answer(socket))[0] == "hello"
    # The question that failed is not in the conversation.
    assert stage.workers[0].bodies[-1]["messages"] == [{"role": "user", "content": "hello"}]


async def test_a_failed_turn_with_messages_leaves_conversation_and_model_as_they_were(stage: Stage) -> None:
    async with opened(stage) as socket:
        await turn(socket, model="chat", content="first")
        assert (await answer(socket))[0] == "first"
        other = [{"role": "system", "content": "Be somebody else."}, {"role": "user", "content": "!refuse"}]
        await turn(socket, model="plain", messages=other)
        assert (await answer(socket))[1]["type"] == "error"
        await turn(socket, content="second")
        _, done = await answer(socket)
    assert done["model"] == ALIASES["chat"]
    assert stage.workers[0].bodies[-1]["messages"] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "second"},
    ]


async def test_an_error_does_not_repeat_a_frame_at_length(stage: Stage) -> None:
    async with opened(stage) as socket:
        await socket.send(json.dumps({"type": "x" * 1_000_000}))
        frame = await socket.recv()
    assert "type is 'xxx" in str(frame)
    assert len(frame) < 500


async def test_a_second_turn_waits_for_the_first(stage: Stage) -> None:
    async with opened(stage) as socket:
        await turn(socket, model="chat", content="!count 100000")
        await turn(socket, content="me too")
        _, error = await answer(socket)
        assert isinstance(error["error"], dict)
        assert error["error"]["code"] == "conflict"
        await socket.send('{"type": "cancel"}')
        assert (await answer(socket))[1]["finish_reason"] == "cancelled"


async def test_a_mistake_of_ours_closes_the_socket_and_is_in_the_servers_log(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_generation: Generation) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(Generation, "chunks", broken)
    async with opened(stage) as socket:
        await turn(socket, model="chat", content="hi")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011
    (logged,) = [record for record in caplog.records if record.name == "tiltyard.gateway.websocket"]
    assert "a mistake of ours" in str(logged.exc_info)


async def test_wrong_content_is_called_content_wherever_it_would_stand(stage: Stage) -> None:
    async with opened(stage) as socket:
        await turn(socket, model="chat", content="hello")
        await answer(socket)
        await turn(socket, content=[{"type": "image_url"}])
        error = (await answer(socket))[1]["error"]
    assert isinstance(error, dict)
    assert (error["param"], error["code"]) == ("content", "unsupported_parameter")
    assert error["message"].startswith("content: part 0 is of type")


@pytest.mark.parametrize(
    ("headers", "code"),
    [({"Host": "evil.example"}, "host_refused"), ({"Origin": "https://evil.example"}, "origin_refused")],
)
async def test_a_page_of_somebody_else_may_not_open_the_socket(
    stage: Stage, headers: dict[str, str], code: str, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = stage.url.removeprefix("http://").split(":")
    url = f"ws://{headers.get('Host', host)}/v1/chat/ws"
    origin = headers.get("Origin")
    with pytest.raises(InvalidStatus) as refused:
        async with connect(url, host=host, port=int(port), origin=origin, proxy=None):  # type: ignore[arg-type]
            pytest.fail("it was opened")
    response = refused.value.response
    assert response.status_code == 403
    assert json.loads(response.body or b"")["error"]["code"] == code
    assert not caplog.records  # a stranger could fill the log


async def test_our_own_pages_may_open_the_socket(stage: Stage) -> None:
    async with opened(stage, origin=stage.url) as socket:
        await turn(socket, model="chat", content="ours")
        assert (await answer(socket))[0] == "ours"

"""Named conversations on WebSockets: session, prompt and max_tokens; many turns, by any socket; cancel."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from gateway_stage import Stage
from test_gateway_socket import answer, opened

from tiltyard.errors import Conflict
from tiltyard.gateway.sessions import MAX_BYTES, MAX_SESSIONS, Sessions


async def ask(socket: Any, **fields: object) -> tuple[str, dict[str, Any]]:
    await socket.send(json.dumps(fields))
    return await answer(socket)


async def test_a_session_goes_on_after_its_socket(stage: Stage) -> None:
    async with opened(stage) as socket:
        text, done = await ask(socket, model="chat", session="s1", prompt="!count 5", max_tokens=2)
        assert text == "0 1 "
        assert (done["session"], done["turn"], done["finish_reason"]) == ("s1", 1, "length")
        assert done["usage"]["completion_tokens"] == 2
    async with opened(stage) as socket:
        text, done = await ask(socket, session="s1", prompt="and again")  # the model is remembered too
        assert (text, done["turn"]) == ("and again", 2)
    assert stage.workers[0].bodies[-1]["messages"] == [
        {"role": "user", "content": "!count 5"},
        {"role": "assistant", "content": "0 1 "},
        {"role": "user", "content": "and again"},
    ]


async def test_sessions_of_one_socket_do_not_mix(stage: Stage) -> None:
    async with opened(stage) as socket:
        for session, prompt in (("a", "one"), ("b", "two"), ("a", "three")):
            _, done = await ask(socket, model="chat", session=session, prompt=prompt)
        assert done["turn"] == 2
        last: Any = stage.workers[0].bodies[-1]["messages"]
        assert [message["content"] for message in last] == ["one", "one", "three"]
        _, done = await ask(socket, model="chat", prompt="no name")
        assert ("session" in done, done["turn"]) == (False, 1)


async def test_a_session_is_answered_on_one_socket_at_a_time_and_a_cancel_has_its_usage(stage: Stage) -> None:
    async with opened(stage) as first, opened(stage) as second:
        await first.send(json.dumps({"model": "chat", "session": "busy", "prompt": "!count 100000"}))
        assert json.loads(await first.recv())["session"] == "busy"
        _, refused = await ask(second, model="chat", session="busy", prompt="me too")
        assert refused["error"]["code"] == "conflict"
        await first.send(json.dumps({"type": "cancel"}))
        text, done = await answer(first)
        assert (done["finish_reason"], done["session"]) == ("cancelled", "busy")
        assert done["usage"]["completion_tokens"] >= 1 + text.count(" ")
        again, _ = await ask(second, session="busy", prompt="me too")
        assert again == "me too"


async def test_a_turn_that_failed_can_be_asked_again(stage: Stage) -> None:
    async with opened(stage) as socket:
        _, error = await ask(socket, model="chat", session="failed", prompt="!error 2")
        assert (error["error"]["code"], error["session"]) == ("engine_failed", "failed")
        text, done = await ask(socket, model="chat", session="failed", prompt="fine")
        assert (text, done["turn"]) == ("fine", 1)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"session": "a b", "prompt": "x"}, "session"),
        ({"session": 3, "prompt": "x"}, "session"),
        ({"prompt": "x", "content": "y"}, "content"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": "x", "foo": 1}, "foo"),
    ],
)
async def test_a_wrong_turn_is_refused_by_name(stage: Stage, fields: dict[str, object], param: str) -> None:
    async with opened(stage) as socket:
        _, refused = await ask(socket, model="chat", **fields)
        assert refused["error"]["param"] == param


async def test_unknown_fields_are_dropped_and_told_where_the_handshake_asks_for_it(stage: Stage) -> None:
    headers = {"x-tiltyard-unknown-fields": "drop"}
    async with opened(stage, additional_headers=headers) as socket:
        text, done = await ask(socket, model="chat", prompt="x", foo=1)
        assert (text, done["dropped_fields"]) == ("x", ["foo"])


async def test_what_is_kept_of_sessions_is_bounded() -> None:
    sessions = Sessions()
    for number in range(MAX_SESSIONS + 10):
        session = sessions.named("default", f"s{number}")
        session.begin([{"role": "user", "content": "x"}], "chat", "somebody")
        session.answered({"role": "assistant", "content": "y"})
        sessions.measure("default", session)
    assert sessions.named("default", "s0").turns == 0  # forgotten
    assert sessions.named("default", f"s{MAX_SESSIONS}").turns == 1
    assert sessions.named("another", f"s{MAX_SESSIONS}").turns == 0
    big = sessions.named("default", "big")
    big.begin([{"role": "user", "content": "x" * MAX_BYTES}], "chat", "somebody")
    with pytest.raises(Conflict):
        sessions.named("default", "big")
    big.answered({"role": "assistant", "content": "y"})
    sessions.measure("default", big)
    assert sessions.named("default", f"s{MAX_SESSIONS}").turns == 0  # no room beside the big one
    await asyncio.sleep(0)

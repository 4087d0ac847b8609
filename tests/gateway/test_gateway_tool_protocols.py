"""`/v1/responses` and `/v1/messages` with the real model: the chat's calls in other words, and its replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import orjson
from real_house import House

from tiltyard.identity.store import IdentityStore
from tiltyard.ops.replay import Replayer
from tiltyard.wire.sse import SseParser
from tiltyard.worker.host import HostSettings

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
QUESTION = "What is the weather in Paris?"


def test_a_response_calls_a_function_and_goes_on_from_its_result(house: House) -> None:
    asked: dict[str, Any] = {
        "model": "chat",
        "input": QUESTION,
        "tools": [
            {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True},
        ],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "temperature": 0,
        "max_output_tokens": 100,
    }
    first = house.client.responses.create(**asked)
    (call,) = first.output
    assert call.type == "function_call"
    assert call.name == "get_weather"
    assert orjson.loads(call.arguments)["city"] == "Paris"  # this model, greedily
    *_, last = house.client.responses.create(**asked, stream=True)
    assert last.type == "response.completed"
    (streamed,) = last.response.output
    assert streamed.type == "function_call"
    assert streamed.arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    second = house.client.responses.create(
        model="chat",
        previous_response_id=first.id,
        input=[result],
        max_output_tokens=8,  # type: ignore[list-item]
    )
    assert second.status in ("completed", "incomplete")
    kept = house.event(second.id.replace("resp_", "gen_")).prompt
    assert kept is not None
    messages = orjson.loads(house.log.own_words("test").read(kept))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == call.call_id


def test_a_message_calls_a_tool_and_goes_on_from_its_result(house: House) -> None:
    body: dict[str, Any] = {
        "model": "chat",
        "max_tokens": 100,
        "temperature": 0,
        "tools": [{"name": "get_weather", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "tool", "name": "get_weather"},
        "messages": [{"role": "user", "content": QUESTION}],
    }
    url = house.url + "/v1/messages"
    message = httpx2.post(url, json=body, timeout=60).json()
    assert message["stop_reason"] == "tool_use"
    (block,) = message["content"]
    assert (block["type"], block["name"], block["input"]["city"]) == ("tool_use", "get_weather", "Paris")
    streamed = httpx2.post(url, json={**body, "stream": True}, timeout=60)
    events = [orjson.loads(event.data) for event in SseParser().feed(streamed.content)]
    pieces = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert orjson.loads("".join(pieces)) == block["input"]
    assert [e["content_block"]["name"] for e in events if e["type"] == "content_block_start"] == [
        "get_weather"
    ]
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "21 degrees"}
    body["messages"] += [
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [result, {"type": "text", "text": "Thanks!"}]},
    ]
    again = httpx2.post(url, json={**body, "tool_choice": {"type": "none"}, "max_tokens": 4}, timeout=60)
    assert again.status_code == 200, again.text
    counted = httpx2.post(
        url + "/count_tokens",
        json={name: body[name] for name in ("model", "messages", "tools")}
        | {"tool_choice": {"type": "none"}},
    )
    usage = again.json()["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_a_key_gives_the_same_call_again_after_it_has_left_memory(house: House) -> None:
    body: dict[str, Any] = {
        "model": "chat",
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}],
        "tool_choice": "required",
        "temperature": 0,
        "max_tokens": 100,
    }
    headers = {"idempotency-key": "call-a-tool"}
    url = house.url + "/v1/chat/completions"
    first = httpx2.post(url, json=body, headers=headers, timeout=60).json()
    house.forget_tellings()
    again = httpx2.post(url, json=body, headers=headers, timeout=60)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first


def test_answers_by_other_protocols_are_made_again_token_by_token(house: House, model_path: Path) -> None:
    schema = {"type": "object", "properties": {"river": {"type": "string", "maxLength": 12}}}
    first = house.client.responses.create(
        model="chat",
        input="Name a river.",
        instructions="Be brief.",
        text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
        max_output_tokens=24,
    )
    second = house.client.responses.create(
        model="chat", input="Another one.", previous_response_id=first.id, max_output_tokens=8
    )
    body = {"model": "chat", "max_tokens": 8, "stop_sequences": ["."], "system": "Be brief."}
    message = httpx2.post(
        house.url + "/v1/messages",
        json={**body, "messages": [{"role": "user", "content": "Name a river."}]},
        timeout=60,
    ).json()
    replayer = Replayer(
        house.log, IdentityStore(house.store), lambda _: model_path, settings=HostSettings(threads=2)
    )
    for name in (first.id, second.id, message["id"]):
        (outcome,) = replayer.replay("gen_" + name.partition("_")[2])
        assert outcome.difference is None
        assert outcome.tokens > 0

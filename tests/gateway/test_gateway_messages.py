"""`/v1/messages`: Anthropic's shapes before a scripted worker; `tests/conformance` asks with Anthropic's package."""

from __future__ import annotations

from typing import Any

import httpx2
import orjson
import pytest
from gateway_stage import Stage

from tiltyard.wire.sse import SseParser


def ask(stage: Stage, text: str = "x", **fields: object) -> httpx2.Response:
    body = {"model": "chat", "max_tokens": 99, "messages": [{"role": "user", "content": text}], **fields}
    return httpx2.post(stage.url + "/v1/messages", json=body, headers={"x-api-key": "any"})


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    found = SseParser().feed(answer.content)
    data = [orjson.loads(event.data) for event in found]
    assert [event.event for event in found] == [item["type"] for item in data]
    return data


def test_a_message_is_a_chat_answer_in_other_words(stage: Stage) -> None:
    answer = ask(stage, "!count 3", system="Be brief.", metadata={"user_id": "eva"}, temperature=0.25)
    message = answer.json()
    assert message | {"id": "msg_"} == {
        "id": "msg_",
        "type": "message",
        "role": "assistant",
        "model": "plain",
        "content": [{"type": "text", "text": "0 1 2 "}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        # The worker says 7 tokens of prompt, 4 of them from the cache.
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 3,
        },
    }
    assert answer.headers["x-tiltyard-generation"] == message["id"].replace("msg_", "gen_")
    event = stage.log.generation(answer.headers["x-tiltyard-generation"])
    assert (event.endpoint, event.sampling.temperature) == ("messages", 0.25)
    assert event.prompt is not None
    assert event.prompt.subject == "eva"
    assert orjson.loads(stage.log.own_words("test").read(event.prompt))["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "!count 3"},
    ]


def test_a_message_streams_anthropics_events_in_order(stage: Stage) -> None:
    found = events(ask(stage, "!count 2", stream=True))
    assert [event["type"] for event in found] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert found[0]["message"]["content"] == []
    assert found[0]["message"]["stop_reason"] is None
    assert "".join(event["delta"]["text"] for event in found[3:5]) == "0 1 "
    assert found[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == 2


def test_a_message_that_reached_its_limit_says_so(stage: Stage) -> None:
    assert ask(stage, "!count 3", max_tokens=2).json()["stop_reason"] == "max_tokens"
    *_, delta, _stop = events(ask(stage, "!count 3", max_tokens=2, stream=True))
    assert delta["delta"]["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"foo": 1}, "foo"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": "I am"}]}, "messages[0]"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "x"},
                            {"type": "tool_result", "tool_use_id": "t"},
                        ],
                    }
                ]
            },
            "messages[0].content[1].tool_use_id",
        ),
        ({"tools": [{"name": "f", "input_schema": {}}] * 2}, "tools[1].name"),
    ],
)
def test_a_refusal_has_anthropics_shape_and_names_the_field(
    stage: Stage, fields: dict[str, object], param: str
) -> None:
    answer = ask(stage, **fields)
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert body["type"] == "error"
    assert (body["error"]["type"], body["error"]["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"model": "nobody"}, 404, "not_found_error"),
        ({"messages": [{"role": "user", "content": "!late"}]}, 504, "timeout_error"),
        ({"messages": [{"role": "user", "content": "x" * (4 << 20)}]}, 413, "request_too_large"),
    ],
)
def test_every_error_of_the_route_has_anthropics_words(
    stage: Stage, fields: dict[str, object], status: int, kind: str
) -> None:
    answer = ask(stage, **fields)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


def test_errors_of_the_door_itself_have_anthropics_shape_there(stage: Stage) -> None:
    url = stage.url + "/v1/messages"
    refused = httpx2.post(url, json={}, headers={"host": "evil.example"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    wrong = httpx2.get(url)
    assert (wrong.status_code, wrong.json()["type"]) == (405, "error")
    assert httpx2.get(stage.url + "/v1/nowhere").json()["error"]["code"] == "unknown_url"


def test_a_broken_stream_ends_with_an_error_event_and_the_usage_of_what_came(stage: Stage) -> None:
    """vLLM #57082, vLLM #52852: an aborted stream looked successful, or had no last chunk."""
    *_, last = events(ask(stage, "!error 2", stream=True))
    assert (last["type"], last["error"]["type"], last["error"]["code"]) == (
        "error",
        "api_error",
        "engine_failed",
    )
    assert last["usage"]["output_tokens"] == 2

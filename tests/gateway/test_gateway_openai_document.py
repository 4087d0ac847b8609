"""Answers of the other paths that we serve, against OpenAI's own document; chats and completions have their tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from openai_document import event_validator, openai_validator
from real_house import House

from tiltyard.wire.sse import SseParser

TOOL = {
    "type": "function",
    "name": "get_weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "Say hi.", "max_output_tokens": 4},
        {
            "input": "Say hi.",
            "max_output_tokens": 4,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
        },
        {"input": "Weather in Paris?", "tools": [TOOL], "tool_choice": "required", "temperature": 0},
        {
            "input": "Say hi.",
            "instructions": "Be brief.",
            "metadata": {"a": "b"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "integer"}}},
        },
    ],
    ids=["cut short", "scores", "tools", "form"],
)
def test_a_response_and_its_events_have_the_shape_that_openai_describes(
    house: House, shared_data: Path, fields: dict[str, Any]
) -> None:
    url, body = house.url + "/v1/responses", {"model": "chat", "seed": 1, "max_output_tokens": 100, **fields}
    whole = httpx2.post(url, json=body, timeout=60).json()
    openai_validator(shared_data, "Response").validate(whole)
    assert not openai_validator(shared_data, "Response").is_valid(
        {**whole, "status": "done"}
    )  # it can refuse
    streamed = httpx2.post(url, json={**body, "stream": True}, timeout=60)
    events = [orjson.loads(event.data) for event in SseParser().feed(streamed.content)]
    for event in events:
        event_validator(shared_data, event["type"]).validate(event)

    def said(response: dict[str, Any]) -> object:
        """What must be the same by either way: not ids, times and caches."""
        output = [
            {k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]
        ]
        return response["status"], output, response["usage"]["output_tokens"]

    assert said(events[-1]["response"]) == said(whole)


def test_embeddings_and_one_model_have_the_shape_that_openai_describes(
    house: House, shared_data: Path
) -> None:
    body = {"model": "chat", "input": ["a dog", "a hound"]}
    vectors = httpx2.post(house.url + "/v1/embeddings", json=body, timeout=60).json()
    openai_validator(shared_data, "CreateEmbeddingResponse").validate(vectors)
    openai_validator(shared_data, "Model").validate(httpx2.get(house.url + "/v1/models/chat").json())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/nowhere"])
def test_errors_have_the_shape_that_openai_describes(house: House, shared_data: Path, path: str) -> None:
    refused = httpx2.post(house.url + path, json={"model": "chat", "foo": 1})
    assert refused.status_code in (400, 404)
    openai_validator(shared_data, "ErrorResponse").validate(refused.json())

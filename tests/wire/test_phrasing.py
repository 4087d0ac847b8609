"""How each protocol words each end of an answer; usage is there in every case."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tiltyard.errors import Overloaded, UpstreamFailed
from tiltyard.wire.answers import usage_json
from tiltyard.wire.messages_answer import MessagesPhrasing
from tiltyard.wire.phrasing import AnswerEnd, Chunk, OpenAiPhrasing, Phrasing
from tiltyard.wire.responses import responses_request
from tiltyard.wire.responses_answer import ResponsesPhrasing
from tiltyard.wire.responses_chat import echoed
from tiltyard.wire.sse import DONE, SseParser

USAGE = usage_json(10, 2, 4)
HEAD: Chunk = {"id": "gen_" + "0" * 32, "created": 1, "model": "m", "system_fingerprint": "sha256:0"}
DELTA: Chunk = {
    **HEAD,
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None}],
}
WHOLE: Chunk = {
    **HEAD,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi", "refusal": None}}],
}


def responses() -> ResponsesPhrasing:
    return ResponsesPhrasing(
        echoed(responses_request({"model": "m", "input": "x"})), ["input[0]"], lambda: 5.0
    )


def events(data: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(event.data) for event in SseParser().feed(data) if event.data != DONE]


def streamed(phrasing: Phrasing, end: AnswerEnd) -> list[dict[str, Any]]:
    data = b"".join([*phrasing.begin(DELTA, USAGE), *phrasing.frames(DELTA), phrasing.last(end)])
    return events(data)


@pytest.mark.parametrize(
    ("reason", "stop_match", "status", "why", "stop_reason"),
    [
        ("stop", None, "completed", None, "end_turn"),
        ("stop", "END", "completed", None, "stop_sequence"),
        ("length", None, "incomplete", "max_output_tokens", "max_tokens"),
        ("tool_calls", None, "completed", None, "tool_use"),
        ("content_filter", None, "incomplete", "content_filter", "refusal"),
        ("deadline", None, "incomplete", "deadline", "deadline"),
        ("cancelled", None, "cancelled", None, "cancelled"),
    ],
)
def test_each_end_has_its_word_in_each_protocol(
    reason: str, stop_match: str | None, status: str, why: str | None, stop_reason: str
) -> None:
    end = AnswerEnd(reason, stop_match, USAGE)
    for response in (streamed(responses(), end)[-1]["response"], responses().whole(WHOLE, end)):
        assert response["status"] == status
        assert response["incomplete_details"] == (why and {"reason": why})
        assert response["usage"]["output_tokens"] == 2
        assert response["usage"]["input_tokens_details"]["cached_tokens"] == 4
        assert response["completed_at"] == (5 if status == "completed" else None)
        assert response["output"][0]["content"][0]["text"] == "Hi"
    delta, stop = streamed(MessagesPhrasing([]), end)[-2:]
    assert stop == {"type": "message_stop"}
    message = MessagesPhrasing([]).whole(WHOLE, end)
    for told in (delta["delta"], message):
        assert (told["stop_reason"], told["stop_sequence"]) == (stop_reason, stop_match)
    for usage in (delta["usage"], message["usage"]):
        assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (6, 4, 2)


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (UpstreamFailed("broke", code="worker_lost"), "server_error", "api_error"),
        (Overloaded("full", retry_after_s=1.0), "rate_limit_exceeded", "rate_limit_error"),
    ],
)
def test_a_failure_in_the_middle_has_its_word_in_each_protocol(
    error: UpstreamFailed | Overloaded, code: str, kind: str
) -> None:
    (chat,) = events(OpenAiPhrasing(include_usage=False).failed(error, USAGE))
    assert (chat["error"]["code"], chat["usage"]["completion_tokens"]) == (error.code, 2)
    phrasing = responses()
    data = b"".join([*phrasing.begin(DELTA, USAGE), *phrasing.frames(DELTA), phrasing.failed(error, USAGE)])
    last = events(data)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": code, "message": error.message, "tiltyard_code": error.code}
    assert last["response"]["usage"]["output_tokens"] == 2
    (message,) = events(MessagesPhrasing([]).failed(error, USAGE))
    assert (message["error"]["type"], message["usage"]["output_tokens"]) == (kind, 2)


def test_an_answer_without_a_word_is_an_empty_message_streamed_or_whole() -> None:
    end = AnswerEnd("stop", None, USAGE)
    nothing: Chunk = {**HEAD, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    phrasing = responses()
    data = b"".join([*phrasing.begin(nothing, USAGE), *phrasing.frames(nothing), phrasing.last(end)])
    (item,) = events(data)[-1]["response"]["output"]
    assert item["content"][0]["text"] == ""
    assert "response.output_text.delta" not in [event["type"] for event in events(data)]


def test_calls_after_words_are_items_and_blocks_of_their_own() -> None:
    def piece(**delta: object) -> Chunk:
        return {**HEAD, "choices": [{"index": 0, "delta": delta}]}  # type: ignore[dict-item]

    chunks = [
        piece(content="Let me see."),
        piece(
            tool_calls=[
                {"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": ""}}
            ]
        ),
        piece(tool_calls=[{"index": 0, "function": {"arguments": '{"a":'}}]),
        piece(tool_calls=[{"index": 0, "function": {"arguments": "1}"}}]),
        piece(
            tool_calls=[
                {"index": 1, "id": "c1", "type": "function", "function": {"name": "g", "arguments": "{}"}}
            ]
        ),
    ]
    end = AnswerEnd("tool_calls", None, USAGE)

    def said(phrasing: Phrasing) -> list[dict[str, Any]]:
        begin = [*phrasing.begin(chunks[0], USAGE)]
        frames = [frame for chunk in chunks for frame in phrasing.frames(chunk)]
        return events(b"".join([*begin, *frames, phrasing.last(end)]))

    output = said(responses())[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert [(item["call_id"], item["name"], item["arguments"]) for item in output[1:]] == [
        ("c0", "f", '{"a":1}'),
        ("c1", "g", "{}"),
    ]
    found = said(MessagesPhrasing([]))
    starts = [event["content_block"] for event in found if event["type"] == "content_block_start"]
    assert [block["type"] for block in starts] == ["text", "tool_use", "tool_use"]
    assert [e["index"] for e in found if e["type"] == "content_block_stop"] == [0, 1, 2]

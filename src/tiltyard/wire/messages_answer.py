"""`/v1/messages`: a chat's frames as Anthropic's events, a whole chat answer as a message, and Anthropic's errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import orjson

from tiltyard.errors import TiltyardError, to_http
from tiltyard.identity.canonical import Json
from tiltyard.wire.answers import UsageJson
from tiltyard.wire.messages import CHAT_NAMES
from tiltyard.wire.phrasing import AnswerEnd, Chunk, Phrasing, Refusal
from tiltyard.wire.renaming import rename
from tiltyard.wire.sse import frame

STOP_REASON: Mapping[str, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
"""`stop_reason` by finish reason; `deadline` and `cancelled` are words of ours, and stay as they are."""
_KIND_OF_STATUS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def message_id(generation: str) -> str:
    """The message that a generation is.

    >>> message_id("gen_01")
    'msg_01'
    """
    return generation.replace("gen_", "msg_", 1)


def usage_of(usage: UsageJson) -> dict[str, Json]:
    """`usage` in Anthropic's words: what came from the cache is not among the `input_tokens`."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }


def anthropic_refusal(error: TiltyardError) -> Refusal:
    """An error in Anthropic's shape; our own code and field stand beside its words.

    >>> anthropic_refusal(TiltyardError("broke")).body["error"]["type"]
    'api_error'
    """
    status, headers, body = to_http(error)
    kind = _KIND_OF_STATUS.get(status, "invalid_request_error" if status < 500 else "api_error")
    inner = body["error"]
    shown = {"type": kind, "message": inner["message"], "param": inner["param"], "code": inner["code"]}
    return Refusal(status, headers, {"type": "error", "error": shown})


class MessagesPhrasing(Phrasing):
    """A message; `places` says where the chat's messages came from."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = places
        self._next = 0
        self._open: tuple[str, int] | None = None
        """Kind and number (of the calls) of the block that is being written."""

    def rename(self, error: TiltyardError) -> None:
        """`messages[3]` becomes `messages[2]` where a system prompt stood in front."""
        rename(error, CHAT_NAMES, self._places)

    def refused(self, error: TiltyardError) -> Refusal:
        """Anthropic's shape."""
        return anthropic_refusal(error)

    def usage(self, usage: UsageJson) -> Mapping[str, Json]:
        """`usage` in this protocol's words."""
        return usage_of(usage)

    def begin(self, first: Chunk, usage: UsageJson) -> Iterator[bytes]:
        """`message_start`, with the prompt's tokens."""
        yield _event("message_start", message=_message(first, [], usage_of(usage)))
        yield _event("ping")

    def frames(self, chunk: Chunk) -> Iterator[bytes]:
        """Each piece of text or of a call is a delta of a content block."""
        for choice in cast(Sequence[Mapping[str, Json]], chunk["choices"]):
            delta = cast(Mapping[str, Json], choice.get("delta") or {})
            if text := cast(str, delta.get("content") or ""):
                yield from self._turn_to(("text", 0), {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            for call in cast(Sequence[Mapping[str, Json]], delta.get("tool_calls") or ()):
                yield from self._call(call)

    def last(self, end: AnswerEnd) -> bytes:
        """Close the block, say why it ended, and `message_stop`."""
        frames = list(self._close())
        frames.append(_event("message_delta", delta=_ending(end), usage=usage_of(end.usage)))
        return b"".join([*frames, _event("message_stop")])

    def failed(self, error: TiltyardError, usage: UsageJson) -> bytes:
        """An `error` event, with the usage of what had come, and no `message_stop`."""
        return frame(orjson.dumps({**anthropic_refusal(error).body, "usage": usage_of(usage)}), event="error")

    def whole(self, answer: Chunk, end: AnswerEnd) -> Mapping[str, Json]:
        """The message of a request that is not streamed."""
        choice = cast(Sequence[Mapping[str, Json]], answer["choices"])[0]
        message = cast(Mapping[str, Json], choice["message"])
        calls = cast(Sequence[Mapping[str, Json]], message.get("tool_calls") or ())
        text = cast(str, message.get("content") or "")
        content: list[Json] = [{"type": "text", "text": text}] if text or not calls else []
        content += [_whole_call(call) for call in calls]
        return {**_message(answer, content, usage_of(end.usage)), **_ending(end)}

    def _call(self, call: Mapping[str, Json]) -> Iterator[bytes]:
        """A piece of a call: the first one names it, all bring some of its arguments."""
        function = cast(Mapping[str, Json], call.get("function") or {})
        place = ("tool_use", cast(int, call["index"]))
        if self._open != place:
            block = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}}
            yield from self._turn_to(place, block)
        if arguments := cast(str, function.get("arguments") or ""):
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})

    def _turn_to(self, place: tuple[str, int], block: Mapping[str, Json]) -> Iterator[bytes]:
        if self._open == place:
            return
        yield from self._close()
        self._open = place
        yield _event("content_block_start", index=self._next, content_block=block)

    def _delta(self, delta: Mapping[str, Json]) -> bytes:
        return _event("content_block_delta", index=self._next, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            yield _event("content_block_stop", index=self._next)
            self._open = None
            self._next += 1


def _message(head: Chunk, content: Sequence[Json], usage: Mapping[str, Json]) -> dict[str, Json]:
    return {
        "id": message_id(cast(str, head["id"])),
        "type": "message",
        "role": "assistant",
        "model": head["model"],
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _ending(end: AnswerEnd) -> dict[str, Json]:
    if end.stop_match is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop_match}
    return {"stop_reason": STOP_REASON.get(end.finish_reason, end.finish_reason), "stop_sequence": None}


def _whole_call(call: Mapping[str, Json]) -> dict[str, Json]:
    """Arguments that are no JSON object (an answer that was cut short) are given as they are, under one name."""
    function = cast(Mapping[str, Json], call["function"])
    arguments = cast(str, function["arguments"])
    try:
        given = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        given = None
    shown: Json = given if isinstance(given, dict) else {"unfinished": arguments}
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": shown}


def _event(kind: str, **members: Json) -> bytes:
    return frame(orjson.dumps({"type": kind, **members}), event=kind)

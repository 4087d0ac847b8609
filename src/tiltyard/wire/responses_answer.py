"""`/v1/responses`: a chat's frames as OpenAI's events, and a whole chat answer as a response."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import orjson

from tiltyard.errors import InvalidRequest, Overloaded, TiltyardError
from tiltyard.identity.canonical import Json
from tiltyard.wire.answers import UsageJson
from tiltyard.wire.phrasing import AnswerEnd, Chunk, Phrasing
from tiltyard.wire.renaming import rename
from tiltyard.wire.responses_chat import CHAT_NAMES
from tiltyard.wire.sse import frame

INCOMPLETE: Mapping[str, str] = {
    "length": "max_output_tokens",
    "content_filter": "content_filter",
    "deadline": "deadline",
}
"""`incomplete_details.reason` by finish reason; `deadline` is a word of ours."""


def response_id(generation: str) -> str:
    """The response that a generation is.

    >>> response_id("gen_01")
    'resp_01'
    """
    return generation.replace("gen_", "resp_", 1)


def generation_id(response: str) -> str:
    """The generation that a response is."""
    return response.replace("resp_", "gen_", 1)


def usage_of(usage: UsageJson) -> dict[str, Json]:
    """`usage` in a response's words."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }


class ResponsesPhrasing(Phrasing):
    """A response; `echo` is what it says of its request, `places` where the chat's messages came from."""

    def __init__(
        self, echo: Mapping[str, Json], places: Sequence[str], clock_s: Callable[[], float] = time.time
    ) -> None:
        self._echo = echo
        self._places = places
        self._clock_s = clock_s
        self._head: dict[str, Json] = {}
        self._next = 0
        self._output: list[dict[str, Json]] = []
        self._open: OpenItem | None = None
        self._calls: dict[int, OpenItem] = {}

    def rename(self, error: TiltyardError) -> None:
        """`messages[3]` becomes `input[2]`."""
        rename(error, CHAT_NAMES, self._places)

    def usage(self, usage: UsageJson) -> Mapping[str, Json]:
        """`usage` in this protocol's words."""
        return usage_of(usage)

    def begin(self, first: Chunk, usage: UsageJson) -> Iterator[bytes]:
        """The response is opened."""
        self._set_head(first)
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def frames(self, chunk: Chunk) -> Iterator[bytes]:
        """Each piece of text or of a call is a delta."""
        for choice in cast(Sequence[Mapping[str, Json]], chunk["choices"]):
            delta = cast(Mapping[str, Json], choice.get("delta") or {})
            logprobs = cast(Mapping[str, Json], choice.get("logprobs") or {})
            scored = cast(Sequence[Mapping[str, Json]], logprobs.get("content") or ())
            if (text := cast(str, delta.get("content") or "")) or scored:
                yield from self._say(text, scored)
            for call in cast(Sequence[Mapping[str, Json]], delta.get("tool_calls") or ()):
                yield from self._call(call)

    def last(self, end: AnswerEnd) -> bytes:
        """Close what is open, and say how the response ended; OpenAI's stream has no `[DONE]` here."""
        status = _status(end)
        said = () if self._output or self._open else self._say("", ())
        frames = list(said) + list(self._close("completed" if status == "completed" else "incomplete"))
        name = "response.completed" if status == "completed" else "response.incomplete"
        frames.append(self._event(name, response=self._ended(status, end)))
        return b"".join(frames)

    def failed(self, error: TiltyardError, usage: UsageJson) -> bytes:
        """`response.failed`, with what had come and its usage; the exact code is `error.tiltyard_code`."""
        frames = list(self._close("incomplete"))
        response = self._response("failed") | {"error": error_of(error), "usage": usage_of(usage)}
        return b"".join([*frames, self._event("response.failed", response=response)])

    def whole(self, answer: Chunk, end: AnswerEnd) -> Mapping[str, Json]:
        """The response of a request that is not streamed."""
        self._set_head(answer)
        choice = cast(Sequence[Mapping[str, Json]], answer["choices"])[0]
        message = cast(Mapping[str, Json], choice["message"])
        logprobs = cast(Mapping[str, Json], choice.get("logprobs") or {})
        scored = cast(Sequence[Mapping[str, Json]], logprobs.get("content") or ())
        calls = cast(Sequence[Mapping[str, Json]], message.get("tool_calls") or ())
        text = cast(str, message.get("content") or "")
        if text or not calls:
            for _ in self._say(text, scored):
                pass
        for index, call in enumerate(calls):
            for _ in self._call({"index": index, **call}):
                pass
        status = _status(end)
        for _ in self._close("completed" if status == "completed" else "incomplete"):
            pass
        return self._ended(status, end)

    def _set_head(self, chunk: Chunk) -> None:
        self._head = {
            "id": response_id(cast(str, chunk["id"])),
            "object": "response",
            "created_at": chunk["created"],
            "model": chunk["model"],
            "system_fingerprint": chunk["system_fingerprint"],
        }

    def _response(self, status: str) -> dict[str, Json]:
        return {
            **self._head,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            **self._echo,
            "output": list(self._output),
        }

    def _ended(self, status: str, end: AnswerEnd) -> dict[str, Json]:
        response = self._response(status) | {"usage": usage_of(end.usage)}
        if status == "completed":
            response["completed_at"] = int(self._clock_s())
        if (reason := INCOMPLETE.get(end.finish_reason)) is not None:
            response["incomplete_details"] = {"reason": reason}
        return response

    def _event(self, kind: str, **members: Json) -> bytes:
        data = {"type": kind, "sequence_number": self._next, **members}
        self._next += 1
        return frame(orjson.dumps(data), event=kind)

    def _item_id(self, prefix: str) -> str:
        own = cast(str, self._head["id"]).removeprefix("resp_")
        return f"{prefix}_{own}_{len(self._output)}"

    def _say(self, text: str, scored: Sequence[Mapping[str, Json]]) -> Iterator[bytes]:
        item = self._open
        if item is None or item.kind != "message":
            yield from self._close("completed")
            item = self._open = OpenItem("message", self._item_id("msg"), len(self._output))
            yield self._event("response.output_item.added", output_index=item.place, item=item.shown())
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._event("response.content_part.added", **item.address, part=part)
        item.parts.append(text)
        item.logprobs += scored
        if text or scored:
            yield self._event("response.output_text.delta", **item.address, delta=text, logprobs=scored)

    def _call(self, call: Mapping[str, Json]) -> Iterator[bytes]:
        """A piece of a call: the first one names it, all bring some of its arguments."""
        function = cast(Mapping[str, Json], call.get("function") or {})
        item = self._calls.get(cast(int, call["index"]))
        if item is None:
            yield from self._close("completed")
            item = self._open = OpenItem("function_call", self._item_id("fc"), len(self._output))
            item.call_id, item.name = cast(str, call["id"]), cast(str, function["name"])
            self._calls[cast(int, call["index"])] = item
            yield self._event("response.output_item.added", output_index=item.place, item=item.shown())
        if arguments := cast(str, function.get("arguments") or ""):
            item.parts.append(arguments)
            yield self._event(
                "response.function_call_arguments.delta",
                item_id=item.id,
                output_index=item.place,
                delta=arguments,
            )

    def _close(self, status: str) -> Iterator[bytes]:
        item, self._open = self._open, None
        if item is None:
            return
        item.status = status
        shown = item.shown()
        self._output.append(shown)
        if item.kind == "message":
            yield self._event(
                "response.output_text.done", **item.address, text=item.text, logprobs=item.logprobs
            )
            yield self._event("response.content_part.done", **item.address, part=item.part())
        else:
            yield self._event(
                "response.function_call_arguments.done",
                item_id=item.id,
                output_index=item.place,
                name=item.name,
                arguments=item.text,
            )
        yield self._event("response.output_item.done", output_index=item.place, item=shown)


def _status(end: AnswerEnd) -> str:
    if end.finish_reason == "cancelled":
        return "cancelled"
    return "incomplete" if end.finish_reason in INCOMPLETE else "completed"


class OpenItem:
    """An item of the output while it is being written."""

    def __init__(self, kind: str, item_id: str, place: int) -> None:
        self.kind = kind
        self.id = item_id
        self.place = place
        self.status = "in_progress"
        self.parts: list[str] = []
        self.logprobs: list[Mapping[str, Json]] = []
        self.call_id = ""
        self.name = ""

    @property
    def text(self) -> str:
        """Text or arguments so far."""
        return "".join(self.parts)

    @property
    def address(self) -> dict[str, Json]:
        """How an event names the message's only part."""
        return {"item_id": self.id, "output_index": self.place, "content_index": 0}

    def part(self) -> dict[str, Json]:
        """The message's part."""
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def shown(self) -> dict[str, Json]:
        """The item as it stands in `output`."""
        if self.kind == "message":
            content: list[Json] = [self.part()] if self.status != "in_progress" else []
            return {
                "id": self.id,
                "type": "message",
                "status": self.status,
                "role": "assistant",
                "content": content,
            }
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.text,
        }


def error_of(error: TiltyardError) -> dict[str, Json]:
    """`error` of a failed response: OpenAI's few codes, and ours beside them."""
    code = "server_error"
    if isinstance(error, Overloaded):
        code = "rate_limit_exceeded"
    elif isinstance(error, InvalidRequest):
        code = "invalid_prompt"
    return {"code": code, "message": error.message, "tiltyard_code": error.code}

"""How a protocol words an answer: whole, as frames of a stream, and when it fails.

Every protocol is served by the one way of a chat request; a phrasing turns its frames into the protocol's own.
It is pure, and made anew for each answer, since it may remember what it has said.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import orjson

from tiltyard.errors import TiltyardError, to_http
from tiltyard.identity.canonical import Json
from tiltyard.wire.answers import UsageJson
from tiltyard.wire.sse import DONE_FRAME, frame

Chunk: TypeAlias = dict[str, Json]
"""One frame of a chat or completion stream, or a whole answer, in OpenAI's shape."""


class AnswerEnd(NamedTuple):
    """How an answer ended, as far as it is known: of a request with `n` answers, the first one."""

    finish_reason: str
    """`stop`, `length`, `tool_calls`, `content_filter`, `deadline` or `cancelled`."""
    stop_match: str | None
    """The stop string that ended it, if one did."""
    usage: UsageJson


class Refusal(NamedTuple):
    """An HTTP error in a protocol's words."""

    status: int
    headers: Mapping[str, str]
    body: Mapping[str, Json]


class Phrasing(ABC):
    """One protocol's words for one answer."""

    def begin(self, first: Chunk, usage: UsageJson) -> Iterator[bytes]:
        """What comes before the first frame, which is known already; `usage` is of the prompt."""
        return iter(())

    @abstractmethod
    def frames(self, chunk: Chunk) -> Iterator[bytes]:
        """The frames that one frame of the chat stream becomes; none for some."""

    @abstractmethod
    def last(self, end: AnswerEnd) -> bytes:
        """What follows the last frame of an answer that ended as it should."""

    @abstractmethod
    def failed(self, error: TiltyardError, usage: UsageJson) -> bytes:
        """The last frame of a stream that broke; `usage` is of what had come."""

    @abstractmethod
    def whole(self, answer: Chunk, end: AnswerEnd) -> Mapping[str, Json]:
        """The answer of a request that is not streamed."""

    def usage(self, usage: UsageJson) -> Mapping[str, Json]:
        """`usage` in this protocol's words."""
        return cast(Mapping[str, Json], usage)

    def refused(self, error: TiltyardError) -> Refusal:
        """The answer of a request that failed before a byte of it was sent."""
        return openai_refusal(error)

    def rename(self, error: TiltyardError) -> None:
        """Make an error name the field as this protocol's clients wrote it."""
        return


def openai_refusal(error: TiltyardError) -> Refusal:
    """An error in OpenAI's shape."""
    status, headers, body = to_http(error)
    inner = body["error"]
    shown: dict[str, Json] = {
        "message": inner["message"],
        "type": inner["type"],
        "param": inner["param"],
        "code": inner["code"],
    }
    return Refusal(status, headers, {"error": shown})


class OpenAiPhrasing(Phrasing):
    """`/v1/chat/completions` and `/v1/completions`: the frames as they are.

    A stream that breaks ends with an error frame, which has the usage of what had come, and no `[DONE]`.
    """

    def __init__(self, *, include_usage: bool) -> None:
        self._include_usage = include_usage

    def frames(self, chunk: Chunk) -> Iterator[bytes]:
        """The frame itself; the one without choices carries the usage, for who asked for it.

        While a call of a tool is being read there is nothing to say, and nothing is said.
        """
        choices = cast(Sequence[Chunk], chunk["choices"])
        if any(map(_says_something, choices)) if choices else self._include_usage:
            yield frame(orjson.dumps(chunk))

    def last(self, end: AnswerEnd) -> bytes:
        """`[DONE]`."""
        return DONE_FRAME

    def failed(self, error: TiltyardError, usage: UsageJson) -> bytes:
        """The error, and the usage beside it."""
        return frame(orjson.dumps({**openai_refusal(error).body, "usage": self.usage(usage)}))

    def whole(self, answer: Chunk, end: AnswerEnd) -> Mapping[str, Json]:
        """The answer itself."""
        return answer


def _says_something(choice: Chunk) -> bool:
    return choice.get("delta") != {} or bool(choice.get("finish_reason") or choice.get("logprobs"))

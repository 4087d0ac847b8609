"""The answers of OpenAI's API as we write them: chunks of a stream, whole answers, usage."""

from __future__ import annotations

from typing import Literal, NotRequired, TypeAlias, TypedDict

FinishReason = Literal["stop", "length", "tool_calls", "deadline"]


class TopLogprob(TypedDict):
    """One of the likeliest tokens at a position."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """The token of a position, with the likeliest ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """`logprobs` of a chat choice."""

    content: list[TokenLogprob] | None
    refusal: None


class CompletionLogprobs(TypedDict):
    """`logprobs` of a plain completion choice."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class RankedLogprob(TypedDict):
    """A token at one place of a prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprob: TypeAlias = dict[str, RankedLogprob]
"""The token of a place and the likeliest ones, by id."""


class PromptDetails(TypedDict):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class UsageJson(TypedDict):
    """`usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class FunctionDelta(TypedDict, total=False):
    """`function` of a call in a chunk; the name only in the first one of a call."""

    name: str
    arguments: str


class ToolCallDelta(TypedDict, total=False):
    """A piece of a call; id and type only in the first one."""

    index: int
    id: str
    type: Literal["function"]
    function: FunctionDelta


class Delta(TypedDict, total=False):
    """`delta` of a chat chunk; the role only in the first one of a choice."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCallDelta]


class ChunkChoice(TypedDict):
    """One choice of a chat chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(TypedDict):
    """One frame of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: UsageJson | None


class WholeFunction(TypedDict):
    """`function` of a whole call."""

    name: str
    arguments: str


class WholeToolCall(TypedDict):
    """One call of a whole chat answer."""

    id: str
    type: Literal["function"]
    function: WholeFunction


class Message(TypedDict):
    """`message` of a whole chat answer; `tool_calls` only where there are some, `content` null only then."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[WholeToolCall]]


class ChatChoice(TypedDict):
    """One choice of a whole chat answer."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(TypedDict):
    """A whole chat answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageJson


class CompletionChoice(TypedDict):
    """One choice of a plain completion, whole or a chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class Completion(TypedDict):
    """A plain completion, whole or a chunk."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageJson | None


def usage_json(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> UsageJson:
    """Write `usage`.

    >>> usage_json(5, 3, 4)["total_tokens"]
    8
    """
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }

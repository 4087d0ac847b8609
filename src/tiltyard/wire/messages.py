"""`POST /v1/messages`: Anthropic's request, field by field, and the chat request that it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import orjson
from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json
from tiltyard.wire.openai import (
    MAX_MESSAGES,
    MAX_SEED,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    MAX_USER_CHARACTERS,
    Strict,
)
from tiltyard.wire.problems import NOT_SUPPORTED, problem
from tiltyard.wire.refused import Table, drop_what_asks_for_nothing

MESSAGES_REFUSED: Table = {
    "cache_control": ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"}),
    "container": (),
    "context_management": ({}, {"edits": []}),
    "diagnostics": ({},),
    "inference_geo": (),
    "mcp_servers": ([],),
    "output_format": (),
    "speed": ("standard",),
    "thinking": ({"type": "disabled"},),
    "user_profile_id": (),
    "workspace_id": (),
}
"""What Anthropic's API knows and we do not honour, with the values that ask for nothing: prefixes are cached anyway."""
BLOCK_REFUSED: Table = {
    "cache_control": ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"}),
    "caller": ({"type": "direct"},),
    "citations": ([], {"enabled": False}),
}


class Block(Strict):
    """A part of a message."""

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: object) -> object:
        return drop_what_asks_for_nothing(value, cls.model_fields, BLOCK_REFUSED)


class TextBlock(Block):
    """Words."""

    type: Literal["text"]
    text: str


def _only_text(value: object) -> object:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "text":
        raise PydanticCustomError(
            NOT_SUPPORTED,
            "blocks of type {kind} are not supported here yet; only text",
            {"kind": repr(kind[:40])},
        )
    return value


def _as_blocks(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Texts = Annotated[list[Annotated[TextBlock, BeforeValidator(_only_text)]], BeforeValidator(_as_blocks)]


class ToolUseBlock(Block):
    """A call that an earlier answer made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, JsonValue]


class ToolResultBlock(Block):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = Field(default=[])
    is_error: bool = False


_BLOCKS: Mapping[str, type[TextBlock | ToolUseBlock | ToolResultBlock]] = {
    "text": TextBlock,
    "tool_use": ToolUseBlock,
    "tool_result": ToolResultBlock,
}


def _block(value: object) -> TextBlock | ToolUseBlock | ToolResultBlock:
    """Read a block as the one type that it says it is, so that an error speaks of that type alone."""
    if not isinstance(value, dict):
        raise PydanticCustomError("block", "a block must be an object")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _BLOCKS:
        raise PydanticCustomError(
            NOT_SUPPORTED,
            "blocks of type {kind} are not supported yet; only {kinds}",
            {"kind": repr(kind)[:42], "kinds": ", ".join(_BLOCKS)},
        )
    return _BLOCKS[kind].model_validate(value)


Blocks = Annotated[
    list[
        Annotated[
            TextBlock | ToolUseBlock | ToolResultBlock,
            PlainValidator(_block, json_schema_input_type=TextBlock | ToolUseBlock | ToolResultBlock),
        ]
    ],
    BeforeValidator(_as_blocks),
]
"""A string is one block of text."""


class MessageTurn(Strict):
    """One turn."""

    role: Literal["user", "assistant"]
    content: Blocks


class MessageTool(Strict):
    """A tool of the client's own; Anthropic's server tools are refused by their type."""

    name: str = Field(min_length=1, max_length=128)
    input_schema: dict[str, JsonValue]
    description: str | None = None
    type: Literal["custom"] = "custom"
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: object) -> object:
        return drop_what_asks_for_nothing(value, cls.model_fields, BLOCK_REFUSED)


class MessageToolChoice(Strict):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class OutputFormat(Strict):
    """`output_config.format`: the answer's form."""

    type: Literal["json_schema"]
    schema_: dict[str, JsonValue] = Field(alias="schema")


class OutputConfig(Strict):
    """`output_config`."""

    format: OutputFormat | None = None


class MessageMetadata(Strict):
    """`metadata`."""

    user_id: str | None = Field(default=None, min_length=1, max_length=MAX_USER_CHARACTERS)
    """The data subject, as `user` in a chat."""


class Conversation(Strict):
    """What a request and a count of tokens share."""

    model: str = Field(min_length=1, max_length=256)
    messages: list[MessageTurn] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Texts | None = None
    tools: list[MessageTool] = Field(default=[])
    tool_choice: MessageToolChoice | None = None
    output_config: OutputConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: object) -> object:
        return drop_what_asks_for_nothing(value, cls.model_fields, MESSAGES_REFUSED)


class MessagesRequest(Conversation):
    """`POST /v1/messages`."""

    max_tokens: int = Field(ge=1, le=2**31 - 1)
    stream: bool = False
    stop_sequences: list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]] = Field(
        default=[], max_length=MAX_STOPS
    )
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=2**31 - 1)
    metadata: MessageMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    """Both are class `interactive`."""
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)


class CountTokensRequest(Conversation):
    """`POST /v1/messages/count_tokens`."""


CHAT_NAMES: Mapping[str, str] = {
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "messages[].tool_call_id": "messages[].tool_use_id",
    "tools[].function": "tools[]",
    "tools[].function.parameters": "tools[].input_schema",
}
"""The chat request's fields as an Anthropic client knows them."""


class ChatFields(NamedTuple):
    """A chat request that is still to be checked, and where its messages came from."""

    body: dict[str, Json]
    places: list[str]


def messages_request(value: Mapping[str, Json]) -> MessagesRequest:
    """Check a request that was read; raises `InvalidRequest` or `UnknownField` naming the field."""
    try:
        return MessagesRequest.model_validate(dict(value))
    except ValidationError as error:
        raise problem(error, MessagesRequest.model_fields) from error


def count_request(value: Mapping[str, Json]) -> CountTokensRequest:
    """Check a request to count tokens; raises as `messages_request` does."""
    try:
        return CountTokensRequest.model_validate(dict(value))
    except ValidationError as error:
        raise problem(error, CountTokensRequest.model_fields) from error


def to_chat(asked: Conversation) -> ChatFields:
    """The chat request that a message is made by.

    Raises `UnknownField` for a conversation that ends with the assistant: going on from words that are put into
    its mouth is not honoured.
    """
    messages: list[Json] = []
    places: list[str] = []
    if asked.system is not None:
        messages.append({"role": "system", "content": _text(asked.system)})
        places.append("system")
    for index, turn in enumerate(asked.messages):
        for message, place in _messages(turn, f"messages[{index}]"):
            messages.append(message)
            places.append(place)
    if asked.messages[-1].role == "assistant":
        raise InvalidRequest(
            f"messages[{len(asked.messages) - 1}] is the assistant's; the last message must be the user's: "
            "going on from a given beginning is not supported yet",
            param=f"messages[{len(asked.messages) - 1}]",
            code="unsupported_parameter",
        )
    body: dict[str, Json] = {"model": asked.model, "messages": messages}
    if asked.output_config is not None and (wanted := asked.output_config.format) is not None:
        schema: Json = {"name": "answer", "schema": wanted.schema_}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if asked.tools:
        body["tools"] = [_tool(tool) for tool in asked.tools]
    if (choice := asked.tool_choice) is not None:
        body |= _choice(choice)
        if not asked.tools and choice.type in ("any", "tool"):
            raise InvalidRequest("tool_choice asks for a tool and tools has none", param="tool_choice")
    if isinstance(asked, MessagesRequest):
        body |= _generation(asked)
    return ChatFields({name: value for name, value in body.items() if value is not None}, places)


def _generation(asked: MessagesRequest) -> dict[str, Json]:
    return {
        "stream": asked.stream,
        "max_tokens": asked.max_tokens,
        "stop": asked.stop_sequences or None,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k,
        "seed": asked.seed,
        "user": None if asked.metadata is None else asked.metadata.user_id,
    }


def _messages(turn: MessageTurn, place: str) -> list[tuple[dict[str, Json], str]]:
    """A turn as chat messages, each with its place: results of tools are messages of their own, before the user's words."""
    words = [block for block in turn.content if isinstance(block, TextBlock)]
    if turn.role == "assistant":
        calls: list[Json] = [_call(block, place) for block in turn.content if isinstance(block, ToolUseBlock)]
        if any(isinstance(block, ToolResultBlock) for block in turn.content):
            raise InvalidRequest(f"{place}: a tool_result stands in a turn of the user", param=place)
        message: dict[str, Json] = {"role": "assistant", "content": _text(words)}
        called = {**message, "content": _text(words) or None, "tool_calls": calls}
        return [(called if calls else message, place)]
    if any(isinstance(block, ToolUseBlock) for block in turn.content):
        raise InvalidRequest(f"{place}: a tool_use stands in a turn of the assistant", param=place)
    results: list[tuple[dict[str, Json], str]] = [
        (
            {"role": "tool", "tool_call_id": block.tool_use_id, "content": _text(block.content)},
            f"{place}.content[{number}]",
        )
        for number, block in enumerate(turn.content)
        if isinstance(block, ToolResultBlock)
    ]
    said: dict[str, Json] = {"role": "user", "content": _text(words)}
    return [*results, (said, place)] if words or not results else results


def _call(block: ToolUseBlock, place: str) -> dict[str, Json]:
    try:
        arguments = orjson.dumps(block.input).decode()
    except TypeError as error:  # nested deeper than the writer goes
        raise InvalidRequest(
            f"the input of {block.id[:40]!r} cannot be written: {error}", param=place
        ) from error
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _text(blocks: Sequence[TextBlock]) -> str:
    return "\n".join(block.text for block in blocks)


def _tool(tool: MessageTool) -> dict[str, Json]:
    function: dict[str, Json] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: MessageToolChoice) -> dict[str, Json]:
    if (choice.type == "tool") != (choice.name is not None):
        raise InvalidRequest("tool_choice names a tool exactly if its type is tool", param="tool_choice.name")
    name: Json = {"type": "function", "function": {"name": choice.name}}
    meant: Json = {"any": "required", "auto": "auto", "none": "none"}.get(choice.type, name)
    chosen: dict[str, Json] = {"tool_choice": meant}
    if choice.disable_parallel_tool_use:
        chosen["parallel_tool_calls"] = False
    return chosen

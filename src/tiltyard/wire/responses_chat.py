"""The chat request that a response is made by, and what a response tells of its own request.

Tools and their calls become the chat request's own, which decides whether they are honoured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import JsonValue

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json
from tiltyard.wire.responses import (
    FunctionCallItem,
    FunctionOutputItem,
    MessageItem,
    ResponsesRequest,
    TextPart,
)

CHAT_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "logprobs": "top_logprobs",
    "messages[].tool_call_id": "messages[].call_id",
    "tools[].function": "tools[]",
}
"""The chat request's fields as a response's client knows them."""


class ChatFields(NamedTuple):
    """A chat request that is still to be checked, and where its messages came from."""

    body: dict[str, Json]
    places: list[str]
    """`places[i]` is the client's name of `messages[i]`."""


@dataclass(frozen=True)
class Earlier:
    """The conversation that a response goes on from: messages as a chat request has them."""

    messages: Sequence[Mapping[str, Json]] = ()


def to_chat(asked: ResponsesRequest, earlier: Earlier) -> ChatFields:
    """The chat request that a response is made by."""
    messages: list[Mapping[str, Json]] = []
    places: list[str] = []

    def say(message: Mapping[str, Json], place: str) -> None:
        messages.append(message)
        places.append(place)

    if asked.instructions is not None:
        say({"role": "system", "content": asked.instructions}, "instructions")
    for message in earlier.messages:
        say(message, "previous_response_id")
    for index, item in enumerate(asked.input):
        if isinstance(item, FunctionCallItem) and messages and messages[-1].get("tool_calls"):
            calls = messages[-1]["tool_calls"]  # calls of one turn are one message in a chat
            messages[-1] = {**messages[-1], "tool_calls": [*_list(calls), _call(item)]}
        else:
            say(_message(item), f"input[{index}]")
    body: dict[str, Json] = {
        "model": asked.model,
        "messages": messages,
        "stream": asked.stream,
        "max_tokens": asked.max_output_tokens,
        "user": asked.user or asked.safety_identifier,
    }
    if asked.wants_logprobs:
        body |= {"logprobs": True, "top_logprobs": asked.top_logprobs or 0}
    if asked.text is not None and asked.text.format is not None:
        body["response_format"] = asked.text.format.to_chat()
    if asked.tools:
        body["tools"] = [_tool(tool) for tool in asked.tools]
        body |= {"tool_choice": _choice(asked.tool_choice), "parallel_tool_calls": asked.parallel_tool_calls}
    elif asked.tool_choice not in ("auto", "none"):
        raise InvalidRequest("tool_choice asks for a tool and tools has none", param="tool_choice")
    for name in ("temperature", "top_p", "seed", "top_k", "min_p", "repetition_penalty", "presence_penalty",
                 "frequency_penalty", "service_tier"):  # fmt: skip
        body[name] = getattr(asked, name)
    if asked.stop:
        body["stop"] = asked.stop
    return ChatFields({name: value for name, value in body.items() if value is not None}, places)


def echoed(asked: ResponsesRequest) -> dict[str, Json]:
    """What a response says of its request: every member that OpenAI's clients expect."""
    text: dict[str, Json] = {"format": {"type": "text"}}
    if asked.text is not None and (wanted := asked.text.format) is not None:
        text = {"format": wanted.model_dump(mode="json", by_alias=True, exclude_none=True)}
    return {
        "background": False,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": None,
        "metadata": asked.metadata,
        "parallel_tool_calls": asked.parallel_tool_calls,
        "previous_response_id": asked.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": asked.safety_identifier,
        "service_tier": asked.service_tier or "default",
        "store": asked.store,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "text": text,
        "tool_choice": asked.tool_choice,
        "tools": asked.tools,
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "truncation": "disabled",
        **({} if asked.user is None else {"user": asked.user}),
    }


def _message(item: MessageItem | FunctionCallItem | FunctionOutputItem) -> dict[str, Json]:
    match item:
        case MessageItem():
            return {"role": item.role, "content": _text(item.content)}
        case FunctionCallItem():
            return {"role": "assistant", "content": None, "tool_calls": [_call(item)]}
        case FunctionOutputItem():
            return {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}


def _call(item: FunctionCallItem) -> dict[str, Json]:
    return {
        "id": item.call_id,
        "type": "function",
        "function": {"name": item.name, "arguments": item.arguments},
    }


def _text(content: Sequence[TextPart]) -> str:
    return "\n".join(part.text for part in content)


def _list(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else []


def _tool(tool: Mapping[str, JsonValue]) -> dict[str, Json]:
    """A function's members move one level down; other kinds are left for the chat request to refuse."""
    if tool.get("type") != "function":
        return dict(tool)
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}


def _choice(choice: JsonValue) -> Json:
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return choice
    return {"type": "function", "function": {"name": choice.get("name")}}

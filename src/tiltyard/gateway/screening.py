"""What a tenant's terms do with personal data in a request, before it is served or anything is written.

The gateway does not know how personal data is found: it is given something that makes one `Screen` for each request. A
client sends the whole conversation each time, so a placeholder means the same person over all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, cast

import orjson

from tiltyard.errors import ConfigurationError, InvalidRequest
from tiltyard.events.schema import DataPolicy
from tiltyard.identity.canonical import Json
from tiltyard.wire.openai import ChatCompletionRequest, ChatMessage, CompletionRequest

RESPONSE = "response"
"""The member of what the vault keeps beside a prompt that echoes a request of the responses API, as text."""


class Screened(Protocol):
    """A text after the policy."""

    @property
    def text(self) -> str:
        """What is served."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How much of each kind was found."""


Screen = Callable[[str], Screened]
"""Screens the texts of one request in their order; raises `InvalidRequest` where the policy refuses."""
MakeScreen = Callable[[DataPolicy], Screen]


class Served(NamedTuple):
    """A request after the policy."""

    request: ChatCompletionRequest | CompletionRequest
    kept: Mapping[str, Json]
    found: dict[str, int]
    """Personal data by kind."""


def served(
    request: ChatCompletionRequest | CompletionRequest,
    kept: Mapping[str, Json],
    policy: DataPolicy,
    make: MakeScreen | None,
) -> Served:
    """Screen every text of a request that a model reads or the vault keeps; `kept` is what is kept beside the prompt.

    Raises `InvalidRequest` for personal data under the policy `refuse`, and for token ids, which nobody can screen.
    """
    if policy == "keep":
        return Served(request, kept, {})
    if make is None:
        raise ConfigurationError(f"the policy {policy} needs something that finds personal data")
    screen, found = make(policy), Counter[str]()

    def text(words: str) -> str:
        screened = screen(words)
        found.update(screened.counts)
        return screened.text

    if isinstance(request, ChatCompletionRequest):
        messages = [_message(one, text) for one in request.messages]
        after: ChatCompletionRequest | CompletionRequest = request.model_copy(update={"messages": messages})
    elif isinstance(request.prompt, str):
        after = request.model_copy(update={"prompt": text(request.prompt)})
    else:
        raise InvalidRequest(
            "prompt is token ids, in which this tenant's terms could find no personal data; send text",
            param="prompt",
        )
    return Served(after, {name: _beside(name, value, text) for name, value in kept.items()}, dict(found))


def _message(message: ChatMessage, text: Callable[[str], str]) -> ChatMessage:
    calls = [
        call.model_copy(
            update={"function": call.function.model_copy(update={"arguments": text(call.function.arguments)})}
        )
        for call in message.tool_calls
    ]
    content = None if message.content is None else text(message.content)
    return message.model_copy(update={"content": content, "tool_calls": calls})


def _beside(name: str, value: Json, text: Callable[[str], str]) -> Json:
    if name != RESPONSE or not isinstance(value, str):
        return value
    echo = cast(dict[str, Json], orjson.loads(value))
    if isinstance(instructions := echo.get("instructions"), str):
        echo["instructions"] = text(instructions)
    if isinstance(metadata := echo.get("metadata"), Mapping):
        echo["metadata"] = {
            key: text(member) if isinstance(member, str) else member for key, member in metadata.items()
        }
    return orjson.dumps(echo).decode()

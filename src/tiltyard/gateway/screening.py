"""What a tenant's terms do with personal data in a request, before it is served or anything is written.

The gateway does not know how personal data is found: it is given something that makes one `Screen` for each request. A
client sends the whole conversation each time, so a placeholder means the same person over all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias, cast

import orjson
from pydantic import JsonValue

from tiltyard.errors import ConfigurationError, InvalidRequest
from tiltyard.events.schema import DataPolicy
from tiltyard.identity.canonical import Json
from tiltyard.wire.embeddings import EmbeddingsRequest
from tiltyard.wire.openai import ChatCompletionRequest, ChatMessage, CompletionRequest
from tiltyard.wire.structured import JsonSchemaBody, Schema
from tiltyard.wire.tools import Tool

RESPONSE = "response"
"""The member of what the vault keeps beside a prompt that echoes a request of the responses API, as text."""


_ECHOED = ("instructions", "metadata", "text", "tools", "tool_choice")
"""Members of that echo in which people write."""


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
Asked: TypeAlias = ChatCompletionRequest | CompletionRequest
Text: TypeAlias = Callable[[str], str]


class Served(NamedTuple):
    """A request after the policy."""

    request: Asked
    kept: Mapping[str, Json]
    found: dict[str, int]
    """Personal data by kind."""


def embedded(request: EmbeddingsRequest, policy: DataPolicy, make: MakeScreen | None) -> EmbeddingsRequest:
    """Screen the texts that are to become vectors; raises as `served`."""
    if make is None:
        raise ConfigurationError(f"the policy {policy} needs something that finds personal data")
    screen = make(policy)
    texts: list[str] = []
    for one in request.input:
        if not isinstance(one, str):
            raise InvalidRequest(
                "input is token ids, in which this tenant's terms could find no personal data; send text",
                param="input",
            )
        texts.append(screen(one).text)
    return request.model_copy(update={"input": texts})


def served(
    request: Asked,
    kept: Mapping[str, Json],
    policy: DataPolicy,
    make: MakeScreen | None,
) -> Served:
    """Screen every text of a request that a model reads or the vault keeps; `kept` is what is kept beside the prompt.

    Raises `InvalidRequest` for personal data under the policy `refuse`, and for token ids, which nobody can screen.
    """
    if make is None:
        raise ConfigurationError(f"the policy {policy} needs something that finds personal data")
    screen, found = make(policy), Counter[str]()

    def text(words: str) -> str:
        screened = screen(words)
        found.update(screened.counts)
        return screened.text

    if isinstance(request, CompletionRequest) and not isinstance(request.prompt, str):
        raise InvalidRequest(
            "prompt is token ids, in which this tenant's terms could find no personal data; send text",
            param="prompt",
        )
    after = request.model_copy(update={**_words(request, text), **_form(request, text)})
    for name in ("structure", "tool_use"):  # computed from what was there before
        after.__dict__.pop(name, None)
    return Served(after, {name: _beside(name, value, text) for name, value in kept.items()}, dict(found))


def _words(request: Asked, text: Text) -> dict[str, object]:
    """What is said, and where an answer ends."""
    said: dict[str, object]
    if isinstance(request, CompletionRequest):
        said = {"prompt": text(str(request.prompt))}
    else:
        said = {"messages": [_message(one, text) for one in request.messages]}
    stops = {
        "stop": [text(one) for one in request.stop],
        "bad_words": [text(one) for one in request.bad_words],
    }
    return {**said, **stops}


def _form(request: Asked, text: Text) -> dict[str, object]:
    """What may be called, and what form an answer has: a model reads the one and repeats the other."""
    form: dict[str, object] = {}
    if isinstance(request, ChatCompletionRequest) and request.tools:
        form["tools"] = [_tool(one, text) for one in request.tools]
    if (asked := request.response_format) is not None:
        form["response_format"] = asked.model_copy(
            update={
                "json_schema": asked.json_schema and _schema_body(asked.json_schema, text),
                "regex": _unchanged(asked.regex, text, "response_format.regex"),
                "grammar": _unchanged(asked.grammar, text, "response_format.grammar"),
            }
        )
    if (outputs := request.structured_outputs) is not None:
        form["structured_outputs"] = outputs.model_copy(
            update={
                "json_": cast(Schema | None, _all_of(outputs.json_, text)),
                "regex": _unchanged(outputs.regex, text, "structured_outputs.regex"),
                "grammar": _unchanged(outputs.grammar, text, "structured_outputs.grammar"),
                "choice": outputs.choice and [text(one) for one in outputs.choice],
            }
        )
    return form


def _message(message: ChatMessage, text: Text) -> ChatMessage:
    def maybe(words: str | None) -> str | None:
        return None if words is None else text(words)

    calls = [
        call.model_copy(
            update={
                "id": text(call.id),
                "function": call.function.model_copy(update={"arguments": text(call.function.arguments)}),
            }
        )
        for call in message.tool_calls
    ]
    return message.model_copy(
        update={
            "content": maybe(message.content),
            "tool_calls": calls,
            "tool_call_id": maybe(message.tool_call_id),
            "name": maybe(message.name),
        }
    )


def _tool(tool: Tool, text: Text) -> Tool:
    function = tool.function
    told = None if function.description is None else text(function.description)
    changed = {"description": told, "parameters": _all_of(function.parameters, text)}
    return tool.model_copy(update={"function": function.model_copy(update=changed)})


def _schema_body(body: JsonSchemaBody, text: Text) -> JsonSchemaBody:
    told = None if body.description is None else text(body.description)
    changed = {"name": text(body.name), "description": told, "schema_": _all_of(body.schema_, text)}
    return body.model_copy(update=changed)


def _all_of(value: JsonValue, text: Text) -> JsonValue:
    """Every text in a JSON value, names of members too."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return [_all_of(one, text) for one in value]
    if isinstance(value, dict):
        return {text(name): _all_of(one, text) for name, one in value.items()}
    return value


def _unchanged(source: str | None, text: Text, param: str) -> str | None:
    """A regex or a grammar, in which a placeholder would mean something else; raises `InvalidRequest` where it needs one."""
    if source is not None and text(source) != source:
        raise InvalidRequest(
            f"{param} holds what may name or unlock a person, and cannot be redacted without meaning something else; "
            "take it out",
            param=param,
        )
    return source


def _beside(name: str, value: Json, text: Text) -> Json:
    if name != RESPONSE or not isinstance(value, str):
        return value
    echo = cast(dict[str, JsonValue], orjson.loads(value))
    said = {name: _all_of(echo[name], text) for name in _ECHOED if name in echo}
    return orjson.dumps({**echo, **said}).decode()

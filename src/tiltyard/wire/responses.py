"""`POST /v1/responses`: the request, field by field; `responses_chat.py` has the chat request that it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
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
    MAX_TOP_LOGPROBS,
    MAX_USER_CHARACTERS,
    Strict,
)
from tiltyard.wire.problems import NOT_SUPPORTED, problem
from tiltyard.wire.refused import Table, drop_what_asks_for_nothing

RESPONSE_ID = r"^resp_[0-9a-f]{32}$"
MAX_METADATA = 16

RESPONSES_REFUSED: Table = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning": ({}, {"effort": None}, {"effort": "none"}, {"effort": None, "summary": None}),
    "truncation": ("disabled",),
}
"""What OpenAI's Responses API knows and we do not honour, with the values that ask for nothing."""
TEXT_REFUSED: Table = {"verbosity": ("medium",)}
INCLUDE = (
    "message.output_text.logprobs",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""All but the first are parts of items that never occur here."""


def _only(kinds: tuple[str, ...], what: str) -> BeforeValidator:
    """Refuse items of other types by name, before their members are looked at."""

    def check(value: object) -> object:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            raise PydanticCustomError(
                NOT_SUPPORTED,
                "{what} of type {kind} are not supported yet; only {kinds}",
                {"what": what, "kind": repr(kind[:40]), "kinds": ", ".join(kinds)},
            )
        return value

    return BeforeValidator(check)


class TextPart(Strict):
    """A part of a message; what only an answer's part has (`annotations`, `logprobs`) is taken and not needed."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[JsonValue] | None = None
    logprobs: list[JsonValue] | None = None


def _as_parts(value: object) -> object:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


Parts = Annotated[
    list[Annotated[TextPart, _only(("input_text", "output_text"), "parts")]], BeforeValidator(_as_parts)
]
"""A string is one part."""


class MessageItem(Strict):
    """A message; of an earlier answer with its id and status."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class FunctionCallItem(Strict):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class FunctionOutputItem(Strict):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts
    id: str | None = None
    status: str | None = None


_ITEMS: Mapping[str, type[MessageItem | FunctionCallItem | FunctionOutputItem]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionOutputItem,
}


def _item(value: object) -> MessageItem | FunctionCallItem | FunctionOutputItem:
    """Read an item as the one type that it says it is, so that an error speaks of that type alone."""
    if not isinstance(value, dict):
        raise PydanticCustomError("item", "an item must be an object")
    kind = value.get("type", "message")
    if not isinstance(kind, str) or kind not in _ITEMS:
        raise PydanticCustomError(
            NOT_SUPPORTED,
            "items of type {kind} are not supported yet; only {kinds}",
            {"kind": repr(kind)[:42], "kinds": ", ".join(_ITEMS)},
        )
    return _ITEMS[kind].model_validate(value)


Item = Annotated[
    MessageItem | FunctionCallItem | FunctionOutputItem,
    PlainValidator(_item, json_schema_input_type=MessageItem | FunctionCallItem | FunctionOutputItem),
]


def _as_items(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _choice_of_tool(value: object) -> object:
    if not isinstance(value, str | dict):
        raise PydanticCustomError("tool_choice", "it must be a string or an object")
    return value


class TextFormat(Strict):
    """`text.format`: what `response_format` is in a chat, one level flatter."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(default=None, min_length=1, max_length=64)
    description: str | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_its_members(self) -> Self:
        if (self.schema_ is None) == (self.type == "json_schema"):
            wants = "needs" if self.schema_ is None else "has no"
            raise InvalidRequest(
                f"text.format of type {self.type} {wants} schema", param="text.format.schema"
            )
        return self

    def to_chat(self) -> dict[str, Json]:
        """`response_format`."""
        if self.type != "json_schema":
            return {"type": self.type}
        body: dict[str, Json] = {"name": self.name or "answer", "schema": self.schema_, "strict": self.strict}
        return {"type": "json_schema", "json_schema": {k: v for k, v in body.items() if v is not None}}


class TextConfig(Strict):
    """`text`."""

    format: TextFormat | None = None

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: object) -> object:
        return drop_what_asks_for_nothing(value, cls.model_fields, TEXT_REFUSED)


class ResponseStreamOptions(Strict):
    """`stream_options` of a response."""

    include_obfuscation: Literal[False] = False


class ResponsesRequest(Strict):
    """`POST /v1/responses`."""

    model: str = Field(min_length=1, max_length=256)
    input: Annotated[list[Item], BeforeValidator(_as_items), Field(min_length=1, max_length=MAX_MESSAGES)]
    """A string is one message of the user."""
    instructions: str | None = None
    """A system message in front; not carried over by `previous_response_id`."""
    previous_response_id: str | None = Field(default=None, pattern=RESPONSE_ID)
    store: bool = True
    """Whether the response can be asked for, and gone on from, by its id."""
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    include: list[Literal[INCLUDE]] = Field(default=[], max_length=len(INCLUDE))  # type: ignore[valid-type]
    text: TextConfig | None = None
    tools: list[dict[str, JsonValue]] = Field(default=[])
    tool_choice: Annotated[
        JsonValue,
        BeforeValidator(_choice_of_tool),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
    ] = "auto"
    parallel_tool_calls: bool = True
    metadata: dict[str, Annotated[str, Field(max_length=512)]] = Field(default={}, max_length=MAX_METADATA)
    """Given back with the response; up to 16 pairs."""
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    user: str | None = Field(default=None, min_length=1, max_length=MAX_USER_CHARACTERS)
    safety_identifier: str | None = Field(default=None, min_length=1, max_length=MAX_USER_CHARACTERS)
    """OpenAI's newer word for `user`."""
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    stop: list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]] = Field(
        default=[], max_length=MAX_STOPS
    )

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: object) -> object:
        return drop_what_asks_for_nothing(value, cls.model_fields, RESPONSES_REFUSED)

    @model_validator(mode="after")
    def _check_user(self) -> Self:
        if self.user is not None and self.safety_identifier not in (None, self.user):
            raise InvalidRequest(
                "user and safety_identifier name two people; they mean the same: send one", param="user"
            )
        return self

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer's tokens are scored."""
        return INCLUDE[0] in self.include or bool(self.top_logprobs)


def responses_request(value: Mapping[str, Json]) -> ResponsesRequest:
    """Check a request that was read; raises `InvalidRequest` or `UnknownField` naming the field.

    >>> responses_request({"model": "m", "input": "Hi"}).store
    True
    """
    try:
        return ResponsesRequest.model_validate(dict(value))
    except ValidationError as error:
        raise problem(error, ResponsesRequest.model_fields) from error

"""`/tokenize` and `/detokenize` in vLLM's shapes, and `/render`: what a text or a conversation becomes in tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

from pydantic import Field, JsonValue, ValidationError, model_validator

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json
from tiltyard.wire.openai import MAX_TOKEN_ID, Strict
from tiltyard.wire.problems import problem
from tiltyard.wire.refused import Table, drop_what_asks_for_nothing

MAX_TOKENS = 1 << 20
TOKENIZE_REFUSED: Table = {
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "mm_processor_kwargs": ({},),
}
"""What vLLM knows and we do not honour, with the values that ask for nothing."""


class TokenizeRequest(Strict):
    """`POST /tokenize`: either a text or a conversation."""

    model: str = Field(min_length=1, max_length=256)
    prompt: str | None = None
    messages: list[JsonValue] | None = None
    """As in a chat request, which checks them."""
    tools: list[JsonValue] | None = None
    add_special_tokens: bool | None = None
    """Whether BOS and EOS are added to a text as the model wants them (the default); a template brings its own."""
    return_token_strs: bool = False

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: object) -> object:
        return drop_what_asks_for_nothing(value, cls.model_fields, TOKENIZE_REFUSED)

    @model_validator(mode="after")
    def _either(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("send either prompt (a text) or messages (a conversation)", param="prompt")
        if self.messages is not None and self.add_special_tokens:
            raise InvalidRequest(
                "add_special_tokens is for a prompt; a conversation gets them from its template",
                param="add_special_tokens",
            )
        if self.prompt is not None and self.tools:
            raise InvalidRequest("tools are for messages; a prompt has none", param="tools")
        return self

    @property
    def chat(self) -> dict[str, Json] | None:
        """The chat request whose prompt is meant, still to be checked."""
        if self.messages is None:
            return None
        body: dict[str, Json] = {"model": self.model, "messages": self.messages}
        return body | ({"tools": self.tools} if self.tools else {})


class DetokenizeRequest(Strict):
    """`POST /detokenize`."""

    model: str = Field(min_length=1, max_length=256)
    tokens: list[Annotated[int, Field(ge=0, lt=MAX_TOKEN_ID)]] = Field(max_length=MAX_TOKENS)


class Tokenized(TypedDict):
    """The answer of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(TypedDict):
    """The answer of `/detokenize`."""

    prompt: str


class Rendered(TypedDict):
    """The answer of `/render`."""

    model: str
    system_fingerprint: str
    text: str
    token_ids: list[int]
    count: int
    max_model_len: int


def tokenize_request(value: Mapping[str, Json]) -> TokenizeRequest:
    """Check a request that was read; raises `InvalidRequest` or `UnknownField` naming the field.

    >>> tokenize_request({"model": "m", "prompt": "Hi"}).prompt
    'Hi'
    """
    try:
        return TokenizeRequest.model_validate(dict(value))
    except ValidationError as error:
        raise problem(error, TokenizeRequest.model_fields) from error


def detokenize_request(value: Mapping[str, Json]) -> DetokenizeRequest:
    """Check a request that was read; raises as `tokenize_request` does."""
    try:
        return DetokenizeRequest.model_validate(dict(value))
    except ValidationError as error:
        raise problem(error, DetokenizeRequest.model_fields) from error

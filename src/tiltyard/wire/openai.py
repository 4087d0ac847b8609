"""The requests of OpenAI's API that we honour, field by field; every other field is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.wire.decoding import Decoding
from tiltyard.wire.problems import NO_CONTROLS, NOT_SUPPORTED, parse_object, problem
from tiltyard.wire.refused import (
    CHAT_REFUSED,
    COMPLETION_REFUSED,
    MESSAGE_REFUSED,
    Table,
    drop_what_asks_for_nothing,
)
from tiltyard.wire.structured import ResponseFormat, Structure, StructuredOutputs, structure_of
from tiltyard.wire.tools import (
    MAX_CALLS,
    MAX_TOOLS,
    Tool,
    ToolCall,
    ToolChoice,
    ToolUse,
    read_choice,
    tool_use,
)

MAX_CHOICES = 16
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1_000
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 1_024
MAX_STOP_TOKENS = 128
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARACTERS = 100
MAX_ALLOWED_TOKENS = 65_536
MAX_TOKEN_ID = 2**31
MAX_MESSAGES = 4_096
MAX_SEED = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly."""
MAX_USER_CHARACTERS = 256


class Strict(BaseModel):
    """No coercion, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def _join_parts(value: object) -> object:
    """Turn a list of text parts into one string, joined by line feeds; other parts are refused."""
    if not isinstance(value, list):
        return value
    texts: list[str] = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise PydanticCustomError(
                NOT_SUPPORTED,
                "part {index} is of type {kind}; only parts of type 'text' are supported yet",
                {"index": index, "kind": repr(kind)},
            )
        if not isinstance(part.get("text"), str) or len(part) != 2:
            raise PydanticCustomError(
                "text_part", "part {index} must be {{'type': 'text', 'text': a string}}", {"index": index}
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _role(value: object) -> object:
    """`developer` is OpenAI's newer word for `system`; the models here were trained with `system`."""
    if value == "function":
        raise PydanticCustomError(
            NOT_SUPPORTED,
            "messages of role function are not supported; send role tool with a tool_call_id",
            {},
        )
    return "system" if value == "developer" else value


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _one_prompt(value: object) -> object:
    """`["text"]` and `[[1, 2]]` are one prompt; several prompts are refused."""
    if isinstance(value, list) and value and isinstance(value[0], (str, list)):
        if len(value) > 1:
            raise PydanticCustomError(
                NOT_SUPPORTED, "{count} prompts in one request are not supported yet; send them one by one",
                {"count": len(value)},
            )  # fmt: skip
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not all(_is_token_id(item) for item in value):
        raise PydanticCustomError("prompt_type", "it must be a string or a list of one or more token ids")
    return value


def _off_as_zero(value: object) -> object:
    return 0 if value == -1 and not isinstance(value, bool) else value


TokenId = Annotated[int, Field(ge=0, lt=MAX_TOKEN_ID)]


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_TOKEN_ID


def _token_ids(value: object) -> object:
    if isinstance(value, dict):
        for key in value:
            sound = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 9
            if not sound or str(int(key)) != key:  # "7" and "07" would be one token with two biases
                raise PydanticCustomError("token_id", "{key} is not a token id", {"key": repr(key)})
    return value


class ChatMessage(Strict):
    """One message; content parts have been joined to one string."""

    role: Annotated[Literal["system", "user", "assistant", "tool"], BeforeValidator(_role)]
    content: Annotated[str | None, BeforeValidator(_join_parts)] = None
    """`None` only for an assistant that called tools and said nothing."""
    tool_calls: list[ToolCall] = Field(default=[], max_length=MAX_CALLS)
    tool_call_id: str | None = Field(default=None, min_length=1, max_length=256)
    name: str | None = Field(default=None, max_length=256)
    """Of the function whose result a message is."""

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        # The openai package sends back what it has parsed itself, beside the text of it.
        value = {name: member for name, member in value.items() if name != "parsed"}
        role, called = value.get("role"), bool(value.get("tool_calls"))
        if value.get("content") is None and not (role == "assistant" and called):
            if "content" in value:
                raise PydanticCustomError(
                    "content_null", "it is null; it must be a string", {"field": "content"}
                )
            raise PydanticCustomError("missing", "it is missing", {"field": "content"})
        if role == "tool" and value.get("tool_call_id") is None:
            raise PydanticCustomError("missing", "it is missing", {"field": "tool_call_id"})
        for name, wanted in (("tool_calls", "assistant"), ("tool_call_id", "tool"), ("name", "tool")):
            if value.get(name) and role != wanted:
                raise PydanticCustomError(
                    NOT_SUPPORTED, "only messages of role {wanted} have it; remove it",
                    {"field": name, "wanted": wanted},
                )  # fmt: skip
        return drop_what_asks_for_nothing(value, cls.model_fields, MESSAGE_REFUSED)

    def to_json(self) -> dict[str, Json]:
        """What is kept of it and sent on: nothing that says nothing."""
        said: dict[str, Json] = self.model_dump(mode="json", exclude_defaults=True)
        return said


class StreamOptions(Strict):
    """`stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """vLLM's: the usage so far in every chunk."""

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: object) -> object:
        return drop_what_asks_for_nothing(value, cls.model_fields, {"include_obfuscation": (False,)})

    @model_validator(mode="after")
    def _has_usage(self) -> StreamOptions:
        if self.continuous_usage_stats and not self.include_usage:
            raise ValueError("continuous_usage_stats goes with include_usage: true")
        return self


class SamplingRequest(Strict):
    """What chat and plain completions share; `None` means that the identity's default applies."""

    REFUSED: ClassVar[Table] = {}

    model: str = Field(min_length=1, max_length=256)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: Annotated[int | None, BeforeValidator(_off_as_zero)] = Field(default=None, ge=0, le=2**31 - 1)
    """0 switches it off, and so does vLLM's -1."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]],
        BeforeValidator(_one_or_more),
        Field(max_length=MAX_STOPS),
    ] = []
    logit_bias: Annotated[
        dict[str, Annotated[float, Field(ge=-100, le=100)]],
        BeforeValidator(_token_ids),
        Field(max_length=MAX_BIASES),
    ] = {}
    user: str | None = Field(default=None, min_length=1, max_length=MAX_USER_CHARACTERS, pattern=NO_CONTROLS)
    """The data subject: the words of this request are kept under this person's key."""
    ignore_eos: bool = False
    """Go on to `max_tokens` whatever the model says; for load tests."""
    min_tokens: int = Field(default=0, ge=0, le=2**31 - 1)
    stop_token_ids: list[TokenId] = Field(default=[], max_length=MAX_STOP_TOKENS)
    include_stop_str_in_output: bool = False
    bad_words: list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARACTERS)]] = Field(
        default=[], max_length=MAX_BAD_WORDS
    )
    allowed_token_ids: list[TokenId] | None = Field(default=None, min_length=1, max_length=MAX_ALLOWED_TOKENS)
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """Only the last so many tokens of the prompt."""
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    prompt_logprobs_last: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """Only those of the prompt's last so many tokens: a warm prefix before them is not computed again."""
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: object) -> object:
        return drop_what_asks_for_nothing(value, cls.model_fields, cls.REFUSED)

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only for stream: true; remove it", param="stream_options")
        return self

    @model_validator(mode="after")
    def _check_prompt_logprobs(self) -> Self:
        if self.prompt_logprobs_last is not None and self.prompt_logprobs is None:
            raise InvalidRequest(
                f"prompt_logprobs_last is {self.prompt_logprobs_last} without prompt_logprobs; send both",
                param="prompt_logprobs_last",
            )
        return self

    @model_validator(mode="after")
    def _check_structure(self) -> Self:
        if self.structure is not None and self.ignore_eos:
            raise InvalidRequest(
                "ignore_eos goes on where a grammar has ended; send one of them", param="ignore_eos"
            )
        return self

    @cached_property
    def structure(self) -> Structure | None:
        """The demand on the answer's form, if there is one."""
        return structure_of(self.response_format, self.structured_outputs)

    @property
    def decoding(self) -> Decoding:
        """Everything that decides the answer beside sampling and seed."""
        return Decoding(
            stop=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            include_stop_str_in_output=self.include_stop_str_in_output,
            min_tokens=self.min_tokens,
            bad_words=tuple(self.bad_words),
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            logit_bias={int(token): bias for token, bias in self.logit_bias.items()},
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            structure=self.structure,
        )

    @property
    def include_usage(self) -> bool:
        """Whether the client wants the usage frame of a stream."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of the stream says how many tokens there were so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def answer_tokens(self) -> int | None:
        """The largest number of tokens of one answer, if the request names one."""
        return self.max_tokens

    def effective_sampling(self, defaults: DefaultSampling) -> DefaultSampling:
        """The request's values over the identity's defaults."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
                 "frequency_penalty")  # fmt: skip
        given: dict[str, object] = {
            name: value for name in names if (value := getattr(self, name)) is not None
        }
        if self.answer_tokens is not None:
            given["max_tokens"] = self.answer_tokens
        return defaults.model_copy(update=given)

    def _with_structure(self, prompt: dict[str, Json]) -> dict[str, Json]:
        """A schema is the client's words as much as the prompt is: both go into the vault."""
        return prompt if self.structure is None else {**prompt, "structure": self.structure.to_json()}

    def _sampling_json(self) -> dict[str, Json]:
        value: dict[str, Json] = self.model_dump(
            mode="json",
            by_alias=True,
            exclude_none=True,
            exclude_defaults=True,
            exclude={"stream", "stream_options", "max_completion_tokens", "user"},
        )
        if self.answer_tokens is not None:
            value["max_tokens"] = self.answer_tokens
        return value

    def to_worker(self, *, identity: str, seed: int) -> dict[str, Json]:
        """The body for a worker: the identity's name and the seed filled in, always streamed with usage."""
        body = self._sampling_json()
        body |= {"model": identity, "seed": seed, "stream": True, "stream_options": {"include_usage": True}}
        return body


class ChatCompletionRequest(SamplingRequest):
    """`POST /v1/chat/completions`."""

    REFUSED = CHAT_REFUSED

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: list[Tool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: Annotated[ToolChoice | None, BeforeValidator(read_choice)] = None
    """`None`: `auto` where there are tools."""
    parallel_tool_calls: bool | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    """`flex` is class `batch`; the others are `interactive` (`wire/terms.py`)."""

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise InvalidRequest(
                f"max_tokens is {self.max_tokens} and max_completion_tokens {self.max_completion_tokens}; "
                "they mean the same here: send one",
                param="max_tokens",
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest(
                f"top_logprobs is {self.top_logprobs} without logprobs: true", param="top_logprobs"
            )
        return self

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        called: set[str] = set()
        for index, message in enumerate(self.messages):
            called |= {call.id for call in message.tool_calls}
            if message.tool_call_id is not None and message.tool_call_id not in called:
                raise InvalidRequest(
                    f"messages[{index}].tool_call_id is {message.tool_call_id[:64]!r}, which no message before it called; "
                    "send the assistant's message with that call too",
                    param=f"messages[{index}].tool_call_id",
                )
        use = self.tool_use
        asked = self.structure
        if use is not None and not use.forced and asked is not None and not asked.is_json:
            raise InvalidRequest(
                f"{asked.param} holds the answer to a form that leaves no room for calls of tools; send a JSON schema, "
                'or tool_choice "none" or "required"',
                param=asked.param,
            )
        if use is not None and use.forced and self.ignore_eos:
            raise InvalidRequest(
                "ignore_eos goes on where a forced call has ended; send one of them", param="ignore_eos"
            )
        return self

    @cached_property
    def tool_use(self) -> ToolUse | None:
        """The tools that may be called, if there are some; raises `InvalidRequest` where they contradict the choice."""
        return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def answer_tokens(self) -> int | None:
        """The larger name wins nothing: both names mean the same and agree."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def served_prompt(self) -> dict[str, Json]:
        """What the vault keeps as the prompt."""
        served: dict[str, Json] = {"messages": [message.to_json() for message in self.messages]}
        if self.tool_use is not None:
            served["tool_use"] = self.tool_use.to_json()
        return self._with_structure(served)


class CompletionRequest(SamplingRequest):
    """`POST /v1/completions`: one prompt, as text or as token ids."""

    REFUSED = COMPLETION_REFUSED

    prompt: Annotated[str | list[int], BeforeValidator(_one_prompt)]
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool = False
    """Begin the answer with the prompt."""

    @property
    def served_prompt(self) -> dict[str, Json]:
        """What the vault keeps as the prompt."""
        return self._with_structure({"prompt": self.prompt})


def parse_chat_request(body: bytes) -> ChatCompletionRequest:
    """Read and check a chat request; raises `InvalidRequest` or `UnknownField` naming the field.

    >>> parse_chat_request(b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}').model
    'm'
    """
    return chat_request(parse_object(body))


def chat_request(value: Mapping[str, Json]) -> ChatCompletionRequest:
    """Check a chat request that was read already."""
    try:
        return ChatCompletionRequest.model_validate(dict(value))
    except ValidationError as error:
        raise problem(error, ChatCompletionRequest.model_fields) from error


def parse_completion_request(body: bytes) -> CompletionRequest:
    """Read and check a plain completion request; raises as `parse_chat_request` does."""
    return completion_request(parse_object(body))


def completion_request(value: Mapping[str, Json]) -> CompletionRequest:
    """Check a plain completion request that was read already."""
    try:
        return CompletionRequest.model_validate(dict(value))
    except ValidationError as error:
        raise problem(error, CompletionRequest.model_fields) from error

"""Functions that a request offers to the model, and how the model must use them: `tools`, `tool_choice`, calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Digest, digest_of
from tiltyard.wire.problems import NOT_SUPPORTED

MAX_TOOLS = 128
MAX_DEPTH = 64
"""Objects and lists within each other, of a schema or of arguments."""
MAX_CALLS = 128
"""Calls in one message of the assistant."""
FUNCTION_NAME = r"^[a-zA-Z0-9_.-]{1,64}$"
SIDE_EFFECTS = "x-tiltyard-side-effects"


class _Shape(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, protected_namespaces=(), serialize_by_alias=True
    )

    CLIENTS_OWN: ClassVar[frozenset[str]] = frozenset()
    """What the openai package puts beside the protocol's members and sends back with them; it says nothing new."""

    @model_validator(mode="before")
    @classmethod
    def _drop_what_says_nothing(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {
            name: member
            for name, member in value.items()
            if member is not None and name not in cls.CLIENTS_OWN
        }


def is_deep(value: object) -> bool:
    """Whether objects and lists lie deeper within each other than `MAX_DEPTH`.

    >>> is_deep([[]]), is_deep(orjson.loads("[" * 100 + "]" * 100))
    (False, True)
    """
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return any(isinstance(inner, dict | list) for inner in level)


def _not_too_deep(value: object) -> object:
    if is_deep(value):
        raise PydanticCustomError(
            "too_deep",
            "it is nested more than {most} levels deep; send a flatter schema",
            {"most": MAX_DEPTH},
        )
    return value


class FunctionDefinition(_Shape):
    """One function as its caller describes it."""

    name: str = Field(pattern=FUNCTION_NAME)
    description: str | None = None
    parameters: Annotated[dict[str, JsonValue] | None, BeforeValidator(_not_too_deep)] = None
    """A JSON schema; left out, the function has no parameters."""
    strict: bool | None = None
    """Whether calls that nobody forced must satisfy the schema too."""


def _function_only(value: object) -> object:
    if value != "function":
        raise PydanticCustomError(
            NOT_SUPPORTED,
            "tools of type {kind} are not supported yet; offer functions",
            {"kind": repr(value)},
        )
    return value


class Tool(_Shape):
    """One entry of `tools`."""

    type: Annotated[Literal["function"], BeforeValidator(_function_only)]
    function: FunctionDefinition
    side_effects: bool | None = Field(default=None, alias=SIDE_EFFECTS)
    """Whether running it changes something; `None`: nobody said, so it may."""

    def for_template(self) -> dict[str, object]:
        """The tool as Hugging Face's templates expect it, with the caller's own order of names."""
        function = self.function
        return {
            "type": "function",
            "function": {
                "name": function.name,
                "description": function.description or "",
                "parameters": self.parameters,
            },
        }

    @property
    def parameters(self) -> dict[str, JsonValue]:
        """The schema of the arguments."""
        if self.function.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return self.function.parameters


class NamedFunction(_Shape):
    """`function` of a named `tool_choice`."""

    name: str


class NamedChoice(_Shape):
    """A `tool_choice` that names one function."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(_Shape):
    """`allowed_tools` of a choice among some of the tools."""

    mode: Literal["auto", "required"]
    tools: list[NamedChoice] = Field(min_length=1, max_length=MAX_TOOLS)


class AllowedChoice(_Shape):
    """A `tool_choice` that shows the model all tools and lets it call some."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedChoice | AllowedChoice
_CHOICES: Mapping[object, tuple[type[NamedChoice | AllowedChoice], str]] = {
    "function": (NamedChoice, '{"type": "function", "function": {"name": a function of tools}}'),
    "allowed_tools": (
        AllowedChoice,
        '{"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [{"type": "function", '
        '"function": {"name": a function of tools}}]}}',
    ),
}


def read_choice(value: object) -> object:
    """Say in one sentence what a `tool_choice` may be, instead of what each option of a union lacks."""
    if isinstance(value, dict):
        kind = value.get("type")
        if isinstance(kind, str) and kind in _CHOICES:
            shape, wanted = _CHOICES[kind]
            try:
                return shape.model_validate(value)
            except ValidationError as error:
                raise PydanticCustomError("tool_choice", "it must be {wanted}", {"wanted": wanted}) from error
        raise PydanticCustomError(
            NOT_SUPPORTED,
            "a choice of type {kind} is not supported yet; send the tools that may be called, and no others",
            {"kind": repr(value.get("type"))},
        )
    if value not in ("none", "auto", "required") and not isinstance(value, NamedChoice | AllowedChoice):
        raise PydanticCustomError(
            "tool_choice", "it is {value}; it must be none, auto, required or name a function",
            {"value": repr(value)[:60]},
        )  # fmt: skip
    return value


class CalledFunction(_Shape):
    """`function` of a call."""

    CLIENTS_OWN = frozenset({"parsed_arguments"})
    name: str = Field(min_length=1, max_length=256)
    arguments: str
    """JSON as text, as the model wrote it."""


class ToolCall(_Shape):
    """One call in a message of the assistant."""

    CLIENTS_OWN = frozenset({"index"})
    id: str = Field(min_length=1, max_length=256)
    type: Annotated[Literal["function"], BeforeValidator(_function_only)] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, object]:
        """The call as templates expect it: the arguments as an object, where they are one."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.function.name, "arguments": _object_or_text(self.function.arguments)},
        }


def _object_or_text(arguments: str) -> object:
    if not arguments.strip():
        return {}
    try:
        value: object = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments  # a call that was cut off; the template sees what there is of it
    return value if isinstance(value, dict) and not is_deep(value) else arguments


class ToolUse(_Shape):
    """The tools of one request and what the model is to do with them; equal values prompt and constrain equally."""

    tools: tuple[Tool, ...] = Field(min_length=1, strict=False)
    choice: Literal["auto", "required", "named"]
    name: str | None = None
    """The function that must be called, if one is named."""
    only: tuple[str, ...] | None = Field(default=None, strict=False)
    """The functions that may be called, if not all; the model is shown all."""
    parallel: bool = True
    """Whether more than one call may come in one answer."""

    @property
    def forced(self) -> bool:
        """Whether a call must come."""
        return self.choice != "auto"

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        only = self.only if self.name is None else (self.name,)
        return tuple(tool for tool in self.tools if only is None or tool.function.name in only)

    @property
    def names(self) -> frozenset[str]:
        """The functions that may be called."""
        return frozenset(tool.function.name for tool in self.callable)

    @property
    def digest(self) -> Digest:
        """Names all of it."""
        return digest_of(self.to_json().encode())

    def to_json(self) -> str:
        """What the vault keeps: as text, since the order of a schema's properties is part of the prompt."""
        return orjson.dumps(self.model_dump(mode="json", exclude_none=True)).decode()

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read what `to_json` wrote; raises `ValidationError` for anything else."""
        if not isinstance(value, str):
            raise InvalidRequest("the tools of this request were not kept as text", param="tools")
        return cls.model_validate_json(value)


def tool_use(tools: list[Tool], choice: ToolChoice | None, parallel: bool | None) -> ToolUse | None:
    """What a request asks for; `None` without tools, or where none may be called.

    Raises `InvalidRequest` for a choice that the tools do not allow and for two functions of one name.
    """
    if not tools:
        if choice is not None and choice not in ("none", "auto"):
            raise InvalidRequest(
                "tool_choice wants a call and there are no tools; send tools", param="tool_choice"
            )
        return None
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.function.name in seen:
            raise InvalidRequest(
                f"tools[{index}].function.name is {tool.function.name!r} again; give each function its own name",
                param=f"tools[{index}].function.name",
            )
        seen.add(tool.function.name)
    if choice == "none":
        return None
    named = _named(choice)
    for name in named:
        if name not in seen:
            raise InvalidRequest(
                f"tool_choice names {name[:64]!r}, which is not among tools ({', '.join(sorted(seen))[:200]})",
                param="tool_choice",
            )
    offered, many = tuple(tools), parallel is not False
    match choice:
        case NamedChoice():
            return ToolUse(tools=offered, choice="named", name=named[0], parallel=many)
        case AllowedChoice():
            return ToolUse(tools=offered, choice=choice.allowed_tools.mode, only=named, parallel=many)
        case _:
            return ToolUse(tools=offered, choice=choice or "auto", parallel=many)


def _named(choice: ToolChoice | None) -> tuple[str, ...]:
    match choice:
        case NamedChoice():
            return (choice.function.name,)
        case AllowedChoice():
            return tuple(dict.fromkeys(one.function.name for one in choice.allowed_tools.tools))
        case _:
            return ()

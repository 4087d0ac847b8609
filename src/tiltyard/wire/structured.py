"""What a request may demand of an answer's form: `response_format` and `structured_outputs`, to one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self, TypeAlias

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Digest, Json, digest_of

StructureKind = Literal["json_object", "json_schema", "regex", "choice", "grammar", "tools"]
"""`tools` is made of a request's tools (`models/tool_grammar.py`), never sent."""

MAX_SOURCE_BYTES = 128 << 10
MAX_CHOICES = 4_096
ANY_OBJECT = '{"type":"object"}'


@dataclass(frozen=True, slots=True)
class Structure:
    """A demand on the form of an answer, as text; equal values constrain equally."""

    kind: StructureKind
    source: str
    """A JSON schema, a regular expression, a JSON list of strings, or a Lark or GBNF grammar."""
    any_whitespace: bool = True
    """Whether JSON may have white space between its parts."""
    param: str = "response_format"
    """Where in the request it stood: what a refusal names."""

    @property
    def is_json(self) -> bool:
        """Whether the answer is one JSON value."""
        return self.kind in ("json_object", "json_schema")

    @property
    def digest(self) -> Digest:
        """Names the demand; where it stood does not count."""
        return digest_of(orjson.dumps([self.kind, self.source, self.any_whitespace]))

    def to_json(self) -> dict[str, Json]:
        """What the vault keeps: as text, since the order of a schema's properties means something."""
        return {"kind": self.kind, "source": self.source, "any_whitespace": self.any_whitespace}

    @classmethod
    def from_json(cls, value: object) -> Structure:
        """Read what `to_json` wrote; raises `ValidationError` for anything else."""
        return TypeAdapter(cls).validate_python(value)


Schema: TypeAlias = dict[str, JsonValue]


class _Shape(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, protected_namespaces=(), serialize_by_alias=True
    )


def _as_object(value: object) -> object:
    """A schema may come as text, as vLLM's clients send it."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise PydanticCustomError(
            "schema_json", "the text is not JSON: {why}", {"why": str(error)}
        ) from error


class JsonSchemaBody(_Shape):
    """`response_format.json_schema`; the schema is enforced whether `strict` or not."""

    name: str = Field(default="answer", min_length=1, max_length=64)
    description: str | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None


FORMAT_MEMBER = {"json_schema": "json_schema", "regex": "regex", "grammar": "grammar"}
"""The member that each type needs; the others have none."""


class ResponseFormat(_Shape):
    """`response_format`: OpenAI's three types, and `regex` and `grammar`."""

    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: JsonSchemaBody | None = None
    regex: str | None = Field(default=None, min_length=1)
    grammar: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _has_its_member(self) -> Self:
        wanted = FORMAT_MEMBER.get(self.type)
        for name in FORMAT_MEMBER:
            if (getattr(self, name) is not None) != (name == wanted):
                raise InvalidRequest(
                    f"response_format of type {self.type} {'needs' if name == wanted else 'has no'} {name}",
                    param=f"response_format.{name}",
                )
        return self


class StructuredOutputs(_Shape):
    """vLLM's field; exactly one of its demands."""

    json_: Annotated[Schema | None, BeforeValidator(_as_object)] = Field(default=None, alias="json")
    json_object: Literal[True] | None = None
    regex: str | None = Field(default=None, min_length=1)
    choice: list[str] | None = Field(default=None, min_length=1, max_length=MAX_CHOICES)
    grammar: str | None = Field(default=None, min_length=1)
    disable_any_whitespace: bool = False

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: member for name, member in value.items() if member is not None}

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [
            name
            for name, value in (
                ("json", self.json_),
                ("json_object", self.json_object),
                ("regex", self.regex),
                ("choice", self.choice),
                ("grammar", self.grammar),
            )
            if value is not None
        ]
        if len(given) != 1:
            raise InvalidRequest(
                f"structured_outputs has {', '.join(given) or 'no demand'}; it needs exactly one of json, "
                "json_object, regex, choice, grammar",
                param="structured_outputs",
            )
        return self


def structure_of(
    response_format: ResponseFormat | None, outputs: StructuredOutputs | None
) -> Structure | None:
    """The demand of a request; raises `InvalidRequest` if there are two, or one that is too long."""
    asked = _of_format(response_format)
    if outputs is not None:
        if asked is not None:
            raise InvalidRequest(
                "response_format and structured_outputs both constrain the answer; send one",
                param="structured_outputs",
            )
        asked = _of_outputs(outputs)
    if asked is not None and (size := len(asked.source.encode("utf-8", "surrogatepass"))) > MAX_SOURCE_BYTES:
        raise InvalidRequest(
            f"{asked.param} has {size:,} bytes; at most {MAX_SOURCE_BYTES:,} are compiled. Send a smaller one.",
            param=asked.param,
            code="grammar_too_complex",
        )
    return asked


def _of_format(value: ResponseFormat | None) -> Structure | None:
    if value is None or value.type == "text":
        return None
    if value.json_schema is not None:
        source = _json_text(value.json_schema.schema_, "response_format.json_schema.schema")
        return Structure("json_schema", source, param="response_format.json_schema.schema")
    if value.regex is not None:
        return Structure("regex", value.regex, param="response_format.regex")
    if value.grammar is not None:
        return Structure("grammar", value.grammar, param="response_format.grammar")
    return Structure("json_object", ANY_OBJECT, param="response_format")


def _of_outputs(value: StructuredOutputs) -> Structure:
    spaced = not value.disable_any_whitespace
    if value.json_ is not None:
        source = _json_text(value.json_, "structured_outputs.json")
        return Structure("json_schema", source, spaced, param="structured_outputs.json")
    if value.json_object is not None:
        return Structure("json_object", ANY_OBJECT, spaced, param="structured_outputs.json_object")
    if value.regex is not None:
        return Structure("regex", value.regex, param="structured_outputs.regex")
    if value.choice is not None:
        source = _json_text(value.choice, "structured_outputs.choice")
        return Structure("choice", source, param="structured_outputs.choice")
    return Structure("grammar", value.grammar or "", param="structured_outputs.grammar")


def _json_text(value: Json, param: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:  # nested deeper than the writer goes, or half of a surrogate pair
        raise InvalidRequest(f"{param} cannot be written as JSON: {error}", param=param) from error

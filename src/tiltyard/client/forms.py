"""The form that a step demands of its answer: what is sent to which server, and what came back.

Servers differ in how a form is asked for, and some take the field and ignore it. So a form is put in the words of the
server at hand (`Dialect`), and every answer is checked against it here, whoever gave it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

from tiltyard.errors import InvalidRequest, UpstreamFailed
from tiltyard.identity.canonical import Json

Dialect = Literal["tiltyard", "vllm", "llama.cpp", "openai"]
"""How a form is asked for: `structured_outputs` (tiltyard, vLLM), or `response_format` with a schema, as OpenAI writes
it or as llama.cpp's servers do."""
SCORES: frozenset[Dialect] = frozenset({"tiltyard", "vllm"})
"""Servers that give log-probabilities of a prompt."""
WRAPPED = "answer"
"""The member in which a text that is not JSON comes where only JSON can be demanded."""


class FormNotHeld(UpstreamFailed):
    """The server accepted the demand and answered in another form."""

    default_code = "form_not_held"


@dataclass(frozen=True, slots=True)
class Form:
    """A regular expression, a JSON schema, or one of several texts."""

    kind: Literal["regex", "schema", "choices"]
    regex: str = ""
    schema: Mapping[str, Json] | None = None
    choices: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, regex: str | None, schema: Mapping[str, Json] | None, choices: Sequence[str] | None
    ) -> Form | None:
        """The one demand of a step, or `None`; raises `InvalidRequest` for two, and for no choices."""
        given = {"regex": regex, "schema": schema, "choices": choices}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise InvalidRequest(f"{' and '.join(named)} both demand a form; send one", param=named[1])
        if regex is not None:
            return cls("regex", regex=regex)
        if schema is not None:
            return cls("schema", schema=schema)
        if choices is not None:
            return cls("choices", choices=checked_choices(choices))
        return None

    def fields(self, dialect: Dialect) -> dict[str, Json]:
        """The fields of a chat request that demand this form."""
        if dialect == "llama.cpp":
            return {"response_format": {"type": "json_object", "schema": self._json_schema()}}
        if dialect == "openai":
            return {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "strict": True, "schema": self._json_schema()},
                }
            }
        if self.schema is not None:
            demand: dict[str, Json] = {"json": dict(self.schema)}
        elif self.kind == "regex":
            demand = {"regex": self.regex}
        else:
            demand = {"choice": list(self.choices)}
        if dialect == "tiltyard" and self.schema is not None:
            demand["disable_any_whitespace"] = True  # a small model that likes line feeds gets lost in them
        return {"structured_outputs": demand}

    def wrapped(self, dialect: Dialect) -> bool:
        """Whether the answer comes inside JSON that `read` takes off."""
        return dialect in {"openai", "llama.cpp"} and self.kind != "schema"

    def read(self, text: str, dialect: Dialect) -> str:
        """The answer of the form; raises `FormNotHeld` if it is not of it."""
        if self.wrapped(dialect):
            outer = self._json(text)
            inner = outer.get(WRAPPED) if isinstance(outer, dict) else None
            if not isinstance(inner, str):
                raise self._not_held(text, f"is not an object with the text {WRAPPED!r}")
            text = inner
        if self.kind == "choices" and text not in self.choices:
            raise self._not_held(text, f"is none of the {len(self.choices)} choices")
        if self.kind == "regex" and not _matches(self.regex, text):
            raise self._not_held(text, f"does not match {self.regex!r}")
        if self.schema is not None and (why := mismatch(self._json(text), self.schema)):
            raise self._not_held(text, f"is not of the schema: {why}")
        return text

    def _json_schema(self) -> dict[str, Json]:
        if self.schema is not None:
            return dict(self.schema)
        inner: dict[str, Json] = {"type": "string"}
        if self.kind == "regex":
            inner["pattern"] = f"^({self.regex})$"  # a plain group: llama.cpp reads no other
        else:
            inner["enum"] = list(self.choices)
        return {
            "type": "object",
            "properties": {WRAPPED: inner},
            "required": [WRAPPED],
            "additionalProperties": False,
        }

    def _json(self, text: str) -> Json:
        try:
            value: Json = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise self._not_held(text, "is not JSON") from error
        return value

    def _not_held(self, text: str, why: str) -> FormNotHeld:
        return FormNotHeld(
            f"the answer {text[:80]!r} {why}: the server took the demand and did not hold it. "
            "Use one that does, or leave the form out.",
            param=self.kind,
        )


def checked_choices(choices: Sequence[str]) -> tuple[str, ...]:
    """Choices that can be told apart; raises `InvalidRequest`."""
    if not choices or "" in choices:
        raise InvalidRequest("choices must be one or more texts, none of them empty", param="choices")
    if len(set(choices)) < len(choices):
        twice = next(choice for at, choice in enumerate(choices) if choice in choices[:at])
        raise InvalidRequest(f"choice {twice!r} stands there twice", param="choices")
    return tuple(choices)


def mismatch(value: Json, schema: Mapping[str, Json], at: str = "$") -> str | None:
    """Where a value breaks the plain parts of a schema: types, enum, const, required, properties, items.

    Not a validator: enough to see that a server ignored the schema. What it does not know it lets pass.

    >>> mismatch({"age": "old"}, {"type": "object", "properties": {"age": {"type": "integer"}}})
    '$.age is not of type integer'
    """
    kinds = schema.get("type")
    allowed = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(allowed, list) and not any(_is(value, str(kind)) for kind in allowed):
        return f"{at} is not of type {' or '.join(map(str, allowed))}"
    options = schema.get("enum")
    if isinstance(options, list) and value not in options:
        return f"{at} is none of the enum's values"
    if "const" in schema and value != schema["const"]:
        return f"{at} is not the const"
    if isinstance(value, dict):
        return _object_mismatch(value, schema, at)
    items = schema.get("items")
    if isinstance(value, list) and isinstance(items, dict) and "prefixItems" not in schema:
        found = (mismatch(item, items, f"{at}[{index}]") for index, item in enumerate(value))
        return next(filter(None, found), None)
    return None


def _object_mismatch(value: Mapping[str, Json], schema: Mapping[str, Json], at: str) -> str | None:
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if name not in value:
            return f"{at} has no {name!r}"
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    for name, member in value.items():
        part = known.get(name)
        if isinstance(part, dict):
            if why := mismatch(member, part, f"{at}.{name}"):
                return why
        elif name not in known and closed:
            return f"{at} has {name!r}, which the schema does not know"
    return None


_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int, float),
}


def _is(value: Json, kind: str) -> bool:
    types = _TYPES.get(kind)
    if types is None:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, types) and not (kind == "integer" and isinstance(value, float) and value % 1)


def _matches(pattern: str, text: str) -> bool:
    """Whether the whole text matches; a pattern that Python cannot read is the server's to hold."""
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:
        return True

"""`POST /v1/embeddings` in OpenAI's shape: what may be asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import orjson
from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from tiltyard.identity.canonical import Json
from tiltyard.wire.openai import MAX_TOKEN_ID, MAX_USER_CHARACTERS, Strict
from tiltyard.wire.problems import parse_object, problem

MAX_INPUTS = 2_048
"""As many as OpenAI takes."""
WRONG_INPUT = "it must be a string, a list of token ids, or a list of such, none of them empty"


def _inputs(value: object) -> object:
    """One text or several, each a string or a list of token ids, as a list of texts."""
    texts = value if isinstance(value, list) and value and isinstance(value[0], (str, list)) else [value]
    for index, text in enumerate(texts):
        if isinstance(text, str) and text:
            continue
        if isinstance(text, list) and text and all(_is_token_id(item) for item in text):
            continue
        where = f"input {index}: " if len(texts) > 1 else ""
        raise PydanticCustomError("input_type", "{where}" + WRONG_INPUT, {"where": where})
    return texts


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_TOKEN_ID


class EmbeddingsRequest(Strict):
    """`POST /v1/embeddings`."""

    model: str = Field(min_length=1, max_length=256)
    input: Annotated[
        list[str | list[int]], BeforeValidator(_inputs), Field(min_length=1, max_length=MAX_INPUTS)
    ]
    encoding_format: Literal["float", "base64"] = "float"
    """`base64` is of little-endian float32."""
    dimensions: int | None = Field(default=None, ge=1)
    """Only the model's own width is honoured: a shortened vector of a model not trained for it means little."""
    user: str | None = Field(default=None, min_length=1, max_length=MAX_USER_CHARACTERS)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: v for name, v in value.items() if v is not None or name not in cls.model_fields}

    def to_worker(self, identity: str) -> bytes:
        """The body for a worker."""
        body = self.model_dump(mode="json", exclude_none=True, exclude={"user"})
        return orjson.dumps(body | {"model": identity})


def parse_embeddings_request(body: bytes) -> EmbeddingsRequest:
    """Read and check a request; raises `InvalidRequest` or `UnknownField` naming the field.

    >>> parse_embeddings_request(b'{"model": "m", "input": "Hi"}').input
    ['Hi']
    """
    return embeddings_request(parse_object(body))


def embeddings_request(value: Mapping[str, Json]) -> EmbeddingsRequest:
    """Check a request that was read already."""
    try:
        return EmbeddingsRequest.model_validate(dict(value))
    except ValidationError as error:
        raise problem(error, EmbeddingsRequest.model_fields) from error

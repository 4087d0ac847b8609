"""The manifest: everything that makes a model behave as it does, and what only makes it fast.

`Behaviour` can change a token; its digest is what votes attach to. `Deployment` adds what can change
only speed or cost; latency attaches to its digest. Neither is ever edited: a change is a new identity.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from tiltyard.identity.canonical import Digest, Json, digest_of_json


class Frozen(BaseModel):
    """A value: compared by content, never edited, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


Whole = Annotated[int, Field(strict=True)]
"""A whole number; neither `true` nor `"5"` is one."""
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class DefaultSampling(Frozen):
    """What applies when a request says nothing, in the ranges that a request has; every field can change a token."""

    temperature: Number = Field(default=1.0, ge=0, le=2)
    top_p: Number = Field(default=1.0, gt=0, le=1)
    top_k: Whole = Field(default=0, ge=0, le=2**31 - 1)
    min_p: Number = Field(default=0.0, ge=0, le=1)
    repetition_penalty: Number = Field(default=1.0, gt=0, le=10)
    presence_penalty: Number = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: Number = Field(default=0.0, ge=-2, le=2)
    max_tokens: Whole | None = Field(default=None, ge=1, le=2**31 - 1)


class Weights(Frozen):
    """The bytes of the weights, and how they are served."""

    digest: Digest
    """Of the bytes; where `format` is `declared`, of what an engine of another kind says of them."""
    size_bytes: int
    """0 where nobody says."""
    format: Literal["gguf", "safetensors", "declared"] = "gguf"
    stored_as: tuple[str, ...]
    """Tensor types found in the file, most bytes first, such as `("Q4_1", "Q8_0", "F32")`."""
    served_as: Literal["as-stored", "q4_0", "q4_1", "q8_0", "declared"] = "as-stored"
    """`as-stored`, or the type to which matrices are re-quantized when loaded; `declared`: as another engine does it."""


class Engine(Frozen):
    """Which arithmetic made the tokens."""

    name: str = "tiltyard"
    numerics: int = 1
    """Version of the numerics contract; 0: an engine without one."""
    version: str | None = None
    """What an engine without a numerics contract says its version is. Left out of the JSON where there is none."""

    @model_serializer(mode="wrap")
    def _without_what_is_not_there(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        value: dict[str, object] = serialize(self)
        if self.version is None:
            del value["version"]
        return value


class Behaviour(Frozen):
    """The part of a manifest that can change a token."""

    schema_version: Literal[1] = 1
    weights: Weights
    architecture: dict[str, int | float | str | bool]
    tokenizer: Digest
    chat_template: Digest | None
    """Digest of the template's bytes; `None` when the chat template is off."""
    tool_format: str | None = None
    """How the model writes calls of tools; `None`: it was not made for tools. Left out of the JSON then."""
    system_prompt: Digest | None = None
    kv_precision: Literal["f16", "int8"] = "f16"
    adapters: tuple[Digest, ...] = ()
    rope_scaling: dict[str, int | float | str] | None = None
    default_sampling: DefaultSampling = DefaultSampling()
    safety_filter: Digest | None = None
    engine: Engine = Engine()
    declared: tuple[str, ...] = ()
    """Members that an engine of another kind declares and that nobody here has verified. Left out of the JSON if there
    are none."""

    @cached_property
    def digest(self) -> Digest:
        """The behaviour digest."""
        return digest_of_json(self.to_json())

    def to_json(self) -> Json:
        """The JSON that is canonicalised and digested."""
        value: Json = self.model_dump(mode="json")
        return value

    @model_serializer(mode="wrap")
    def _without_what_is_not_there(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        value: dict[str, object] = serialize(self)
        if self.tool_format is None:
            del value["tool_format"]  # manifests of before there were tools keep their digests
        if not self.declared:
            del value["declared"]
        return value


class Deployment(Frozen):
    """What can change only speed or cost."""

    schema_version: Literal[1] = 1
    behaviour: Digest
    engine_build: str
    isa: str
    threads: int
    block_tokens: int
    kv_blocks: int
    max_batch_tokens: int
    speculation: str | None = None
    hardware: str

    @cached_property
    def digest(self) -> Digest:
        """The deployment digest."""
        value: Json = self.model_dump(mode="json")
        return digest_of_json(value)

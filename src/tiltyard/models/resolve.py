"""From a declaration in `tiltyard.toml` and a model file to an identity that can be served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tiltyard.errors import ConfigurationError, ModelRejected
from tiltyard.identity.canonical import Digest, digest_of
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, Weights
from tiltyard.identity.store import IdentityStore
from tiltyard.models.adapters import Adapter
from tiltyard.models.architecture import Architecture
from tiltyard.models.prompt import encode_messages
from tiltyard.models.stored import StoredModel, stored_format, tokenizer_digest_of
from tiltyard.models.template import ChatTemplate, PlainTemplate
from tiltyard.models.template_process import Renderer
from tiltyard.models.tokenizer import Tokenizer
from tiltyard.models.tool_formats import BY_NAME, FORMATS, ONE_CALL_ONLY, ToolFormat, detect
from tiltyard.models.tool_prompt import concerns_tools, messages_with_calls, told_in_words
from tiltyard.wire.tools import ToolUse

TEMPLATE_KEY = "tokenizer.chat_template"


@dataclass(frozen=True)
class ResolvedIdentity:
    """One identity: its manifest, and the small artifacts that the manifest names by digest."""

    behaviour: Behaviour
    template: ChatTemplate | PlainTemplate
    system_prompt: str | None
    architecture: Architecture
    adapter: Adapter | None = None

    @property
    def tool_format(self) -> ToolFormat | None:
        """How it writes calls of tools; `None` if it was not made for tools."""
        return next((row for row in FORMATS if row.name == self.behaviour.tool_format), None)

    @property
    def forced_tool_format(self) -> ToolFormat:
        """How it is made to write calls that are demanded of it."""
        return self.tool_format or BY_NAME["smollm2"]

    def may_call_at_once(self, tools: ToolUse) -> bool:
        """Whether one answer may have several calls: some templates refuse a conversation with such a message."""
        return tools.parallel and not (
            isinstance(self.template, ChatTemplate) and ONE_CALL_ONLY in self.template.source
        )

    def put_artifacts(self, store: IdentityStore) -> None:
        """Keep the manifest and the bytes of template and system prompt under their digests."""
        store.put_manifest(self.behaviour)
        if isinstance(self.template, ChatTemplate):
            store.put(self.template.source.encode())
        if self.system_prompt is not None:
            store.put(self.system_prompt.encode())
        if self.adapter is not None:
            store.put(self.adapter.weights)
            store.put(self.adapter.artifact)


def resolve(
    declaration: IdentityDeclaration, gguf: StoredModel, weights_digest: Digest, base_dir: Path
) -> ResolvedIdentity:
    """Make an identity; a chat template's path is relative to `base_dir`.

    Raises `ModelRejected` for a file that we cannot serve, `ConfigurationError` for a wrong declaration.
    """
    architecture = Architecture.from_gguf(gguf)
    if declaration.rope_scaling is not None:
        architecture = architecture.stretched(declaration.rope_scaling)
    if declaration.pooling is not None:
        architecture = replace(architecture, pooling=declaration.pooling)
    scaling = architecture.rope_scaling
    template = _template(declaration, gguf, base_dir)
    system_prompt = declaration.system_prompt
    adapter = None if declaration.adapter is None else Adapter.read(base_dir / declaration.adapter)
    behaviour = Behaviour(
        weights=Weights(
            digest=weights_digest,
            size_bytes=gguf.size_bytes,
            format=stored_format(gguf),
            stored_as=stored_types(gguf),
            served_as=declaration.quantization,
        ),
        architecture=architecture.to_manifest(),
        tokenizer=tokenizer_digest_of(gguf),
        chat_template=template.digest,
        tool_format=_tool_format(declaration, template),
        system_prompt=None if system_prompt is None else digest_of(system_prompt.encode()),
        kv_precision=declaration.kv_precision,
        adapters=() if adapter is None else (adapter.digest,),
        rope_scaling=None if scaling is None else scaling.to_manifest(),
        default_sampling=declaration.sampling,
    )
    return ResolvedIdentity(behaviour, template, system_prompt, architecture, adapter)


def render_prompt(
    resolved: ResolvedIdentity,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, object]],
    *,
    tools: ToolUse | None = None,
    most_tokens: int | None = None,
    renderer: Renderer | None = None,
) -> list[int]:
    """Turn a conversation into token ids: system prompt, tools, template, encoding.

    The identity's system prompt goes in front of a conversation that brings none of its own. What messages
    (and system prompt) say can never become a control token; see `tiltyard.models.prompt`.
    """
    if resolved.system_prompt is not None and not any(
        message.get("role") == "system" for message in messages
    ):
        messages = [{"role": "system", "content": resolved.system_prompt}, *messages]
    shown: list[dict[str, object]] = []
    if tools is not None or any(map(concerns_tools, messages)):
        if resolved.template.shows_tools:
            messages = messages_with_calls(messages)
            shown = [] if tools is None else [tool.for_template() for tool in tools.tools]
        else:
            messages = told_in_words(messages, tools, resolved.forced_tool_format)
    return encode_messages(
        resolved.template, tokenizer, messages, tools=shown, most_tokens=most_tokens, renderer=renderer
    )


def _tool_format(declaration: IdentityDeclaration, template: ChatTemplate | PlainTemplate) -> str | None:
    if declaration.tool_format == "off":
        return None
    if declaration.tool_format != "auto":
        if not template.shows_tools and declaration.tool_format != "smollm2":
            raise ConfigurationError(
                f"tool_format is {declaration.tool_format}, and the chat template does not show tools to the model; "
                'use a template that does, or tool_format "smollm2", which tells of them in words',
                param="tool_format",
            )
        return declaration.tool_format
    return detect(template.source) if isinstance(template, ChatTemplate) and template.shows_tools else None


def stored_types(gguf: StoredModel) -> tuple[str, ...]:
    """Return the tensor types in a file, most bytes first."""
    sizes: dict[str, int] = {}
    for info in gguf.tensors.values():
        sizes[info.type_name] = sizes.get(info.type_name, 0) + info.size_bytes
    return tuple(sorted(sizes, key=lambda name: (-sizes[name], name)))


def _template(
    declaration: IdentityDeclaration, gguf: StoredModel, base_dir: Path
) -> ChatTemplate | PlainTemplate:
    if declaration.chat_template == "off":
        return PlainTemplate()
    if declaration.chat_template == "model":
        source = gguf.metadata.get(TEMPLATE_KEY)
        if source is None:
            raise ConfigurationError(
                f'{gguf.path} brings no chat template; set chat_template to "off" or to a Jinja file',
                param="chat_template",
            )
        if not isinstance(source, str):
            raise ModelRejected(f"{gguf.path}: {TEMPLATE_KEY!r} must be a string")
        return ChatTemplate(source)
    path = base_dir / declaration.chat_template
    try:
        return ChatTemplate(path.read_bytes().decode())
    except OSError as error:
        raise ConfigurationError(
            f"chat_template {path} cannot be read: {error.strerror}; "
            'it must be "model", "off" or a Jinja file',
            param="chat_template",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"chat_template {path} is not UTF-8 at byte {error.start:,}", param="chat_template"
        ) from error
    except ModelRejected as error:
        raise ConfigurationError(f"chat_template {path}: {error.message}", param="chat_template") from error

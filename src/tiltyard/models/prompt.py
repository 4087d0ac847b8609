"""Messages to token ids, so that nothing a user writes can become a control token.

Why and how: `docs/decisions/0001-control-tokens-in-content.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tiltyard.errors import ContextTooLong, InvalidRequest
from tiltyard.models.template import ChatTemplate, PlainTemplate
from tiltyard.models.template_process import Renderer
from tiltyard.models.tokenizer import Tokenizer

Said: TypeAlias = tuple[Sequence[Mapping[str, object]], Sequence[Mapping[str, object]]]
"""Messages and tools: what comes from outside."""
PRIVATE_USE = range(0xE000, 0xF900)
"""Code points that mean nothing by themselves: the stand-ins come from here."""


def encode_messages(
    template: ChatTemplate | PlainTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, object]],
    *,
    tools: Sequence[Mapping[str, object]] = (),
    most_tokens: int | None = None,
    renderer: Renderer | None = None,
) -> list[int]:
    """Render a conversation and encode it: control tokens come from the template, never from messages or tools.

    For messages that do not spell control tokens the ids equal those of encoding the rendered text with
    control tokens on, as Hugging Face does. Raises `InvalidRequest` (`param="messages"`), and `ContextTooLong`
    before a text is encoded that cannot have as few as `most_tokens`. Without `renderer` the template runs in
    this process.
    """
    if isinstance(template, PlainTemplate):
        text = template.render(messages)
        refuse_too_long(tokenizer, text, most_tokens, "messages")
        return prompt_ids(tokenizer, text, special=False)

    def render(said: Said) -> str:
        conversation, shown = said
        bos, eos, variables = (
            _spelling(tokenizer.bos_id),
            _spelling(tokenizer.eos_id),
            {"tools": shown or None},
        )
        if renderer is None:
            text = template.render(conversation, bos_token=bos, eos_token=eos, variables=variables)
        else:
            text = renderer.render(template, conversation, bos_token=bos, eos_token=eos, variables=variables)
        refuse_too_long(tokenizer, text, most_tokens, "messages")
        return text

    def _spelling(token_id: int | None) -> str:
        return "" if token_id is None else tokenizer.token_text(token_id)

    return tokenizer.encode_segments(_segments(render, tokenizer, (messages, tools)))


def refuse_too_long(tokenizer: Tokenizer, text: str, most_tokens: int | None, param: str) -> None:
    """Raise `ContextTooLong` for a text that cannot fit: megabytes would take seconds to encode."""
    if most_tokens is not None and (least := tokenizer.least_tokens(text)) > most_tokens:
        raise ContextTooLong(
            f"prompt has {least:,} tokens or more; the model accepts {most_tokens:,}. Shorten it.",
            param=param,
        )


def prompt_ids(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
    """Encode a raw prompt, with BOS in front and EOS behind if the model wants them and the text brings none."""
    ids = tokenizer.encode(text, special=special)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids = [tokenizer.bos_id, *ids]
    if tokenizer.add_eos and tokenizer.eos_id is not None and ids[-1:] != [tokenizer.eos_id]:
        ids = [*ids, tokenizer.eos_id]
    return ids


def _segments(render: Callable[[Said], str], tokenizer: Tokenizer, said: Said) -> list[str | int]:
    rendered = render(said)
    texts = _texts(said)
    edges = {edge for token in tokenizer.control_tokens for edge in (token[0], token[-1])}
    if not any(edge in text for text in texts for edge in edges):
        # No message holds a character that a control token begins or ends with.
        return tokenizer.split_control(rendered)
    stand_ins = _stand_ins(edges, rendered)
    back = str.maketrans({stand_in: edge for edge, stand_in in stand_ins.items()})
    # All edge characters of the messages hidden: what is still a control token is the template's own.
    everywhere = str.maketrans(stand_ins)
    hidden = render(_mapped(said, lambda text: text.translate(everywhere)))
    if hidden.translate(back) != rendered:
        # The template looks into the messages (`'</think>' in content`); hide only whole control tokens.
        hidden = render(_mapped(said, lambda text: _break_control(tokenizer, text, stand_ins)))
    return [
        segment if isinstance(segment, int) else segment.translate(back)
        for segment in tokenizer.split_control(hidden)
    ]


def _break_control(tokenizer: Tokenizer, text: str, stand_ins: Mapping[str, str]) -> str:
    """Replace the first character of each control token in a text, again and again until none is left."""
    while True:
        broken = "".join(
            segment if isinstance(segment, str) else _break(tokenizer.token_text(segment), stand_ins)
            for segment in tokenizer.split_control(text)
        )
        if broken == text:
            return text
        text = broken


def _break(token: str, stand_ins: Mapping[str, str]) -> str:
    return stand_ins[token[0]] + token[1:]


def _stand_ins(edges: set[str], rendered: str) -> dict[str, str]:
    """Give each edge character a private-use character that does not occur in the rendered text."""
    taken = edges | set(rendered)
    unused = [chr(code) for code in PRIVATE_USE if chr(code) not in taken]
    if len(unused) < len(edges):
        raise InvalidRequest(
            "the messages use up the private-use characters; leave some out", param="messages"
        )
    return dict(zip(sorted(edges), unused, strict=False))


def _texts(value: object) -> list[str]:
    """Return all strings in a message, however deep; keys too, since a template may print them."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for key, item in value.items() for text in (*_texts(key), *_texts(item))]
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [text for item in value for text in _texts(item)]
    return []


def _mapped(said: Said, change: Callable[[str], str]) -> Said:
    messages, tools = (
        [{change(key): _mapped_value(item, change) for key, item in one.items()} for one in many]
        for many in said
    )
    return messages, tools


def _mapped_value(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _mapped_value(item, change) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_mapped_value(item, change) for item in value]
    return value

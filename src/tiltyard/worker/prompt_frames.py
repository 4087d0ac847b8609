"""What a prompt looks like in an answer: vLLM's `prompt_logprobs`, and the prompt that `echo` puts in front."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tiltyard.engine.request import PromptScores
from tiltyard.wire.answers import CompletionLogprobs, PromptLogprob

Spell = Callable[[int], bytes]
"""The bytes of a token as the answer shows them."""


class Echo(NamedTuple):
    """A prompt as text."""

    text: str
    offsets: list[int]
    """Characters before each token."""


def echoed(prompt: Sequence[int], spell: Spell) -> Echo:
    """Write a prompt's tokens as text; control tokens appear as the answer's do."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    parts: list[str] = []
    offsets: list[int] = []
    length = 0
    for token in prompt:
        offsets.append(length)
        part = decoder.decode(spell(token))
        parts.append(part)
        length += len(part)
    parts.append(decoder.decode(b"", final=True))
    return Echo("".join(parts), offsets)


def echoed_logprobs(
    prompt: Sequence[int], scores: PromptScores, top: int, echo: Echo, spell: Spell
) -> CompletionLogprobs:
    """`logprobs` of an echoed prompt; the first token follows nothing and has none."""
    tokens = [_readable(spell(token)) for token in prompt]
    likeliest: list[dict[str, float] | None] = [None]
    for at in range(1, len(prompt)):
        pairs = zip(scores.top_ids[at, :top].tolist(), scores.top_logprobs[at, :top].tolist(), strict=True)
        shown = {_readable(spell(token)): value for token, value in pairs}
        shown.setdefault(tokens[at], float(scores.logprobs[at]))
        likeliest.append(shown)
    return {
        "tokens": tokens,
        "token_logprobs": [None, *scores.logprobs[1:].tolist()],
        "top_logprobs": likeliest,
        "text_offset": echo.offsets,
    }


def prompt_logprobs(
    prompt: Sequence[int], scores: PromptScores, top: int, spell: Spell, start: int = 0
) -> list[PromptLogprob | None]:
    """vLLM's shape: for each token from `start` on, itself and the `top` likeliest at its place, by token id.

    The first token of all follows nothing and has `None`.
    """
    shown: list[PromptLogprob | None] = [None] if start == 0 else []
    for at in range(max(1, start), len(prompt)):
        entry: PromptLogprob = {
            str(prompt[at]): {
                "logprob": float(scores.logprobs[at]),
                "rank": int(scores.ranks[at]),
                "decoded_token": _readable(spell(prompt[at])),
            }
        }
        for rank in range(1, top + 1):
            token = int(scores.top_ids[at, rank - 1])
            entry.setdefault(
                str(token),
                {
                    "logprob": float(scores.top_logprobs[at, rank - 1]),
                    "rank": rank,
                    "decoded_token": _readable(spell(token)),
                },
            )
        shown.append(entry)
    return shown


def _readable(spelling: bytes) -> str:
    return spelling.decode("utf-8", errors="replace")

"""Scores each of several answers by its log-likelihood on a server that scores prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiltyard.client.asking import Asker
from tiltyard.client.branches import gathered
from tiltyard.client.conversation import Conversation
from tiltyard.client.forms import SCORES
from tiltyard.client.likelihood import (
    ChoiceScore,
    NotScored,
    ScoredTokens,
    Spelling,
    choice_scores,
    spelling,
    window,
)
from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json


async def by_log_likelihood(
    asker: Asker, conversation: Conversation, choices: Sequence[str]
) -> tuple[ChoiceScore, ...]:
    """Every choice's score as the next answer; raises `NotScored` where the server gives none.

    One request a choice, and one for the ruler (`likelihood.py`) when these choices are new; all at once, since the
    server computes what they share once.
    """
    server = await asker.server()
    if server.dialect not in SCORES:
        raise NotScored("this server gives no log-probabilities of a prompt")

    async def scored(texts: Sequence[str], last: int | None) -> list[ScoredTokens]:
        fields: dict[str, Json] = {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 0}
        if server.ours and last is not None:
            fields["prompt_logprobs_last"] = last
        return await gathered([_scored(asker, conversation, text, fields) for text in texts])

    async def spelled() -> tuple[Spelling, list[ScoredTokens]]:
        *others, ruler = await scored([*choices, ""], window(choices))
        try:
            return spelling(ruler, choices, others), others
        except NotScored:
            if not server.ours:
                raise
        *others, ruler = await scored([*choices, ""], None)
        return spelling(ruler, choices, others), others

    if (known := asker.spellings.get(tuple(choices))) is None:
        async with asker.spelling:  # branches that select alike: the first finds out for all
            if (known := asker.spellings.get(tuple(choices))) is None:
                known, others = await spelled()
                asker.keep_spelling(tuple(choices), known)
                return choice_scores(known, choices, others)
    try:
        return choice_scores(known, choices, await scored(choices, known.window))
    except NotScored:  # what stands before the answer changes how it is spelled
        known, others = await spelled()
        return choice_scores(known, choices, others)


async def _scored(
    asker: Asker, conversation: Conversation, text: str, fields: Mapping[str, Json]
) -> ScoredTokens:
    messages = [*conversation.messages, {"role": "assistant", "content": text}]
    try:
        async with asker.answer(messages, fields, group=conversation.group) as stream:
            async for _ in stream:
                pass
    except InvalidRequest as error:
        if (error.param or "").startswith("prompt_logprobs"):
            raise NotScored(f"this server refuses {error.param} ({error.message})") from error
        raise
    return ScoredTokens.read(stream.prompt_logprobs, stream.usage.prompt_tokens if stream.usage else None)

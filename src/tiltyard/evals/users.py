"""What users asked lately, as the vault has it: for contamination and drift, and for nothing that is printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import orjson

from tiltyard.errors import ContentMissing
from tiltyard.evals.asking import SUBJECT
from tiltyard.evals.contamination import Seen
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ContentRef, EvalItemFinished, GenerationFinished, JudgmentMade

MOST_PROMPTS: Final = 10_000
OUR_SUBJECTS: Final = frozenset({SUBJECT, "judge-set"})
"""Under whose keys the questions of fixed sets, judges and scorers are; what comes before a colon is the tenant."""


def users_prompts(log: EventLog, *, most: int = MOST_PROMPTS) -> Iterator[Seen]:
    """The last message of the user in each of the newest generations, the newest first; our own questions and erased words left out.

    What a judge or another tool's evaluation asked is no user's question either, under whose key its words may be. Blocks.
    """
    evaluated = set(_evaluated(log, most))
    with log.words("evaluate", reader="evals/users") as vault:
        for event in log.read(types=(GenerationFinished,), newest_first=True, limit=most):
            if (
                not isinstance(event.data, GenerationFinished)
                or event.data.prompt is None
                or event.data.generation in evaluated
                or _ours(event.data.prompt)
            ):
                continue
            try:
                words = orjson.loads(vault.read(event.data.prompt))
            except ContentMissing:
                continue
            if text := _asked(words):
                yield Seen(event.data.generation, text)


def _evaluated(log: EventLog, most: int) -> Iterator[str]:
    """Generations that judges and runs of fixed sets, imported ones among them, say are theirs."""
    for event in log.read(types=(JudgmentMade, EvalItemFinished), newest_first=True, limit=most):
        match event.data:
            case JudgmentMade(judge_generation=str() as generation):
                yield generation
            case EvalItemFinished(generations=generations):
                yield from generations
            case _:
                pass


def _ours(ref: ContentRef) -> bool:
    return ref.subject.rpartition(":")[2] in OUR_SUBJECTS


def _asked(words: object) -> str:
    if not isinstance(words, dict):
        return ""
    if isinstance(prompt := words.get("prompt"), str):
        return prompt
    messages = words.get("messages")
    said = [one for one in messages if one.get("role") == "user"] if isinstance(messages, list) else []
    content = said[-1].get("content") if said else ""
    return content if isinstance(content, str) else ""

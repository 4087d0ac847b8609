"""What the log knows about both answers of each vote: length, Markdown and speed, for style and speed control."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

import orjson

from tiltyard.errors import ContentMissing, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished, VoteCast
from tiltyard.rating.style import SPEED, STYLE, style_of

LACKING: Final = "answers_without_words_or_times"
"""Why a vote is left out of a board with controls."""
_MARKDOWN: Final = frozenset(STYLE) - {"length"}


class InLog(Protocol):
    """What is needed of a vote."""

    @property
    def sequence(self) -> int:
        """Its place in the log."""


Voted = TypeVar("Voted", bound=InLog)


def answer_traits(
    log: EventLog, votes: Iterable[Voted], names: Iterable[str]
) -> tuple[list[Voted], dict[str, list[float]]]:
    """Return the votes whose answers tell all of `names`, and `{"<name>_a": [...], "<name>_b": [...]}` for them.

    `names` are of `STYLE` and `SPEED`. Over the turns of a battle, length (tokens), headers, bold and list items add
    up, time to first token (ms) is the mean, and tokens a second is all tokens over the time from each first token to
    the last. A vote whose words were erased, or whose answers came from a server that tells no times, is left
    out of both. Reads two events a turn, and two contents where Markdown is asked for.
    """
    wanted = tuple(names)
    cast = {event.sequence: event.data for event in log.read(types=[VoteCast])}
    kept: list[Voted] = []
    traits: dict[str, list[float]] = {f"{name}_{side}": [] for name in wanted for side in "ab"}
    for vote in votes:
        data = cast.get(vote.sequence)
        if not isinstance(data, VoteCast):
            continue
        found = [_side(log, ids, wanted) for ids in (data.generations_a, data.generations_b)]
        if any(values is None for values in found):
            continue
        kept.append(vote)
        for side, values in zip("ab", found, strict=True):
            for name, value in (values or {}).items():
                traits[f"{name}_{side}"].append(value)
    return kept, traits


def _side(log: EventLog, generations: Sequence[str], wanted: Sequence[str]) -> dict[str, float] | None:
    """What one side showed over its turns, or `None` when something wanted is not known."""
    try:
        answers = [log.generation(generation) for generation in generations]
    except NotFound:
        return None
    values: dict[str, float] = {"length": float(sum(answer.completion_tokens for answer in answers))}
    if _MARKDOWN & set(wanted):
        try:
            styles = [style_of(_text(log, answer)) for answer in answers]
        except ContentMissing:
            return None
        for name in _MARKDOWN:
            values[name] = float(sum(getattr(style, name) for style in styles))
    if set(SPEED) & set(wanted):
        waits = [answer.time_to_first_token_ms for answer in answers]
        first = [wait for wait in waits if wait is not None]
        if len(first) < len(answers) or not first:
            return None
        streamed_ms = sum(answer.total_ms for answer in answers) - sum(first)
        if streamed_ms <= 0:
            return None
        values["time_to_first_token"] = sum(first) / len(first)
        values["tokens_per_second"] = values["length"] / streamed_ms * 1000
    return {name: values[name] for name in wanted}


def _text(log: EventLog, answer: GenerationFinished) -> str:
    if answer.response is None:
        raise ContentMissing(f"the words of {answer.generation} were not kept")
    choice = orjson.loads(log.read_content(answer.response))["choices"][0]
    said = choice.get("text")
    if said is None:  # an answer with tool calls keeps the whole message
        said = choice.get("message", {}).get("content")
    return said if isinstance(said, str) else ""

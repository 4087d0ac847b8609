"""What the log knows about both answers of each vote: length, Markdown and speed, for slices and controls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from threading import Lock
from typing import Final, Protocol, TypeVar

import orjson

from tiltyard.errors import ContentMissing
from tiltyard.events.log import EventLog
from tiltyard.events.queries import AnswerFigures
from tiltyard.events.reading import Words
from tiltyard.events.schema import GenerationFinished
from tiltyard.rating.style import SPEED, STYLE, style_of

LACKING: Final = "answers_without_words_or_times"
"""Why a vote is left out of a board with controls."""
_MARKDOWN: Final = frozenset(STYLE) - {"length"}


class Answered(Protocol):
    """What is needed of a vote."""

    @property
    def generations_a(self) -> tuple[str, ...]:
        """Generations of side a, a turn each."""

    @property
    def generations_b(self) -> tuple[str, ...]:
        """Generations of side b, a turn each."""


Voted = TypeVar("Voted", bound=Answered)


class AnswerTraits:
    """Reads answers of one log, each once: what it said and how fast never changes. Threads may share it."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._answers: dict[str, AnswerFigures] = {}
        self._styles: dict[str, dict[str, float] | None] = {}
        self._one_reader = Lock()

    def of(
        self, votes: Iterable[Voted], names: Iterable[str], *, read_to: int | None = None
    ) -> tuple[list[Voted], dict[str, list[float]]]:
        """Return the votes whose answers tell all of `names`, and `{"<name>_a": [...], "<name>_b": [...]}` for them.

        `names` are of `STYLE` and `SPEED`. Over the turns of a battle, length (tokens), headers, bold and list items
        add up, time to first token (ms) is the mean, and tokens a second is all tokens over the time from each first
        token to the last. A vote whose words were erased, or whose answers came from a server that tells no times,
        is left out of both, and so is one that was cast before an answer ended, when that end lies beyond the log
        position `read_to`. Reads a row an answer, and event and words where Markdown is asked for.
        """
        wanted = tuple(names)
        kept: list[Voted] = []
        traits: dict[str, list[float]] = {f"{name}_{side}": [] for name in wanted for side in "ab"}
        voted = list(votes)
        with self._one_reader, self._log.words("evaluate", reader="arena/answer_traits") as words:
            self._read({name for vote in voted for name in (*vote.generations_a, *vote.generations_b)})
            for vote in voted:
                sides = (vote.generations_a, vote.generations_b)
                found = [self._side(ids, wanted, read_to, words) for ids in sides]
                if any(values is None for values in found):
                    continue
                kept.append(vote)
                for side, values in zip("ab", found, strict=True):
                    for name, value in (values or {}).items():
                        traits[f"{name}_{side}"].append(value)
        return kept, traits

    def forget_words(self) -> None:
        """Forget what was counted in words, some of which may have been erased since."""
        with self._one_reader:
            self._styles.clear()

    def _side(
        self, generations: Sequence[str], wanted: Sequence[str], read_to: int | None, words: Words
    ) -> dict[str, float] | None:
        """What one side showed over its turns, or `None` when something wanted is not known."""
        markdown = bool(_MARKDOWN & set(wanted))
        answers = []
        for generation in generations:
            answer = self._answers.get(generation)
            if answer is None or (read_to is not None and answer.sequence > read_to):
                return None
            if markdown:
                self._read_words(generation, words)
            answers.append(answer)
        values: dict[str, float] = {"length": float(sum(answer.tokens for answer in answers))}
        if markdown:
            styles = [self._styles[generation] for generation in generations]
            if any(style is None for style in styles):
                return None
            for name in _MARKDOWN:
                values[name] = sum((style or {})[name] for style in styles)
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

    def _read(self, generations: Collection[str]) -> None:
        new = [name for name in generations if name not in self._answers]
        self._answers.update(self._log.answer_figures(new))

    def _read_words(self, generation: str, words: Words) -> None:
        if generation in self._styles:
            return
        try:
            style = style_of(_text(words, self._log.generation(generation)))
        except ContentMissing:
            self._styles[generation] = None
        else:
            self._styles[generation] = {name: float(getattr(style, name)) for name in _MARKDOWN}


def _text(words: Words, answer: GenerationFinished) -> str:
    if answer.response is None:
        raise ContentMissing(f"the words of {answer.generation} were not kept")
    choice = orjson.loads(words.read(answer.response))["choices"][0]
    said = choice.get("text")
    if said is None:  # an answer with tool calls keeps the whole message
        said = choice.get("message", {}).get("content")
    return said if isinstance(said, str) else ""

"""Copied requests with both answers, as items for a judge; follows the log from where it last stood.

The words stay under the key of the person who asked: an item's `subject` is theirs, so what a judge says of them is erased with them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import orjson

from tiltyard.errors import ContentMissing, LogTampered
from tiltyard.events.log import EventLog
from tiltyard.events.permissions import PurposeRefused
from tiltyard.events.reading import Words
from tiltyard.events.schema import ContentRef, GenerationFinished
from tiltyard.judge.items import Item, JudgedAnswer

WHOLE: Final = frozenset({"stop", "length"})
"""How an answer ends that can be judged; calls of tools are none."""
MAX_WAITING: Final = 100_000
"""Originals that wait for their copies; most are never copied."""


class Pair(NamedTuple):
    """A request that both answered."""

    original: GenerationFinished
    copy: GenerationFinished

    @property
    def id(self) -> str:
        """What its item is called: the copy's generation."""
        return self.copy.generation


class ShadowPairs:
    """The pairs of one release and candidate since a place in the log."""

    def __init__(self, log: EventLog, release: str, candidate: str, *, after: int) -> None:
        self._log = log
        self._release, self._candidate = release, candidate
        self._read = after
        self._originals: dict[str, GenerationFinished] = {}

    def update(self, *, known: Collection[str] = ()) -> list[Pair]:
        """Return the pairs that are new and whose id is not known. Blocks."""
        found = []
        for event in self._log.read(after=self._read, types=(GenerationFinished,)):
            self._read = event.sequence
            data = event.data
            if not isinstance(data, GenerationFinished) or data.release != self._release:
                continue
            if data.shadow_of is None:
                self._originals[data.generation] = data
                if len(self._originals) > MAX_WAITING:
                    self._originals.pop(next(iter(self._originals)))
                continue
            original = self._originals.pop(data.shadow_of, None)
            if (
                original is not None
                and data.behaviour == self._candidate
                and data.generation not in known
                and _whole(original)
                and _whole(data)
            ):
                found.append(Pair(original, data))
        return found

    def items(self, pairs: Sequence[Pair], *, reader: str) -> list[Item]:
        """Read their words for evaluation; those that may not be read, are gone or are no plain talk are left out. Blocks."""
        found = []
        with self._log.words("evaluate", reader=reader) as words:
            for pair in pairs:
                try:
                    item = _item(words, pair)
                except (ContentMissing, LogTampered, PurposeRefused):
                    continue
                if item is not None:
                    found.append(item)
        return found


def _whole(event: GenerationFinished) -> bool:
    return len(event.choices) == 1 and event.choices[0].finish_reason in WHOLE


def _item(words: Words, pair: Pair) -> Item | None:
    prompt, response, copied = pair.original.prompt, pair.original.response, pair.copy.response
    if prompt is None or response is None or copied is None:
        return None
    talk = _talk(orjson.loads(words.read(prompt)))
    if talk is None:
        return None
    turns, said = talk
    sides = {
        event.identity: JudgedAnswer(
            (*said, _answer(words, ref)), event.identity, event.behaviour, (event.generation,)
        )
        for event, ref in ((pair.original, response), (pair.copy, copied))
    }
    return Item(
        id=pair.id,
        turns=turns,
        sides={"a": sides[pair.original.identity], "b": sides[pair.copy.identity]},
        subject=prompt.subject,
    )


def _answer(words: Words, ref: ContentRef) -> str:
    return str(orjson.loads(words.read(ref))["choices"][0]["text"])


def _talk(served: Mapping[str, object]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Questions, and the answers to all but the last; what a system message says goes before the first question."""
    if isinstance(prompt := served.get("prompt"), str):
        return (prompt,), ()
    messages = served.get("messages")
    if not isinstance(messages, list) or any(not isinstance(m.get("content"), str) for m in messages):
        return None
    before = [str(m["content"]) for m in messages if m["role"] in ("system", "developer")]
    rest = [m for m in messages if m["role"] not in ("system", "developer")]
    roles = [str(m["role"]) for m in rest]
    if len(roles) % 2 == 0 or roles != ["user" if at % 2 == 0 else "assistant" for at in range(len(roles))]:
        return None
    turns = [str(m["content"]) for m in rest[::2]]
    turns[0] = "\n\n".join([*before, turns[0]])
    return tuple(turns), tuple(str(m["content"]) for m in rest[1::2])

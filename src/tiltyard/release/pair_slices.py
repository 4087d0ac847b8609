"""In which slice a pair of answers is: a vote, a judgment, a scored or reviewed pair, an item of a fixed set.

A pair is where production's answer is: its prompt, its tenant, its class. So a slice does not depend on how the candidate counts
tokens, and the slices of all metrics are the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.rating.language import is_told
from tiltyard.release.metrics import Sample, is_in
from tiltyard.release.plan import Slice

EVERYTHING: Final = Slice()


class PairSlices:
    """Of one log; what was found of a generation is kept."""

    def __init__(self, log: EventLog, sample_of: Callable[[StoredEvent, GenerationFinished], Sample]) -> None:
        """`sample_of` reads the words of a generation, if they may be read."""
        self._log = log
        self._sample_of = sample_of
        self._known: dict[tuple[Slice, str], bool] = {}

    def is_in(self, part: Slice, generations: Sequence[str], *, language: str | None = None) -> bool | None:
        """Whether the pair whose other answer these generations made is in a slice; `None`: nobody can say. Blocks.

        The last one decides: it was asked with all that was said before. `language` is what is known of it already.
        """
        if part == EVERYTHING:
            return True
        if language is not None and part.language is not None:
            if not is_told(language, part.language):
                return False
            part = part.model_copy(update={"language": None})
            if part == EVERYTHING:
                return True
        if not generations:
            return None
        key = (part, generations[-1])
        if key not in self._known:
            inside = self._look(part, generations[-1])
            if inside is None:
                return None  # it may be written, or its words allowed, later
            self._known[key] = inside
        return self._known[key]

    def _look(self, part: Slice, generation: str) -> bool | None:
        for event in self._log.read(types=(GenerationFinished,), subject=generation, limit=1):
            if isinstance(event.data, GenerationFinished):
                return is_in(part, self._sample_of(event, event.data))
        return None

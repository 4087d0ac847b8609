"""Prompts and answers without words: ids that are equal where texts are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the answer behind it, position by position; texts with equal `names` at a place have equal tokens there."""

    own: int
    """The id of whatever has no name; no other text has it."""
    names: tuple[int, ...] = ()
    block_tokens: int = 0
    """Tokens of each of them."""

    def ids(self, start: int, end: int) -> list[int]:
        """The ids from position `start` up to `end`.

        >>> Text(9, (1, 2), 3).ids(2, 8)
        [1, 2, 2, 2, 9, 9]
        """
        size, named = self.block_tokens, len(self.names) * self.block_tokens
        ids: list[int] = []
        while start < min(end, named):
            upto = min(end, (start // size + 1) * size)
            ids += [self.names[start // size]] * (upto - start)
            start = upto
        return ids + [self.own] * (end - start) if start < end else ids

"""Guesses that a text goes on as it did before: the tokens behind the longest earlier match of its end.

Each pair of tokens remembers where it last was, and each place where its pair was before (the hash chains
of LZ77 compressors), so that taking a token costs one dictionary entry, and a look at a few earlier places only when the
last guess was wrong. Whether a guess would have been right shows without running it: every token that is sampled
tells how good matches of that length are, so an answer that stops or starts to repeat itself is noticed for free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiltyard.engine.sequence import RunningSequence

LONGEST_MATCH = 24
"""Longer matches count as this long."""
MOST_PLACES = 12
"""Earlier places compared in one look."""
PRIOR_WEIGHT = 4.0
MEMORY = 0.94
"""Weight of an outcome after each later one of the same match length."""

# Match lengths that share their outcomes: from so many tokens on, and the chance that the token behind such a match
# is the next one, before anything is known about the answer. Measured over greedy answers of the default model to
# every fourth question of MT-Bench; at temperature 1 it is half as much for the short ones, as an answer soon shows.
KINDS = ((2, 0.45), (3, 0.5), (4, 0.65), (6, 0.75), (9, 0.87), (14, 0.93), (LONGEST_MATCH, 0.97))
KIND_OF = tuple(sum(length >= start for start, _ in KINDS) - 1 for length in range(LONGEST_MATCH + 1))


class PromptLookup:
    """The `Drafter` that needs no model."""

    token_cost = 0.0

    def __init__(self) -> None:
        self._texts: dict[RunningSequence, RepeatedText] = {}

    def chances(self, sequence: RunningSequence, most: int, least: float) -> Sequence[float]:
        """As the matches of this answer have turned out so far."""
        text = self._texts.get(sequence)
        if text is None:
            text = self._texts[sequence] = RepeatedText(sequence.tokens)
        text.catch_up()
        return text.chances(most, least)

    def draft(self, lengths: Mapping[RunningSequence, int]) -> dict[RunningSequence, list[int]]:
        """What followed the match."""
        return {sequence: self._texts[sequence].continuation(n) for sequence, n in lengths.items()}

    def learn(self, sequence: RunningSequence, drafted: int, accepted: int) -> None:
        """Nothing: the tokens themselves tell."""

    def forget(self, sequence: RunningSequence) -> None:
        """Drop the index."""
        self._texts.pop(sequence, None)


class RepeatedText:
    """An index over a list of tokens that only grows.

    >>> text = RepeatedText([5, 6, 7, 8, 5, 6])
    >>> text.catch_up()
    >>> text.continuation(6)  # goes on round the loop
    [7, 8, 5, 6, 7, 8]
    """

    __slots__ = ("_before", "_hits", "_last", "_length", "_source", "_tokens", "_trials")

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._last: dict[tuple[int, int], int] = {}
        self._before: list[
            int
        ] = []  # for each position, where the pair that ends there ended before; -1: nowhere
        self._source = -1  # position of the guess; -1: none
        self._length = 0  # of the match before it
        self._hits = [0.0] * len(KINDS)
        self._trials = [0.0] * len(KINDS)

    def catch_up(self) -> None:
        """Index the tokens that have come since, and see which guesses were right."""
        tokens, first = self._tokens, len(self._before)
        if first == 0:
            self._index(0, len(tokens))
            self._look()
            return
        for at in range(first, len(tokens)):
            self._index(at, at + 1)
            if self._source >= 0 and self._judge(tokens[self._source] == tokens[at]):
                self._source += 1
                self._length = min(self._length + 1, LONGEST_MATCH)
            else:
                self._look()

    def chances(self, most: int, least: float) -> list[float]:
        """Chance that the first 1, 2, … `most` guessed tokens all come true, while it is `least` or more."""
        if self._source < 0:
            return []
        chances, product, length = [], 1.0, self._length
        for _ in range(most):
            kind = KIND_OF[length]
            product *= (PRIOR_WEIGHT * KINDS[kind][1] + self._hits[kind]) / (
                PRIOR_WEIGHT + self._trials[kind]
            )
            if product < least:
                break
            chances.append(product)
            length = min(length + 1, LONGEST_MATCH)
        return chances

    def continuation(self, count: int) -> list[int]:
        """The next `count` tokens, if the text repeats itself from the match on; the caller knows there is one."""
        tokens, source = self._tokens, self._source
        guessed = tokens[source : source + count]
        period = len(tokens) - source
        while len(guessed) < count:
            guessed.append(guessed[len(guessed) - period])
        return guessed

    def _index(self, start: int, end: int) -> None:
        tokens, last, before = self._tokens, self._last, self._before
        if start == 0 and end:
            before.append(-1)
            start = 1
        for at in range(start, end):
            pair = (tokens[at - 1], tokens[at])
            before.append(last.get(pair, -1))
            last[pair] = at

    def _judge(self, right: bool) -> bool:
        kind = KIND_OF[self._length]
        self._hits[kind] = MEMORY * self._hits[kind] + right
        self._trials[kind] = MEMORY * self._trials[kind] + 1.0
        return right

    def _look(self) -> None:
        """Find the longest match of the end among the latest places where its last pair was; the latest of equals."""
        tokens, before = self._tokens, self._before
        end = len(before) - 1
        self._source, self._length = -1, 0
        place = before[end] if end >= 0 else -1
        for _ in range(MOST_PLACES):
            if place < 0:
                return
            length, longest = 2, min(LONGEST_MATCH, place + 1)
            while length < longest and tokens[place - length] == tokens[end - length]:
                length += 1
            if length > self._length:
                self._source, self._length = place + 1, length
                if length == LONGEST_MATCH:
                    return
            place = before[place]

r"""Whether items of a set were already seen: by users' prompts in the vault, and twice in the set itself.

Exact: equal after case, width, punctuation and spacing are taken away. Near: an estimate of the Jaccard similarity of
the sets of shingles (runs of characters, so that languages without spaces are served alike) by MinHash (Broder 1997):

.. math:: J(A, B) = \frac{|A \cap B|}{|A \cup B|} = P[\min h(A) = \min h(B)]

Candidates come from banding; each is then compared by its shingles themselves, so what is reported is exact.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from tiltyard.evals.item import Item

SHINGLE: Final = 5
"""Letters of a shingle."""
BANDS, ROWS = 16, 4
"""64 hashes; texts with similarity 0.8 meet in a band with probability 0.9998, with 0.3 with 0.12."""
NEAR: Final = 0.7
LEAST_LETTERS: Final = 12
"""Below this, texts are equal or they are not: `hello` is near to everything."""
_PRIME: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Seen:
    """A text that was said elsewhere, and where; the words themselves are not kept in what is reported."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Match:
    """An item that resembles something."""

    item: str
    where: str
    """The generation, battle or item that it resembles."""
    kind: Literal["exact", "near"]
    similarity: float


@dataclass(frozen=True, slots=True)
class Contamination:
    """What was found."""

    matches: tuple[Match, ...]
    """With what users said; one for each item, the closest."""
    duplicates: tuple[Match, ...]
    """Within the set."""
    items: int
    compared: int
    """Texts of users."""

    @property
    def sentence(self) -> str:
        """In words."""
        exact = sum(match.kind == "exact" for match in self.matches)
        near = len(self.matches) - exact
        return (
            f"Of {self.items:,} items, {exact} were asked word by word and {near} nearly so among the last {self.compared:,} prompts "
            f"of users in the vault; {len(self.duplicates)} resemble an earlier item of the set."
        )


def find_contamination(items: Sequence[Item], seen: Iterable[Seen], *, near: float = NEAR) -> Contamination:
    """Compare every turn of every item with what was said, and items with each other."""
    texts = [(item.id, turn) for item in items for turn in item.turns]
    clusters = {item.id: item.cluster or item.id for item in items}
    others = list(seen)
    own = _Index(near)
    duplicates: dict[str, Match] = {}
    for item, text in texts:
        match = own.closest(item, text)
        # Items of one cluster say that they resemble each other.
        if match is not None and clusters[match.where] != clusters[item] and item not in duplicates:
            duplicates[item] = match
        own.add(item, text)
    said = _Index(near)
    for one in others:
        said.add(one.where, one.text)
    matches: dict[str, Match] = {}
    for item, text in texts:
        match = said.closest(item, text)
        if match is not None and (item not in matches or match.similarity > matches[item].similarity):
            matches[item] = match
    return Contamination(tuple(matches.values()), tuple(duplicates.values()), len(items), len(others))


def plain(text: str) -> str:
    """A text without what two writings of it differ in.

    >>> plain("What’s 17+25？") == plain("what's 17 + 25?")
    True
    """
    text = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    return re.sub(r"[^\w+\-*/=<>%]+", "", text)


def shingles(text: str) -> frozenset[str]:
    """All runs of `SHINGLE` letters of a plain text; the text itself where it is shorter."""
    return frozenset(text[at : at + SHINGLE] for at in range(max(1, len(text) - SHINGLE + 1)))


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of two texts by their shingles.

    >>> similarity("the quick brown fox", "The quick, brown fox!")
    1.0
    """
    a, b = shingles(plain(one)), shingles(plain(other))
    return len(a & b) / len(a | b)


class _Index:
    """Texts by their plain form, and by bands of their MinHash signatures."""

    def __init__(self, near: float) -> None:
        self._near = near
        self._exact: dict[str, str] = {}
        self._bands: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        self._texts: list[tuple[str, str]] = []

    def add(self, where: str, text: str) -> None:
        """Remember a text; the first one with the same plain form stands for all."""
        form = plain(text)
        if not form or form in self._exact:
            return
        self._exact[form] = where
        if len(form) < LEAST_LETTERS:
            return
        number = len(self._texts)
        self._texts.append((where, form))
        for band in _bands(form):
            self._bands[band].append(number)

    def closest(self, item: str, text: str) -> Match | None:
        """The text that resembles this one most, if any does enough."""
        form = plain(text)
        if form in self._exact:
            return Match(item, self._exact[form], "exact", 1.0)
        if len(form) < LEAST_LETTERS:
            return None
        candidates = {number for band in _bands(form) for number in self._bands.get(band, ())}
        own = shingles(form)
        best = Match(item, "", "near", 0.0)
        for number in sorted(candidates):
            where, other = self._texts[number]
            theirs = shingles(other)
            share = len(own & theirs) / len(own | theirs)
            if share > best.similarity:
                best = Match(item, where, "near", share)
        return best if best.similarity >= self._near else None


def _bands(form: str) -> list[tuple[int, bytes]]:
    signature = _signature(form)
    return [(band, signature[band * ROWS : (band + 1) * ROWS].tobytes()) for band in range(BANDS)]


def _signature(form: str) -> NDArray[np.int64]:
    """The least of each of 64 hashes over the shingles; shape `(64,)`."""
    hashes = np.array([zlib.crc32(one.encode()) % _PRIME for one in shingles(form)], dtype=np.int64)
    least: NDArray[np.int64] = ((_FACTORS[:, None] * hashes + _SHIFTS[:, None]) % _PRIME).min(axis=1)
    return least


_DRAWN = np.random.Generator(np.random.PCG64(20261201)).integers(
    1, _PRIME, size=(2, BANDS * ROWS), dtype=np.int64
)
_FACTORS: Final = _DRAWN[0]
_SHIFTS: Final = _DRAWN[1]

"""Votes added up by pair of models: all that a Bradley-Terry fit needs to know about them.

A row is one unordered pair `(i, j)`, `i < j` by name, with `[win_i, loss_i, tie, both_bad]`. Models and
pairs are sorted by name, so the order in which votes arrived or sides were shown cannot change a bit of
anything computed from here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Digest, digest_of_json
from tiltyard.rating.outcomes import BOTH_BAD, FILE_LABELS, TIE, A, B, Codes, Outcome, encode, look_up

BothBad: TypeAlias = Literal["tie", "drop"]
"""What "both bad" says about a pair: half a win each (the boards' custom), or nothing."""

_DENSE_CELLS = 1 << 22  # above this many cells sorting the votes is cheaper than an array of all cells


@dataclass(frozen=True, eq=False)
class PairCounts:
    """Votes by pair; build it with `from_votes`, `from_codes` or `from_pairs`, which put it in order."""

    models: tuple[str, ...]
    """Sorted, each once; a model without votes may be among them."""
    first: NDArray[np.intp]
    """Index of each pair's first model; shape `(pairs,)`."""
    second: NDArray[np.intp]
    """Index of each pair's second model, larger than `first`; shape `(pairs,)`."""
    counts: NDArray[np.int64]
    """`[win_i, loss_i, tie, both_bad]` of each pair; shape `(pairs, 4)`."""

    @classmethod
    def from_votes(
        cls,
        model_a: Sequence[str],
        model_b: Sequence[str],
        winner: Sequence[str],
        *,
        vocabulary: Mapping[str, Outcome] = FILE_LABELS,
        models: Iterable[str] = (),
    ) -> PairCounts:
        """Add up votes given as three columns; `models` may name some that have no vote yet.

        Raises `InvalidRequest`: an unknown outcome, columns of different lengths, a model against itself.

        >>> PairCounts.from_votes(["x", "y"], ["y", "x"], ["model_a", "model_a"]).counts.tolist()
        [[1, 1, 0, 0]]
        """
        if not len(model_a) == len(model_b) == len(winner):
            raise InvalidRequest(
                f"the columns model_a, model_b and winner have {len(model_a):,}, {len(model_b):,} and "
                f"{len(winner):,} values; a vote needs one of each.",
                param="winner",
            )
        outcomes = encode(winner, vocabulary)
        # One pass over each column: a name gets the next number when it is first asked for.
        numbers: defaultdict[str, int] = defaultdict(count().__next__)
        a, b = look_up(model_a, numbers), look_up(model_b, numbers)
        return cls.from_codes([*numbers, *(set(models) - numbers.keys())], a, b, outcomes)

    @classmethod
    def from_codes(cls, models: Sequence[str], a: Codes, b: Codes, outcomes: Codes) -> PairCounts:
        """Add up votes given as indices into `models` and outcome codes; each of shape `(votes,)`.

        Raises `InvalidRequest` for a model against itself and for a code out of range.
        """
        size = len(models)
        if len(a) and (min(a.min(), b.min()) < 0 or max(a.max(), b.max()) >= size):
            raise InvalidRequest(f"a vote names a model index outside 0..{size - 1}.", param="models")
        if len(outcomes) and (outcomes.min() < A or outcomes.max() > BOTH_BAD):
            raise InvalidRequest("a vote has an outcome code outside 0..3.", param="winner")
        keys = a.astype(np.int64)  # then in place: whole columns of votes are the cost here
        for factor, addend in ((size, b), (4, outcomes)):
            keys *= factor
            keys += addend
        if size * size * 4 <= _DENSE_CELLS:
            cells = np.bincount(keys, minlength=size * size * 4).reshape(size * size, 4)
            pairs = np.flatnonzero(cells.any(axis=1))
            counts = cells[pairs]
        else:
            cell, votes = np.unique(keys, return_counts=True)
            pairs, row = np.unique(cell // 4, return_inverse=True)
            counts = np.zeros((len(pairs), 4), dtype=np.int64)
            counts[row, cell % 4] = votes
        return cls.from_pairs(models, np.stack([pairs // size, pairs % size], axis=1) if size else [], counts)

    @classmethod
    def from_pairs(cls, models: Sequence[str], pairs: ArrayLike, counts: ArrayLike) -> PairCounts:
        """Take counts as they are: `pairs` of shape `(pairs, 2)`, `counts` `(pairs, 4)` for the pair's first.

        Pairs may come in any order and direction and more than once; they are put in order and added up.
        Raises `InvalidRequest`: shapes, negative counts, a repeated model, a model against itself.
        """
        links = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        votes = np.asarray(counts, dtype=np.int64).reshape(-1, 4)
        size = len(models)
        if len(set(models)) != size:
            raise InvalidRequest("a model is named twice.", param="models")
        if len(links) != len(votes):
            raise InvalidRequest(f"{len(links)} pairs have {len(votes)} rows of counts.", param="counts")
        if votes.size and votes.min() < 0:
            raise InvalidRequest(f"a count is {votes.min()}; counts start at 0.", param="counts")
        if links.size and (links.min() < 0 or links.max() >= size):
            raise InvalidRequest(f"a pair names a model index outside 0..{size - 1}.", param="pairs")
        if (selves := links[:, 0] == links[:, 1]).any():
            name = models[int(links[np.argmax(selves), 0])]
            raise InvalidRequest(
                f"{int(selves.sum()):,} rows set {name!r} against itself; such a vote compares nothing. "
                "Remove them.",
                param="model_b",
            )
        order = sorted(range(size), key=models.__getitem__)
        place = np.empty(size, dtype=np.int64)
        place[order] = np.arange(size)
        links = place[links]
        turned = links[:, 0] > links[:, 1]
        links[turned] = links[turned, ::-1]
        votes = np.where(turned[:, None], votes[:, [B, A, TIE, BOTH_BAD]], votes)
        keys, row = np.unique(links[:, 0] * size + links[:, 1], return_inverse=True)
        total = np.zeros((len(keys), 4), dtype=np.int64)
        np.add.at(total, row, votes)
        met = total.any(axis=1)
        keys, total = keys[met], total[met]
        return cls(
            models=tuple(models[position] for position in order),
            first=(keys // max(size, 1)).astype(np.intp),
            second=(keys % max(size, 1)).astype(np.intp),
            counts=total,
        )

    def with_models(self, models: Iterable[str]) -> PairCounts:
        """Return the same votes with `models` among the models, with no vote if they had none."""
        names = [*self.models, *sorted(set(models) - set(self.models))]
        return PairCounts.from_pairs(names, np.stack([self.first, self.second], axis=1), self.counts)

    @property
    def votes(self) -> int:
        """All votes, whatever they said."""
        return int(self.counts.sum())

    def votes_used(self, both_bad: BothBad) -> NDArray[np.int64]:
        """Votes that bear on each model's rating under the policy; shape `(models,)`."""
        tally = self.tally
        used: NDArray[np.int64] = tally.sum(axis=1)
        return used if both_bad == "tie" else used - tally[:, BOTH_BAD]

    @cached_property
    def tally(self) -> NDArray[np.int64]:
        """`[wins, losses, ties, both_bad]` of each model; shape `(models, 4)`."""
        size = len(self.models)
        tally = np.zeros((size, 4), dtype=np.int64)
        np.add.at(tally, self.first, self.counts)
        np.add.at(tally, self.second, self.counts[:, [B, A, TIE, BOTH_BAD]])
        return tally

    @cached_property
    def digest(self) -> Digest:
        """Names the counts: SHA-256 of the canonical JSON of `[model_i, model_j, four counts]` rows."""
        names = self.models
        return digest_of_json(
            [
                [names[i], names[j], *row]
                for i, j, row in zip(
                    self.first.tolist(), self.second.tolist(), self.counts.tolist(), strict=True
                )
            ]
        )

"""The four ways a vote can end, and the only labels that mean them.

A label that is not listed is refused with its count and first row; it is never read as a tie. (Reading
the 644 blank and `invalid` rows of a real 67,031-vote file as ties moves one of its ratings by 29.9 points.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest

Outcome: TypeAlias = Literal["a", "b", "tie", "both_bad"]

OUTCOMES: Final[tuple[Outcome, ...]] = ("a", "b", "tie", "both_bad")
"""In the order of the columns of a count row: won by the left, by the right, tie, both bad."""

A, B, TIE, BOTH_BAD = range(4)

EVENT_LABELS: Final[Mapping[str, Outcome]] = MappingProxyType({label: label for label in OUTCOMES})
"""What `VoteCast.choice` says."""

FILE_LABELS: Final[Mapping[str, Outcome]] = MappingProxyType(
    {
        **EVENT_LABELS,
        # LMSYS and LMArena battle files
        "model_a": "a",
        "model_b": "b",
        "tie (bothbad)": "both_bad",
        # FastChat logs
        "leftvote": "a",
        "rightvote": "b",
        "tievote": "tie",
        "bothbad_vote": "both_bad",
    }
)
"""What votes files made by others say; `tie (bothbad)` stays apart from `tie`."""


Codes: TypeAlias = NDArray[np.uint8] | NDArray[np.int32] | NDArray[np.int64]
"""Small whole numbers, as narrow as they came."""


def look_up(column: Sequence[str], numbers: Mapping[str, int]) -> Codes:
    """Turn each name of a column into its number; shape `(len(column),)`; raises `KeyError`.

    A million names take about 25 ms, half of what `np.fromiter(map(...))` takes: one C call looks all of them up, and
    numbers below 256 become bytes without passing through NumPy's conversion. Holds two tuples of the column.
    """
    if len(column) < 2:  # of one name itemgetter makes no tuple
        return np.array([numbers[name] for name in column], dtype=np.int32)
    found: tuple[int, ...] = itemgetter(*column)(numbers)
    try:
        return np.frombuffer(bytes(found), dtype=np.uint8)
    except ValueError:  # a number above 255
        return np.fromiter(found, dtype=np.int32, count=len(found))


def encode(labels: Sequence[str], vocabulary: Mapping[str, Outcome] = FILE_LABELS) -> Codes:
    """Turn labels into outcome codes, positions in `OUTCOMES`; shape `(votes,)`.

    Raises `InvalidRequest` (param `winner`) when a label is not in `vocabulary`, saying which, how often
    and where first.

    >>> encode(["model_a", "tie (bothbad)"]).tolist()
    [0, 3]
    """
    codes = {label: OUTCOMES.index(outcome) for label, outcome in vocabulary.items()}
    try:
        return look_up(labels, codes)
    except KeyError:
        unknown = set(labels) - codes.keys()
        raise InvalidRequest(_refusal(labels, unknown, vocabulary), param="winner") from None


def _refusal(labels: Sequence[str], unknown: set[str], vocabulary: Mapping[str, Outcome]) -> str:
    counts = Counter(label for label in labels if label in unknown)
    first = next(row for row, label in enumerate(labels) if label in unknown)
    listed = ", ".join(f"{label!r} ({count:,} times)" for label, count in counts.most_common(5))
    more = f" and {len(counts) - 5} more" if len(counts) > 5 else ""
    return (
        f"{counts.total():,} of {len(labels):,} votes have an outcome that means nothing here: "
        f"{listed}{more}; the first is vote {first + 1:,}. Known outcomes: {', '.join(sorted(vocabulary))}. "
        "Remove or relabel those votes; they are not counted as ties."
    )

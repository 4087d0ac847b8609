"""What a check says of an answer: right, wrong, something between, or that it cannot say.

*Unscored* is a state of its own. It is counted and never read as wrong: a judge that could not be parsed, or code that was
not allowed to run, says nothing about the model (Inspect #4026, #4283).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

AWAITING: Final = "awaiting_experts"
"""Code of a check that people have not decided on yet; a later event brings the verdict."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One check's word on one answer."""

    kind: str
    score: float | None
    """0 to 1; `None`: unscored."""
    code: str | None = None
    """Machine-readable: what was wrong, or why there is no score."""
    why: str = ""
    """For people; may hold words of the answer, so it goes into the vault."""

    @classmethod
    def of(cls, kind: str, right: bool, code: str, why: str = "") -> Self:
        """Right, or wrong by `code`.

        >>> Verdict.of("exact", True, "other").score
        1.0
        """
        return cls(kind, 1.0) if right else cls(kind, 0.0, code, why)

    @classmethod
    def unscored(cls, kind: str, code: str, why: str = "") -> Self:
        """The check cannot say."""
        return cls(kind, None, code, why)


def combined(verdicts: Sequence[Verdict]) -> float | None:
    """The score of an item: its least one. A check that is surely wrong decides; else one that cannot say leaves it unscored.

    >>> combined([Verdict("a", 1.0), Verdict("b", None)]) is None
    True
    >>> combined([Verdict("a", 0.0), Verdict("b", None)])
    0.0
    """
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    least = min(scores, default=None)
    return least if least == 0.0 or len(scores) == len(verdicts) else None

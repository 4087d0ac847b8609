r"""What moves a judge besides quality: position, length, markup, its own kind; each with an interval.

One logistic regression over all judgments of pairs, both orders of each, ties as halves, without an intercept since
which side is a says nothing:

    log-odds that a wins = b_pos x_pos + b_len x_len + b_markup x_markup + b_own x_own + b_people x_people

`x_pos` is 1 where a was shown first and -1 where b was; `x_len` and `x_markup` are `(a - b) / (a + b)` of words and of headers,
bold and lists (`rating/style.py`); `x_own` is 1 where a is of the judge's kind and b is not, -1 the other way; `x_people` is what people say
of the pair, from -1 to 1. Intervals are clustered by question, and hold where a cause decides nearly everything (`rating/firth.py`).

Position is told apart from everything else by asking both orders. The others are only told apart from quality where people have
voted: without votes `controlled` is false, and a judge that likes long answers may be right to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.events.schema import JudgedSide
from tiltyard.judge.judgments import Judgments, Line
from tiltyard.rating.firth import fit_firth
from tiltyard.rating.proportions import Interval

Cause = Literal["position", "length", "markup", "own_kind", "people"]
CAUSES: Final[tuple[Cause, ...]] = ("position", "length", "markup", "own_kind", "people")
SHOWN: Final[Mapping[Cause, tuple[float, str]]] = {
    "position": (1.0, "the answer shown first wins against its equal"),
    "length": (1 / 3, "an answer twice as long wins against its equal"),
    "markup": (1.0, "an answer with headers, bold or lists wins against its equal without"),
    "own_kind": (1.0, "an answer of the judge's own kind wins against its equal"),
    "people": (1.0, "the answer that all people prefer wins"),
}
"""The difference at which an effect is shown, and its words."""
POINTS: Final = {"a": 1.0, "b": 0.0, "tie": 0.5, "both_bad": 0.5}


@dataclass(frozen=True, slots=True)
class Effect:
    """One cause."""

    cause: Cause
    log_odds: Interval
    """Coefficient."""
    chance: Interval
    """That the favoured answer wins at the difference of `SHOWN`, all else equal; one half is fair."""
    meaning: str
    """What `chance` is the chance of."""


@dataclass(frozen=True, slots=True)
class BiasReport:
    """All causes that the judgments can tell apart."""

    line: Line
    effects: tuple[Effect, ...]
    judgments: int
    controlled: bool
    """Whether people's votes stand for quality; else only position is free of it."""
    converged: bool

    def effect(self, cause: Cause) -> Effect | None:
        """One of them, or `None` where these judgments cannot tell."""
        return next((one for one in self.effects if one.cause == cause), None)


def measure_bias(
    judgments: Judgments,
    *,
    people: Mapping[str, float] | None = None,
    own: Collection[str] = (),
    confidence: float = 0.95,
) -> BiasReport:
    """Measure a judge on pairs; `people` are points of side a by item (`itm_…`), `own` identities or behaviours of its kind.

    With `people`, items without votes are left out. Raises `InvalidRequest` when no pair has a verdict.
    """
    people = people or {}
    rows: list[list[float]] = []
    outcomes: list[float] = []
    questions: list[str] = []
    for one in judgments.all:
        data = one.data
        if data.mode != "pairwise" or data.verdict is None or (people and data.item not in people):
            continue
        a, b = sorted(data.sides, key=lambda side: side.side)
        rows.append([
            1.0 if data.order == "ab" else -1.0,
            _relative(a.words, b.words),
            _relative(a.markup, b.markup),
            float(_is_of(a, own)) - float(_is_of(b, own)),
            2 * people.get(data.item, 0.5) - 1,
        ])  # fmt: skip
        outcomes.append(POINTS[data.verdict])
        questions.append(data.question)
    if not rows:
        raise InvalidRequest(
            f"{judgments.line.label} has no verdict on a pair{' that people voted on' if people else ''}; "
            "judge some first (`tiltyard judge run`)",
            param="judge",
        )
    design = np.array(rows)
    kept = _independent(design)
    fit = fit_firth(design[:, kept], np.array(outcomes), clusters=questions)
    effects = [
        _effect(CAUSES[column], fit.interval(place, confidence=confidence))
        for place, column in enumerate(kept)
    ]
    return BiasReport(judgments.line, tuple(effects), len(rows), 4 in kept, fit.converged)


def _effect(cause: Cause, log_odds: Interval) -> Effect:
    at, meaning = SHOWN[cause]

    def chance(value: float) -> float:
        return float(1 / (1 + np.exp(-at * value)))

    chances = Interval(
        chance(log_odds.estimate),
        chance(log_odds.lower),
        chance(log_odds.upper),
        log_odds.n,
        log_odds.clusters,
    )
    return Effect(cause, log_odds, chances, meaning)


def _independent(design: NDArray[np.float64]) -> list[int]:
    """Columns from the left that add something to those before them."""
    kept: list[int] = []
    for column in range(design.shape[1]):
        if np.linalg.matrix_rank(design[:, [*kept, column]]) > len(kept):
            kept.append(column)
    return kept


def _relative(a: int, b: int) -> float:
    return (a - b) / (a + b) if a + b else 0.0


def _is_of(side: JudgedSide, own: Collection[str]) -> bool:
    return side.identity in own or (side.behaviour is not None and side.behaviour in own)

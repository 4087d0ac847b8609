"""Reads a verdict from what a judge said: the last strict match, or none.

The last, because a judge that quotes an answer quotes what stands in it (FastChat PR #3921). Strict, because a loose
one finds a verdict in `downgrade:` or `CI` (Inspect #4283, #4025). A text without a verdict is unscored, which is
neither a loss nor a tie (Inspect #4026, #4872).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from tiltyard.judge.rubric import Rubric

Place = Literal["first", "second", "tie"]
"""The answer that the judge saw first, the one it saw second, or neither."""
Unscored = Literal["no_verdict", "cut", "out_of_range", "form_not_held", "refused"]

PLACES: Final[tuple[Place, ...]] = ("first", "second", "tie")
"""What a rubric's `tokens` mean, in their order."""
_RATING = re.compile(r"\[\[([0-9]{1,3}(?:\.[0-9]{1,2})?)\]\]")
_TWO_SCORES = re.compile(
    r"[ \t]*([0-9]{1,3}(?:\.[0-9]{1,2})?)[ \t]*[ \t,][ \t]*([0-9]{1,3}(?:\.[0-9]{1,2})?)[ \t]*"
)
TIE_BELOW: Final = 0.1
"""Two scores that differ by less are a tie (MT-Bench's rule)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a judge's text says, by the places in which it saw the answers."""

    place: Place | None = None
    score: float | None = None
    scores: tuple[float, float] | None = None
    """Of the first and the second answer."""
    unscored: Unscored | None = None


def read_verdict(rubric: Rubric, text: str, *, cut: bool = False) -> Reading:
    """Read a verdict; `cut` says that the text ended by length, and what it quoted last may be no verdict.

    >>> from tiltyard.judge.rubric import load_rubric
    >>> read_verdict(load_rubric("pairwise"), "It says [[A]], but is wrong: [[B]]").place
    'second'
    """
    if rubric.form == "two_scores":
        return _two_scores(rubric, text)
    if cut:
        return Reading(unscored="cut")
    if rubric.form == "letters":
        found = token_pattern(rubric.tokens).findall(text)
        if not found:
            return Reading(unscored="no_verdict")
        return Reading(place=PLACES[rubric.tokens.index(found[-1])])
    ratings = _RATING.findall(text)
    if not ratings:
        return Reading(unscored="no_verdict")
    score = float(ratings[-1])
    if not rubric.lowest <= score <= rubric.highest:
        return Reading(unscored="out_of_range")
    return Reading(score=score)


@cache
def token_pattern(tokens: tuple[str, ...]) -> re.Pattern[str]:
    """Finds tokens to the letter; one that ends in a letter or digit is no part of a longer word."""
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(_alone(token) for token in longest_first))


def _alone(token: str) -> str:
    before, behind = (r"(?<!\w)" if token[0].isalnum() else "", r"(?!\w)" if token[-1].isalnum() else "")
    return before + re.escape(token) + behind


def _two_scores(rubric: Rubric, text: str) -> Reading:
    """Two numbers alone on the first line, as Vicuna's reviewers were asked for; a cut behind them takes nothing."""
    found = _TWO_SCORES.fullmatch(text.partition("\n")[0])
    if found is None:
        return Reading(unscored="no_verdict")
    first, second = float(found[1]), float(found[2])
    if not all(rubric.lowest <= one <= rubric.highest for one in (first, second)):
        return Reading(unscored="out_of_range")
    if abs(first - second) < TIE_BELOW:
        return Reading("tie", scores=(first, second))
    return Reading("first" if first > second else "second", scores=(first, second))

r"""Covariates for style and speed control: how differently the two answers of a battle looked and flowed.

For a count `f` (words, headers, bold, list items, or tokens a second) the covariate is `x = (f_a - f_b) / (f_a + f_b)`,
0 where both are 0 (arena-rank's form; FastChat divides by `f_a + f_b + 1`). `fit_votes` divides it by its
standard deviation. Ratings are then those of answers of equal style (LMSYS, "Does style matter?", 2024).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tiltyard.errors import InvalidRequest

STYLE: Final = ("length", "headers", "bold", "lists")
"""Names of the style covariates, in the order of `Style`."""
SPEED: Final = ("time_to_first_token", "tokens_per_second")
"""Names of the speed covariates."""

_FENCED = re.compile(r"^[ ]{0,3}(```+|~~~+).*?(?:^[ ]{0,3}\1[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_HEADER = re.compile(r"^[ ]{0,3}#{1,6}[ \t]+\S", re.MULTILINE)
_BOLD = re.compile(r"\*\*(?=\S)[^*\n]+(?<=\S)\*\*|(?<!\w)__(?=\S)[^_\n]+(?<=\S)__(?!\w)")
_LIST = re.compile(r"^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S", re.MULTILINE)
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


class Style(NamedTuple):
    """What one answer looks like."""

    length: int
    """Words; a Chinese character or a kana counts as one. With a tokenizer at hand count tokens instead."""
    headers: int
    bold: int
    lists: int
    """List items, numbered or not."""


def style_of(markdown: str) -> Style:
    r"""Count an answer's length and Markdown; fenced code counts as length and as nothing else.

    >>> style_of("# One\n\n- **two**\n- three\n")
    Style(length=6, headers=1, bold=1, lists=2)
    """
    prose = _FENCED.sub("", markdown)
    return Style(
        length=len(_WIDE.sub(" ", markdown).split()) + len(_WIDE.findall(markdown)),
        headers=len(_HEADER.findall(prose)),
        bold=len(_BOLD.findall(prose)),
        lists=len(_LIST.findall(prose)),
    )


def relative_difference(a: ArrayLike, b: ArrayLike, *, name: str = "covariate") -> NDArray[np.float64]:
    """Return `(a - b) / (a + b)`, 0 where both are 0; raises `InvalidRequest` for a negative value or none.

    >>> relative_difference([3, 0], [1, 0]).tolist()
    [0.5, 0.0]
    """
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.shape != right.shape:
        raise InvalidRequest(
            f"{name} has {left.shape} values on side a and {right.shape} on side b.", param=name
        )
    if not (np.isfinite(left) & np.isfinite(right) & (left >= 0) & (right >= 0)).all():
        raise InvalidRequest(
            f"{name} has a value that is negative or no number; leave out votes that lack it.", param=name
        )
    total = left + right
    return (left - right) / np.where(total > 0, total, 1.0)


def differences(sides: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> dict[str, NDArray[np.float64]]:
    """Turn `{name: (of side a, of side b)}` into covariates for `fit_votes`."""
    return {name: relative_difference(a, b, name=name) for name, (a, b) in sides.items()}


def left_side(votes: int) -> dict[str, NDArray[np.float64]]:
    """Return the covariate of the advantage that the left side has by being left; shape `(votes,)`."""
    return {"left_side": np.ones(votes)}

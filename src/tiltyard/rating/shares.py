"""A share with its interval: failures of answers, places on the left, truncations, refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json
from tiltyard.rating.proportions import wilson


@dataclass(frozen=True)
class Share:
    """So many of so many; the bounds are `None` where there was nothing to count."""

    count: int
    of: int
    share: float | None
    lower: float | None
    upper: float | None

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it, rounded to a hundredth of a percent."""
        return {
            "count": self.count,
            "of": self.of,
            "share": _rounded(self.share),
            "lower": _rounded(self.lower),
            "upper": _rounded(self.upper),
        }


def share_of(count: int, of: int, *, confidence: float = 0.95) -> Share:
    """Return a share with Wilson's interval (E. B. Wilson, JASA 22, 1927, equation 1).

    It keeps its promise for few trials and for shares near 0 and 1, where the usual one does not. Raises `InvalidRequest`
    naming `count` when it is not between 0 and `of`.

    >>> round(share_of(0, 20).upper, 4)
    0.1611
    """
    if not 0 <= count <= of:
        raise InvalidRequest(f"{count:,} of {of:,} is no share; count lies between 0 and of.", param="count")
    if not of:
        return Share(0, 0, None, None, None)
    share = count / of
    lower, upper = wilson(share, of, confidence)
    # At the ends the bound is the share itself; rounding must not put it beside.
    return Share(count, of, share, 0.0 if count == 0 else lower, 1.0 if count == of else upper)


def quantile(values: Sequence[float], at: float) -> float | None:
    """Return the least value that at least `at` of all values do not exceed; `None` without values.

    It is always a value that was measured: the p99 of 5 values is the largest of them.

    >>> quantile([3.0, 1.0, 2.0, 4.0], 0.5), quantile([], 0.5)
    (2.0, None)
    """
    if not 0 < at <= 1:
        raise InvalidRequest(f"a quantile at {at} is none; it lies above 0 and up to 1.", param="at")
    ordered = sorted(values)
    return ordered[math.ceil(at * len(ordered)) - 1] if ordered else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

"""Means of values without bounds (milliseconds, tokens), tested at every look: the normal mixture boundary.

Robbins' mixture of likelihood ratios over N(0, r^2) shifts, which is the mixture sequential probability ratio test
(mSPRT), gives for a mean of n values with standard deviation s the half-width

    s * sqrt( (n r^2 + 1) / (n^2 r^2) * log( (n r^2 + 1) / alpha^2 ) )

at error `alpha` for both sides together, at all n at once: S. Howard, A. Ramdas, J. McAuliffe, J. Sekhon, *Time-uniform,
nonparametric, nonasymptotic confidence sequences*, Annals of Statistics 49 (2021), eq. 14 (two-sided normal mixture); R.
Johari, P. Koomen, L. Pekelis, D. Walsh, *Always valid inference*, Operations Research 70 (2022), eq. 13. With the estimated
deviation it holds for large n: I. Waudby-Smith, D. Arbour, R. Sinha, E. Kennedy, A. Ramdas, *Time-uniform central limit
theory and asymptotic confidence sequences*, Annals of Statistics 52 (2024), theorem 2.2. So no interval is given before
`BURN_IN` values.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tiltyard.errors import InvalidRequest
from tiltyard.rating.betting import Interval

BURN_IN = 50
"""Values before which the deviation is not believed."""


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations of a stream (Welford)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def with_value(self, value: float) -> Moments:
        """The moments after one more value."""
        n = self.n + 1
        step = value - self.mean
        mean = self.mean + step / n
        return Moments(n, mean, self.squares + step * (value - mean))

    @property
    def variance(self) -> float:
        """Unbiased; infinite for fewer than two values."""
        return self.squares / (self.n - 1) if self.n > 1 else math.inf


def mixture_interval(moments: Moments, alpha: float, *, tuned_for: int = 1000) -> Interval | None:
    """The mean's interval, each side failing with at most `alpha` at all times at once; `None` before `BURN_IN`.

    `tuned_for` is the number of values at which it is about as tight as it can be (Howard et al. 2021, eq. 18).

    >>> moments = Moments(10_000, 5.0, 9_999.0)
    >>> low, high = mixture_interval(moments, 0.025)
    >>> round(5.0 - low, 4), round(high - 5.0, 4)
    (0.0324, 0.0324)
    """
    if not 0 < alpha < 0.5:
        raise InvalidRequest(f"alpha is {alpha:g}; it must be between 0 and 0.5", param="alpha")
    if moments.n < BURN_IN:
        return None
    both = 2 * alpha
    r2 = (-2 * math.log(both) + math.log(-2 * math.log(both) + 1)) / tuned_for
    scaled = moments.n * r2 + 1
    half = math.sqrt(moments.variance * scaled / (moments.n**2 * r2) * math.log(scaled / both**2))
    return Interval(moments.mean - half, moments.mean + half)

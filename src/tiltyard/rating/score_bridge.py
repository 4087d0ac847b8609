r"""A bridge from one judge's scale to another's, from a sample that both have scored.

Ratings: linear equating, which gives both scales the same mean and spread on the bridge sample,

    new = m_new + (s_new / s_old) (old - m_old)

(Kolen and Brennan, "Test equating, scaling, and linking", 2014, equation 2.11). It is the same bridge in both directions, and unlike a regression it
does not pull every score towards the mean.

Verdicts: the chances `P(new verdict | old verdict)` of a, tie, b, made even under a swap of the sides since which side is a says
nothing; an old judge's shares times these are shares on the new one's scale (they hold where items are as in the sample).

Either way the uncertainty of the bridge itself, by the jackknife over clusters of items, is added to that of what crosses it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.proportions import (
    Interval,
    cluster_numbers,
    cluster_sums,
    mean_interval,
    share_interval,
    z_of,
)

LEAST_ITEMS = 8
"""Items below which no bridge is built."""
OUTCOMES = ("a", "tie", "b")


@dataclass(frozen=True, slots=True)
class RatingBridge:
    """`new = offset + slope * old`, with the covariance of the two."""

    offset: float
    slope: float
    variance_offset: float
    variance_slope: float
    covariance: float
    shift: Interval
    """Mean of new minus old on the sample."""
    n: int
    clusters: int

    def across(self, old: Interval, *, confidence: float = 0.95) -> Interval:
        """A mean on the old scale, on the new one; wider by what the bridge does not know."""
        z = z_of(confidence)
        estimate = self.offset + self.slope * old.estimate
        bridge = (
            self.variance_offset + old.estimate**2 * self.variance_slope + 2 * old.estimate * self.covariance
        )
        half = z * math.sqrt(max(0.0, bridge) + (self.slope * old.half / z) ** 2)
        return Interval(estimate, estimate - half, estimate + half, old.n, old.clusters)


@dataclass(frozen=True, eq=False)
class VerdictBridge:
    """Chances of the new judge's verdict (columns a, tie, b) by the old one's (rows)."""

    chances: NDArray[np.float64]
    """Shape `(3, 3)`; rows sum to 1."""
    left_out: NDArray[np.float64]
    """The same without each cluster in turn; shape `(clusters, 3, 3)`."""
    decided: float
    """Pairs, and half counts beside them, from which the row of a, which is that of b turned round, was made."""
    shift: Interval
    """Mean of new minus old points of side a on the sample."""
    n: int

    def across(self, counts: ArrayLike, *, confidence: float = 0.95) -> Interval:
        """Points of side a on the new scale, from the old judge's counts of a, tie and b."""
        given = np.asarray(counts, dtype=np.float64)
        if given.shape != (3,) or given.sum() <= 0 or (given < 0).any():
            raise InvalidRequest("counts are three, of a, tie and b, not all 0.", param="counts")
        total = float(given.sum())
        shares = given / total
        worth = np.array([1.0, 0.5, 0.0])
        estimate = float(shares @ self.chances @ worth)
        drawn = self.left_out @ worth  # (clusters, 3): points by the old verdict
        of_bridge = drawn @ shares
        count = len(of_bridge)
        by_old = self.chances @ worth
        # What was never seen has no spread to leave out: the row's own posterior (Dirichlet) says how rare it may still be.
        of_row = float(self.chances[0] @ worth**2) - float(by_old[0]) ** 2
        unseen = float(shares[0] - shares[2]) ** 2 * of_row / (self.decided + 1)
        variance = max(unseen, (count - 1) / count * float(((of_bridge - of_bridge.mean()) ** 2).sum()))
        variance += (float(shares @ by_old**2) - float(shares @ by_old) ** 2) / total
        half = z_of(confidence) * math.sqrt(variance)
        return Interval(estimate, max(0.0, estimate - half), min(1.0, estimate + half), int(total), count)


def bridge_ratings(
    old: ArrayLike,
    new: ArrayLike,
    *,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> RatingBridge:
    """Build a bridge from both judges' ratings of the same answers.

    Raises `InvalidRequest`: fewer than 8 answers, lengths that differ, a judge that gives all of them the same.
    """
    x, y = np.asarray(old, dtype=np.float64), np.asarray(new, dtype=np.float64)
    _enough(x, y)
    if not x.std() or not y.std():
        raise InvalidRequest(
            "one of the judges gives every answer of the bridge set the same rating; a scale needs answers "
            "that differ.",
            param="bridge",
        )
    numbers = cluster_numbers(clusters, x.size)
    moments = np.stack([np.ones_like(x), x, y, x**2, y**2], axis=1)
    sums = cluster_sums(moments, numbers)
    whole = sums.sum(axis=0)
    offset, slope = _line(whole)
    left_out = np.array([_line(whole - one) for one in sums])
    left_out = left_out[np.isfinite(left_out).all(axis=1)]
    count = len(left_out)
    if count < 2:
        raise InvalidRequest("the bridge set is one cluster; it needs items of several.", param="clusters")
    spread = (count - 1) / count * np.cov(left_out.T, bias=True) * count
    return RatingBridge(
        offset=offset,
        slope=slope,
        variance_offset=float(spread[0, 0]),
        variance_slope=float(spread[1, 1]),
        covariance=float(spread[0, 1]),
        shift=mean_interval(y - x, clusters=clusters, confidence=confidence),
        n=x.size,
        clusters=len(sums),
    )


def bridge_verdicts(
    old: Sequence[str],
    new: Sequence[str],
    *,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> VerdictBridge:
    """Build a bridge from both judges' verdicts (`a`, `tie`, `b`) on the same pairs; raises as `bridge_ratings`."""
    places = {label: place for place, label in enumerate(OUTCOMES)}
    if unknown := sorted({*old, *new} - places.keys()):
        raise InvalidRequest(f"a verdict is a, tie or b; there is {unknown[0]!r}.", param="bridge")
    x, y = (np.array([places[label] for label in side], dtype=np.intp) for side in (old, new))
    _enough(x.astype(np.float64), y.astype(np.float64))
    cells = np.zeros((x.size, 9))
    cells[np.arange(x.size), x * 3 + y] = 1.0
    tables = cluster_sums(cells, cluster_numbers(clusters, x.size)).reshape(-1, 3, 3)
    if len(tables) < 2:
        raise InvalidRequest("the bridge set is one cluster; it needs items of several.", param="clusters")
    whole = tables.sum(axis=0)
    return VerdictBridge(
        chances=_chances(whole),
        left_out=np.array([_chances(whole - one) for one in tables]),
        decided=float(_even(whole)[0].sum()),
        shift=_shift((x - y) / 2, clusters, confidence),
        n=x.size,
    )


def _shift(
    differences: NDArray[np.float64], clusters: Sequence[Hashable] | None, confidence: float
) -> Interval:
    """Mean of differences from -1 to 1: what went up less what went down, each a share with Wilson's interval.

    Put together as Newcombe has it for paired shares (1998, Statistics in Medicine 17, 2635-2650, method 10), so that two judges that never
    disagreed on the sample still may elsewhere.
    """
    up, down = np.maximum(differences, 0), np.maximum(-differences, 0)
    more, less = (share_interval(part, clusters=clusters, confidence=confidence) for part in (up, down))
    spread = math.sqrt(float(up.var()) * float(down.var()))
    phi = float(((up - up.mean()) * (down - down.mean())).mean()) / spread if spread else 0.0
    estimate = more.estimate - less.estimate

    def reach(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))

    lower = estimate - reach(more.estimate - more.lower, less.upper - less.estimate)
    upper = estimate + reach(more.upper - more.estimate, less.estimate - less.lower)
    return Interval(estimate, max(-1.0, lower), min(1.0, upper), more.n, more.clusters)


def _enough(x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    if x.shape != y.shape or x.ndim != 1:
        raise InvalidRequest(
            f"the old judge scored {x.size} and the new one {y.size} of the bridge set; both must score all.",
            param="bridge",
        )
    if x.size < LEAST_ITEMS:
        raise InvalidRequest(
            f"the bridge set has {x.size} items that both judges scored; it needs {LEAST_ITEMS}.",
            param="bridge",
        )


def _line(sums: NDArray[np.float64]) -> tuple[float, float]:
    n, x, y, xx, yy = (float(value) for value in sums)
    if n < 2:
        return math.nan, math.nan
    old, new = xx / n - (x / n) ** 2, yy / n - (y / n) ** 2
    if old <= 0 or new < 0:
        return math.nan, math.nan
    slope = math.sqrt(new / old)
    return y / n - slope * x / n, slope


def _chances(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of chances, even under a swap of sides; half a count in each cell keeps every row open."""
    even = _even(table)
    return np.asarray(even / even.sum(axis=1, keepdims=True))


def _even(table: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(table + table[::-1, ::-1] + 0.5)

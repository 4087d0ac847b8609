r"""How far two or more people or judges agree, beyond what chance would give.

For two raters with shares `p_ij` of items that the first puts in category i and the second in j:

    raw    p_o = sum_i p_ii
    Cohen  kappa = (p_o - p_e) / (1 - p_e),  p_e = sum_i p_i. p_.i        (Cohen, 1960, equation 1)

For any number of raters with gaps, from the coincidences `o_ck = sum_u (pairs of c and k in unit u) / (m_u - 1)`:

    Krippendorff  alpha = 1 - D_o / D_e,  D_o = sum o_ck d^2_ck / n,  D_e = sum n_c n_k d^2_ck / (n (n - 1))

(Krippendorff, "Computing Krippendorff's alpha-reliability", 2011), with nominal, ordinal or interval distances d.

Intervals come from the jackknife that leaves out one cluster of items at a time, so votes on one question, or by one
person, need not be independent: `V = (C - 1) / C sum_c (t_(c) - mean)^2` (Efron and Stein, 1981).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.proportions import NOTHING, Interval, cluster_numbers, cluster_sums, share_interval, z_of

Level: TypeAlias = Literal["nominal", "ordinal", "interval"]
Label: TypeAlias = str | float


def raw_agreement(
    first: Sequence[Label],
    second: Sequence[Label],
    *,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Share of items on which two raters say the same; Wilson's interval.

    >>> raw_agreement(["a", "b", "a", "b"], ["a", "b", "b", "b"]).estimate
    0.75
    """
    _same_length(first, second)
    same = [one == other for one, other in zip(first, second, strict=True)]
    return share_interval(same, clusters=clusters, confidence=confidence)


def cohen_kappa(
    first: Sequence[Label],
    second: Sequence[Label],
    *,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Cohen's kappa of two raters; NaN where chance alone would agree always.

    >>> kappa = cohen_kappa(["y"] * 25 + ["n"] * 25, ["y"] * 20 + ["n"] * 5 + ["y"] * 10 + ["n"] * 15)
    >>> round(kappa.estimate, 4)
    0.4
    """
    _same_length(first, second)
    if not first:
        return NOTHING
    categories = {label: place for place, label in enumerate(dict.fromkeys([*first, *second]))}
    size = len(categories)
    cells = np.zeros((len(first), size * size))
    places = [categories[a] * size + categories[b] for a, b in zip(first, second, strict=True)]
    cells[np.arange(len(first)), places] = 1.0
    tables = cluster_sums(cells, cluster_numbers(clusters, len(first))).reshape(-1, size, size)
    return _jackknife(tables, _kappa, len(first), confidence)


def krippendorff_alpha(
    units: Sequence[Sequence[Label | None]],
    *,
    level: Level = "nominal",
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Krippendorff's alpha of units, each a list of what its raters said; `None` is a gap, units of one are left out.

    Labels of `ordinal` and `interval` are numbers. `n` counts the units used.

    >>> krippendorff_alpha([[1, 1], [2, 2], [1, 2]]).n
    3
    """
    given = [[value for value in unit if value is not None] for unit in units]
    keep = [place for place, unit in enumerate(given) if len(unit) > 1]
    if not keep:
        return NOTHING
    if level != "nominal" and any(isinstance(value, str) for place in keep for value in given[place]):
        raise InvalidRequest(f"level {level} needs numbers; a label is a text.", param="level")
    values = {value for place in keep for value in given[place]}
    ordered = sorted(values, key=lambda value: (isinstance(value, str), value))
    places = {value: number for number, value in enumerate(ordered)}
    size = len(ordered)
    coincidences = np.zeros((len(keep), size, size))
    for row, place in enumerate(keep):
        counts = np.bincount([places[value] for value in given[place]], minlength=size).astype(np.float64)
        coincidences[row] = (np.outer(counts, counts) - np.diag(counts)) / (counts.sum() - 1)
    numbers = cluster_numbers(None if clusters is None else [clusters[place] for place in keep], len(keep))
    tables = cluster_sums(coincidences.reshape(len(keep), -1), numbers).reshape(-1, size, size)
    numeric = [float(value) for value in ordered] if level != "nominal" else []
    scale = np.array(numeric, dtype=np.float64)
    return _jackknife(tables, lambda table: _alpha(table, level, scale), len(keep), confidence)


def _kappa(table: NDArray[np.float64]) -> float:
    total = float(table.sum())
    if not total:
        return math.nan
    observed = float(np.trace(table)) / total
    chance = float(table.sum(axis=0) @ table.sum(axis=1)) / total**2
    # No label but one on both sides: agreement is certain, and says nothing.
    return math.nan if math.isclose(chance, 1.0) else (observed - chance) / (1 - chance)


def _alpha(table: NDArray[np.float64], level: Level, scale: NDArray[np.float64]) -> float:
    marginal = table.sum(axis=0)
    total = float(marginal.sum())
    distance = _distances(marginal, level, scale)
    expected = float(marginal @ distance @ marginal) / (total - 1) if total > 1 else 0.0
    return math.nan if expected <= 0 else 1 - float((table * distance).sum()) / expected


def _distances(
    marginal: NDArray[np.float64], level: Level, scale: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Squared distances between categories."""
    size = len(marginal)
    if level == "nominal":
        return 1.0 - np.eye(size)
    if level == "interval":
        return np.asarray((scale[:, None] - scale[None, :]) ** 2, dtype=np.float64)
    below = np.cumsum(marginal) - marginal / 2  # ranks in the middle of each category
    return np.asarray((below[:, None] - below[None, :]) ** 2, dtype=np.float64)


def _jackknife(
    tables: NDArray[np.float64],
    statistic: Callable[[NDArray[np.float64]], float],
    n: int,
    confidence: float,
) -> Interval:
    whole = tables.sum(axis=0)
    estimate = statistic(whole)
    count = len(tables)
    left_out = np.array([statistic(whole - table) for table in tables])
    left_out = left_out[np.isfinite(left_out)]
    if len(left_out) < 2 or math.isnan(estimate):
        return Interval(estimate, math.nan, math.nan, n, count)
    variance = (len(left_out) - 1) / len(left_out) * float(((left_out - left_out.mean()) ** 2).sum())
    if variance <= 0:  # nothing differs, whichever cluster is left out: how much it could is not known
        return Interval(estimate, math.nan, math.nan, n, count)
    half = z_of(confidence) * math.sqrt(variance)
    return Interval(estimate, max(-1.0, estimate - half), min(1.0, estimate + half), n, count)


def _same_length(first: Sequence[Label], second: Sequence[Label]) -> None:
    if len(first) != len(second):
        raise InvalidRequest(f"one rater has {len(first)} labels, the other {len(second)}.", param="second")

"""A gate: samples in, at any time, a verdict out: pass, fail or hold, with the words for it.

Looking costs nothing: the tests of `rating/betting.py`, `rating/mixture_sequence.py` and `rating/quantile_sequence.py` hold at
every look at once. What is missing or could not be read makes a verdict hold; it never makes it pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from tiltyard.rating.betting import BoundedMean, Interval
from tiltyard.rating.mixture_sequence import Moments, mixture_interval
from tiltyard.rating.quantile_sequence import quantile, quantile_interval
from tiltyard.release.plan import MEANS, QUANTILES, WINS, Gate

Verdict = Literal["pass", "fail", "hold"]
MISSING_LIMIT = 0.1
"""Share of samples that could not be read from which a gate holds whatever the others say."""


class Judged(NamedTuple):
    """What a gate says now."""

    verdict: Verdict
    effect: float | None
    low: float | None
    high: float | None
    samples: int
    samples_other: int
    words: str


class Bound(NamedTuple):
    """What is known against a gate's bound."""

    effect: float
    interval: Interval
    within: bool
    """Shown to be within the bound."""
    beyond: bool
    """Shown to be beyond it."""


class GateTest:
    """One gate's evidence so far. Values are of the candidate and of what it is compared with, in the order they came."""

    def __init__(self, gate: Gate, alpha: float, minimum: int, *, paired: bool) -> None:
        """`paired`: values come as pairs about the same thing (a copied prompt, a battle, an item)."""
        self.gate = gate
        self.minimum = gate.minimum or minimum
        self.paired = paired
        self._alpha = alpha
        self._candidate: list[float] = []
        self._other: list[float] = []
        self._read = 0
        """Pairs that the means have seen."""
        self.missing = 0
        """Samples that should have said something and could not be read."""
        self.awaiting = 0
        """Answers that experts have not decided on; while there are some, nothing passes."""
        self.left_out = 0
        """Votes that were taken back or that the ruleset does not count."""
        self.unknown = ""
        """Why nobody can say which votes count; while that is so, it holds."""
        self._moments = Moments()
        self._mean = self._new_mean()

    def _new_mean(self) -> BoundedMean | None:
        if self.gate.metric in (*MEANS, *QUANTILES):
            return None
        bounds = (0.0, 1.0) if self.gate.limit is not None else (-1.0, 1.0)
        return BoundedMean(self._alpha, bounds=bounds, margins=(self._margin,))

    def add(self, candidate: float | None = None, other: float | None = None) -> None:
        """Take a value of either, or a pair."""
        if candidate is not None:
            self._candidate.append(candidate)
        if other is not None:
            self._other.append(other)

    def retell(self, scores: Sequence[float], *, left_out: int, missing: int = 0, unknown: str = "") -> None:
        """Take all of a win rate's pairs anew; if they are not those known and more, the test begins again with them."""
        self.left_out, self.missing, self.unknown = left_out, missing, unknown
        if list(scores[: len(self._candidate)]) != self._candidate:
            self._candidate, self._other = [], []
            self._read, self._mean = 0, self._new_mean()
        new = scores[len(self._candidate) :]
        self._candidate.extend(new)
        self._other.extend([0.0] * len(new))

    def add_missing(self) -> None:
        """Take a sample that could not be read."""
        self.missing += 1

    @property
    def samples(self) -> int:
        """What the estimate rests on."""
        if self.gate.limit is not None or self.gate.metric in QUANTILES:
            return len(self._candidate)
        return min(len(self._candidate), len(self._other))

    def judge(self) -> Judged:
        """Look."""
        bound = self._bound()
        n, others = self.samples, 0 if self.gate.limit is not None else len(self._other)
        missing = self.missing / (self.missing + n) if self.missing else 0.0
        verdict: Verdict = "hold"
        if bound is None:
            why = "no data yet, which is no pass" if not n else "too few samples to say anything"
            if self.missing:
                why = f"{self.missing:,} samples could not be read, which is no pass"
            if self.unknown:
                why = self.unknown
            if self.awaiting:
                why = f"experts have not decided on {self.awaiting:,} {'pairs' if self.gate.metric in WINS else 'answers'}"
        elif bound.beyond:
            verdict, why = "fail", f"it is beyond {self._said_bound()}"
        elif missing > MISSING_LIMIT:
            why = f"{self.missing:,} samples ({missing:.0%}) could not be read"
        elif self.awaiting:
            why = f"experts have not decided on {self.awaiting:,} {'pairs' if self.gate.metric in WINS else 'answers'}"
        elif not bound.within:
            why = f"it is not shown yet to be within {self._said_bound()}, nor beyond"
        elif n < self.minimum:
            why = f"it looks to be within {self._said_bound()}, and {self.minimum:,} samples are asked for"
        else:
            verdict, why = "pass", f"it is within {self._said_bound()}"
        sample = f"{n:,} {'pairs' if self.paired and self.gate.limit is None else 'samples'}"
        if self.left_out:
            sample += f"; {self.left_out:,} more votes do not count"
        if bound is None:
            return Judged(
                verdict, None, None, None, n, others, f"{self.gate.name}: {verdict}; {why} ({sample})."
            )
        low, high = (value if math.isfinite(value) else None for value in bound.interval)
        words = (
            f"{self.gate.name}: {verdict}; {self._said(bound.effect)} "
            f"({self._number(low, '-')} to {self._number(high, '+')} at all times at once, {sample}); {why}."
        )
        return Judged(verdict, bound.effect, low, high, n, others, words)

    @property
    def _margin(self) -> float:
        """The bound in the units of the mean that is tested; for wins the score of a pair, which moves by 2 a win rate."""
        gate = self.gate
        if gate.limit is not None:
            return gate.limit
        if gate.worse_by is None:
            raise AssertionError("a gate has a bound")
        if gate.metric in WINS:
            return -2 * gate.worse_by
        return -gate.worse_by if gate.metric == "fixed_set" else gate.worse_by

    def _bound(self) -> Bound | None:
        if self.gate.metric in QUANTILES:
            return self._quantile_bound()
        if self.gate.metric in MEANS:
            return self._ratio_bound()
        return self._mean_bound()

    def _mean_bound(self) -> Bound | None:
        mean, n = self._mean, self.samples
        if mean is None or not n:
            return None
        new = self._candidate[self._read : n]
        if self.gate.limit is None:
            new = [a - b for a, b in zip(new, self._other[self._read : n], strict=True)]
        mean.extend(new)
        self._read = n
        scale = 0.5 if self.gate.metric in WINS else 1.0
        low, high = mean.interval
        above, below = mean.above(self._margin), mean.below(self._margin)
        better_is_more = self.gate.metric in WINS or self.gate.metric == "fixed_set"
        within, beyond = (above, below) if better_is_more else (below, above)
        return Bound((mean.mean or 0.0) * scale, Interval(low * scale, high * scale), within, beyond)

    def _quantile_bound(self) -> Bound | None:
        p = 0.99 if self.gate.metric.endswith("99") else 0.5
        mine, other = self._candidate, self._other
        if not mine or (self.gate.limit is None and not other):
            return None
        if self.gate.limit is not None:
            interval = quantile_interval(mine, p, self._alpha)
            limit = self.gate.limit
            return Bound(quantile(mine, p), interval, interval.high <= limit, interval.low > limit)
        return self._quantile_ratio(mine, other, p)

    def _quantile_ratio(self, mine: Sequence[float], other: Sequence[float], p: float) -> Bound | None:
        low, high = quantile_interval(mine, p, self._alpha / 2)
        other_low, other_high = quantile_interval(other, p, self._alpha / 2)
        base, most = quantile(other, p), 1 + (self.gate.worse_by or 0)
        if base <= 0:
            return None
        ratio = Interval(
            max(low, 0) / other_high - 1 if other_high > 0 else -1.0,
            high / other_low - 1 if other_low > 0 else math.inf,
        )
        return Bound(quantile(mine, p) / base - 1, ratio, ratio.high <= most - 1, ratio.low > most - 1)

    def _ratio_bound(self) -> Bound | None:
        """Of means without bounds: of each pair, how far the candidate is beyond what is allowed."""
        n, most = self.samples, 1 + (self.gate.worse_by or 0)
        for a, b in zip(self._candidate[self._read : n], self._other[self._read : n], strict=True):
            self._moments = self._moments.with_value(a - most * b)
        self._read = n
        interval = mixture_interval(self._moments, self._alpha)
        base = sum(self._other[:n]) / n if n else 0.0
        if interval is None or base <= 0:
            return None
        effect = sum(self._candidate[:n]) / n / base - 1
        shown = Interval(interval.low / base + most - 1, interval.high / base + most - 1)
        return Bound(effect, shown, interval.high <= 0, interval.low > 0)

    def _said(self, effect: float) -> str:
        metric = self.gate.metric
        if self.gate.limit is not None:
            return f"{metric} is {self._number(effect, '')}"
        if metric in WINS:
            return f"a win rate {abs(effect) * 100:.1f} points {'below' if effect < 0 else 'above'} one half"
        return f"the candidate's is {self._number(effect, '')} {'higher' if effect >= 0 else 'lower'} than the other's".replace(
            "is -", "is "
        )

    def _said_bound(self) -> str:
        if self.gate.limit is not None:
            return f"the limit of {self._number(self.gate.limit, '')}"
        return f"{self._number(self.gate.worse_by, '')} worse"

    def _number(self, value: float | None, infinite: str) -> str:
        if value is None:
            return f"{infinite}unknown".lstrip("+-") if infinite else "unknown"
        if self.gate.limit is not None and self.gate.metric in QUANTILES:
            return f"{value:,.0f} ms"
        relative = self.gate.metric in QUANTILES or self.gate.metric in MEANS
        return f"{value * 100:.{1 if relative else 2}f}{'%' if relative or self.gate.limit is not None else ' points'}"

"""Three tests of one voter's votes, each against one way of voting that says nothing about the models.

Every vote t has chances `p_t(o)` of its outcome o, from the votes of everybody else on the same pair.

- **surprise** finds random and contrary voters, by outcomes won, lost and tied (both bad among them). With `s = -log p_t(o_t)` and its mean and variance under `p_t`,
  `z = sum(s - mean) / sqrt(sum variance)`; one-sided. (Centred pair by pair: Fisher's product of p-values, as in Chiang et
  al., "Chatbot Arena", 2024, equation 10, cannot flag votes whose usual outcome is likelier than 1/e.)
- **side** finds who always clicks the same side: two-sided binomial test of the left share of decisive votes
  against one half, which random sides make exact.
- **model** finds who boosts or punishes one model: the largest `|sum(score - expected)| / sd` over the models that the
  voter met at least 5 times, two-sided, times the number of those models (Bonferroni).

All are tests of one voter; who tests many expects `alpha` of the honest ones to be flagged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.outcomes import BOTH_BAD, TIE, A, B

SEEN_AT_LEAST: Final = 5
"""Votes on a model before its residual is tested; fewer make no normal sum."""
PAIR_VOTES: Final = 10
"""Votes of others on a pair before a voter is compared with them; whoever is alone on a board is compared with nobody."""
PRIOR_VOTES: Final = 2.0
"""Each pair's outcome chances lean on all pairs' with so many votes, so that a new outcome is a surprise and not a proof."""
_SCORES: Final = np.array([1.0, 0.0, 0.5, 0.5])


class Findings(NamedTuple):
    """P-values of the tests; 1.0 where there was nothing to test."""

    surprise: float
    side: float
    model: float
    models_tested: int
    worst_model: int
    """Index of the model with the largest residual; -1 when none was tested."""
    toward: float
    """The residual's z: above 0 the voter boosts that model."""

    @property
    def least(self) -> float:
        """The smallest of the p-values."""
        return min(self.surprise, self.side, self.model)


@dataclass(frozen=True, eq=False)
class OutcomeChances:
    """How often each outcome came on each pair, by the votes of others."""

    counts: NDArray[np.float64]
    """`counts[i, j]` are `[i won, j won, tie, both bad]`; shape `(models, models, 4)`."""

    @classmethod
    def from_counts(cls, votes: PairCounts) -> OutcomeChances:
        """Take them from pair counts; both orders of a pair get the same votes."""
        size = len(votes.models)
        counts = np.zeros((size, size, 4))
        counts[votes.first, votes.second] = votes.counts
        counts[votes.second, votes.first] = votes.counts[:, [B, A, TIE, BOTH_BAD]]
        return cls(counts)

    def without(
        self, a: NDArray[np.int64], b: NDArray[np.int64], outcomes: NDArray[np.int64]
    ) -> OutcomeChances:
        """Take a voter's own votes out, so that nobody is compared with himself."""
        counts = self.counts.copy()
        np.subtract.at(counts, (a, b, outcomes), 1)
        np.subtract.at(counts, (b, a, np.array([B, A, TIE, BOTH_BAD])[outcomes]), 1)
        return OutcomeChances(counts)

    def votes(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float64]:
        """Votes of others on the pair of each vote; shape `(votes,)`."""
        others: NDArray[np.float64] = self.counts[a, b].sum(axis=1)
        return others

    def of(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float64]:
        """Chances of left, right, tie and both bad for each vote; shape `(votes, 4)`, rows sum to 1."""
        everywhere = self.counts.sum(axis=(0, 1))
        usual = (everywhere + 1) / (everywhere + 1).sum()
        seen = self.counts[a, b] + PRIOR_VOTES * usual
        chances: NDArray[np.float64] = seen / seen.sum(axis=1, keepdims=True)
        return chances


def examine(
    chances: NDArray[np.float64],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    outcomes: NDArray[np.int64],
    *,
    others: NDArray[np.float64] | None = None,
) -> Findings:
    """Test one voter's votes: left model, right model and outcome code of each; `chances` as `OutcomeChances.of`.

    `others` are the votes on each vote's pair that the chances come from. With them, votes on pairs with fewer than
    `PAIR_VOTES` are left to the side test alone, and chances are not taken for certain: m votes of the voter against n of others
    have `1 + m / n` times the variance of m votes against a known chance. Without them the chances are known.

    Raises `InvalidRequest` naming `chances` when the shapes differ.
    """
    if chances.shape != (len(outcomes), 4) or not len(a) == len(b) == len(outcomes):
        raise InvalidRequest(
            f"chances has shape {chances.shape} for {len(outcomes):,} votes; each vote needs four.",
            param="chances",
        )
    side = _side(outcomes)
    doubt = np.ones(len(outcomes))
    if others is not None:
        known = others >= PAIR_VOTES
        a, b, outcomes, chances, others = a[known], b[known], outcomes[known], chances[known], others[known]
        low, high = np.minimum(a, b), np.maximum(a, b)
        _, pair, own = np.unique(np.stack([low, high]), axis=1, return_inverse=True, return_counts=True)
        doubt = 1 + own[pair.reshape(-1)] / others
    model, tested, worst, toward = _model(chances, a, b, outcomes, doubt)
    return Findings(_surprise(chances, outcomes, doubt), side, model, tested, worst, toward)


def _surprise(chances: NDArray[np.float64], outcomes: NDArray[np.int64], doubt: NDArray[np.float64]) -> float:
    chances = np.concatenate([chances[:, :TIE], chances[:, TIE:].sum(axis=1, keepdims=True)], axis=1)
    outcomes = np.minimum(outcomes, TIE)
    surprise = -np.log(np.maximum(chances, 1e-300))
    mean = (chances * surprise).sum(axis=1)
    variance = float((((chances * surprise**2).sum(axis=1) - mean**2) * doubt).sum())
    if variance <= 0:
        return 1.0
    excess = float((surprise[np.arange(len(outcomes)), outcomes] - mean).sum())
    return _upper_tail(excess / math.sqrt(variance))


def _side(outcomes: NDArray[np.int64]) -> float:
    left, right = int((outcomes == A).sum()), int((outcomes == B).sum())
    return two_sided_binomial(left, left + right)


def _model(
    chances: NDArray[np.float64],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    outcomes: NDArray[np.int64],
    doubt: NDArray[np.float64],
) -> tuple[float, int, int, float]:
    if not len(a):
        return 1.0, 0, -1, 0.0
    expected = chances @ _SCORES
    variance = (chances @ _SCORES**2 - expected**2) * doubt
    residual = _SCORES[outcomes] - expected
    size = int(max(a.max(), b.max())) + 1
    seen = np.bincount(a, minlength=size) + np.bincount(b, minlength=size)
    excess = np.bincount(a, residual, size) - np.bincount(b, residual, size)
    spread = np.bincount(a, variance, size) + np.bincount(b, variance, size)
    testable = np.flatnonzero((seen >= SEEN_AT_LEAST) & (spread > 0))
    if not len(testable):
        return 1.0, 0, -1, 0.0
    z = excess[testable] / np.sqrt(spread[testable])
    worst = int(np.abs(z).argmax())
    p = min(1.0, 2 * _upper_tail(abs(float(z[worst]))) * len(testable))
    return p, len(testable), int(testable[worst]), float(z[worst])


def two_sided_binomial(successes: int, trials: int) -> float:
    """Return the p-value of so many successes against a chance of one half, exactly.

    >>> two_sided_binomial(0, 5), two_sided_binomial(2, 4)
    (0.0625, 1.0)
    """
    fewer = min(successes, trials - successes)
    log_tail = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) - trials * math.log(2)
        for k in range(fewer + 1)
    ]
    return min(1.0, round(2 * math.fsum(map(math.exp, log_tail)), 15))


def _upper_tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))

r"""Were pairs and sides drawn with the probabilities that were recorded? A test that may be looked at after every battle.

Every battle t records the probability `p_t` with which its policy drew the pair `x_t`, and `s_t` of its side order. A bettor who
knows only the battles before t spreads one unit over all outcomes, `q_t(x)`, and is paid `1 / p_t` for what comes:

    E_n = prod over t <= n of  (1 - c) + c * q_t(x_t) / p_t ,          0 < c <= 1

If the records are true, the expectation of a factor given the past is at most `(1 - c) + c * sum over x of q_t(x) <= 1`, so `E` is a
non-negative supermartingale that starts at 1, and Ville's inequality holds:  P(E ever reaches 1 / alpha) <= alpha,  however often
anybody looks and whenever they stop (J. Ville, 1939; G. Shafer, JRSS A 184, 2021, "Testing by betting"; M. Lindon and A. Malek,
2022, "Anytime-valid inference for multinomial count data"). Nothing else is asked of the policy: it may change with every vote, and
models may come, rest and go. An average of such products is one too; here it is over bettors and over stakes `c`:

- **pairs**: `q_t(x)` is the share of pair x so far, with half a battle more for each pair of models seen (R. Krichevsky and V.
  Trofimov, 1981);
- **models**: `q_t({i, j})` is proportional to the product of the shares of i and j, which learns faster that one model is drawn too often;
- **models lately**: the same with battles that fade, half of each `HALF_LIFE` battles, for a policy that follows the votes;
- **sides of a pair**: the share of each order of a pair so far, with half a battle more for each;
- **sides of a model**: `u_i / (u_i + u_j)` for i on the left, `u` being the odds of standing left so far: a model that has a favourite side.

Nothing is bet on models that were never seen. A policy that changes its table faster than the bettors learn it hides its pairs from them
(never its sides); a false alarm is as unlikely as ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import comb
from typing import Final, NamedTuple

from tiltyard.errors import InvalidRequest

STAKES: Final = (0.75, 0.25, 0.05)
"""Shares of what the bettor has that ride on each battle. The small ones lose little while frequencies lawfully change."""
HALF_LIFE: Final = 150
"""Battles after which one counts half for the bettor on models lately."""
_RESCALE: Final = 1e100


class Drawn(NamedTuple):
    """One battle, as its record says it was drawn."""

    left: str
    right: str
    pair_probability: float
    """Of this unordered pair."""
    side_probability: float
    """Of this left-right order, given the pair."""


@dataclass(frozen=True)
class Evidence:
    """What the battles say against the records so far; `e` of 20 is as surprising as p = 0.05, and stays valid."""

    battles: int
    e: float
    """Now; capped at the largest float."""
    largest: float
    """That it ever was."""
    largest_at: int
    """After how many battles."""

    @property
    def p(self) -> float:
        """An always-valid p-value: `1 / largest`, at most 1."""
        return min(1.0, 1 / self.largest)


class _Wealth:
    """Average over bettors and stakes of products, kept as logarithms."""

    def __init__(self, bettors: int) -> None:
        self._logs = [[0.0] * len(STAKES) for _ in range(bettors)]
        self.battles = 0
        self._largest = 0.0
        self._largest_at = 0

    def bet(self, payments: tuple[float, ...]) -> None:
        """Take in one battle: what each bettor would be paid for one unit, `q_t(x_t) / p_t`."""
        self.battles += 1
        for logs, payment in zip(self._logs, payments, strict=True):
            for place, stake in enumerate(STAKES):
                factor = 1 - stake + stake * payment
                logs[place] = logs[place] + math.log(factor) if factor > 0 else -math.inf
        if (now := self._log_mean()) > self._largest:
            self._largest, self._largest_at = now, self.battles

    def evidence(self) -> Evidence:
        return Evidence(self.battles, _exp(self._log_mean()), _exp(self._largest), self._largest_at)

    def _log_mean(self) -> float:
        flat = [log for logs in self._logs for log in logs]
        top = max(flat)
        return top + math.log(sum(math.exp(log - top) for log in flat) / len(flat))


class _Frequencies:
    """How often each pair and each model was drawn so far; with a half-life, older battles fade."""

    def __init__(self, half_life: int | None = None) -> None:
        self._growth = 1.0 if half_life is None else 2 ** (1 / half_life)
        self._worth = 1.0
        """Of the next battle: the old ones do not fade, the new ones grow."""
        self._pairs: dict[tuple[str, str], float] = {}
        self._models: dict[str, float] = {}
        self._squares = 0.0
        """Sum over models of what each stood in, squared."""
        self._battles = 0.0

    def take(self, pair: tuple[str, str]) -> None:
        worth = self._worth
        self._pairs[pair] = self._pairs.get(pair, 0.0) + worth
        for model in pair:
            before = self._models.get(model, 0.0)
            self._models[model] = before + worth
            self._squares += (2 * before + worth) * worth
        self._battles += worth
        self._worth *= self._growth
        if self._worth > _RESCALE:
            self._shrink()

    def of_pair(self, pair: tuple[str, str]) -> float:
        """Krichevsky and Trofimov's share among all pairs of the models seen; 0 for a model that was not."""
        if any(model not in self._models for model in pair):
            return 0.0
        half, pairs = self._worth / 2, comb(len(self._models), 2)
        return (self._pairs.get(pair, 0.0) + half) / (self._battles + half * pairs)

    def of_models(self, pair: tuple[str, str]) -> float:
        """The product of both models' shares, with half a battle more for each, among all pairs of the models seen."""
        first, second = (self._models.get(model) for model in pair)
        if first is None or second is None:
            return 0.0
        half, size, total = self._worth / 2, len(self._models), 2 * self._battles
        squares = self._squares + 2 * half * total + size * half**2
        # sum over i < j of 2 a_i a_j is (sum a_i)^2 - sum a_i^2, so these shares sum to 1
        return 2 * (first + half) * (second + half) / ((total + size * half) ** 2 - squares)

    def _shrink(self) -> None:
        by = 1 / self._worth
        self._pairs = {pair: value * by for pair, value in self._pairs.items()}
        self._models = {model: value * by for model, value in self._models.items()}
        self._squares = sum(value**2 for value in self._models.values())
        self._battles *= by
        self._worth = 1.0


class AssignmentTest:
    """Takes battles in the order in which they were opened; time of each does not grow with their number.

    ::

        test = AssignmentTest()
        test.take(Drawn("x", "y", pair_probability=1 / 3, side_probability=1 / 2))
        test.pairs.e        # 1.0 or about it while records are true
    """

    def __init__(self) -> None:
        self._pairs = _Wealth(3)
        self._sides = _Wealth(2)
        self._always = _Frequencies()
        self._lately = _Frequencies(HALF_LIFE)
        self._orders: dict[tuple[str, str], list[int]] = {}
        """By pair in the order of names: battles with the first, and with the second, on the left."""
        self._stood: dict[str, list[int]] = {}
        """By model: battles on the left, and on the right."""

    def take(self, drawn: Drawn) -> None:
        """Take in one battle; raises `InvalidRequest` naming what is no probability, or a model against itself."""
        for name in ("pair_probability", "side_probability"):
            value: float = getattr(drawn, name)
            if not 0 < value <= 1:
                raise InvalidRequest(
                    f"{name} is {value}; what was drawn had one above 0 and up to 1. Look at the battle's record.",
                    param=name,
                )
        if drawn.left == drawn.right:
            raise InvalidRequest(
                f"a battle sets {drawn.left!r} against itself; that is no pair.", param="right"
            )
        forward = drawn.left < drawn.right
        pair = (drawn.left, drawn.right) if forward else (drawn.right, drawn.left)
        shares = (self._always.of_pair(pair), self._always.of_models(pair), self._lately.of_models(pair))
        if not self._pairs.battles:
            shares = (drawn.pair_probability,) * 3  # nothing is known yet, and nothing is bet
        self._pairs.bet(tuple(share / drawn.pair_probability for share in shares))
        orders = self._orders.setdefault(pair, [0, 0])
        order = (orders[not forward] + 0.5) / (sum(orders) + 1)
        odds, against = self._odds(drawn.left), self._odds(drawn.right)
        self._sides.bet(tuple(q / drawn.side_probability for q in (order, odds / (odds + against))))
        self._always.take(pair)
        self._lately.take(pair)
        orders[not forward] += 1
        self._stood.setdefault(drawn.left, [0, 0])[0] += 1
        self._stood.setdefault(drawn.right, [0, 0])[1] += 1

    @property
    def pairs(self) -> Evidence:
        """Against the recorded probabilities of pairs."""
        return self._pairs.evidence()

    @property
    def sides(self) -> Evidence:
        """Against the recorded probabilities of side orders."""
        return self._sides.evidence()

    def stood(self) -> dict[str, tuple[int, int]]:
        """Battles of each model on the left and on the right."""
        return {model: (left, right) for model, (left, right) in self._stood.items()}

    def _odds(self, model: str) -> float:
        left, right = self._stood.get(model, (0, 0))
        return (left + 0.5) / (right + 0.5)


def _exp(log: float) -> float:
    return math.exp(min(log, 700.0))

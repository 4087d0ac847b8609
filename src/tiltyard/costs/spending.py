"""What stands behind votes and releases: their generations and judge calls, each with its seconds and its price."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tiltyard.costs.report import DecisionCost, Spending, VotesCost
from tiltyard.events.envelope import StoredEvent
from tiltyard.events.schema import (
    BattleOpened,
    BattleTurnFinished,
    EvalItemFinished,
    JudgmentMade,
    ReleaseEnded,
    ReleaseStarted,
    VoteCast,
    VoteWithdrawn,
)

RELEASES: Final = (ReleaseStarted, ReleaseEnded)
CAUSES: Final = (
    BattleOpened,
    BattleTurnFinished,
    VoteCast,
    VoteWithdrawn,
    EvalItemFinished,
    JudgmentMade,
)


@dataclass
class Bill:
    """What each generation came to; those that are not in it were served by somebody else, or before the log is read."""

    rows: Mapping[str, int]
    """Place of each generation in the next two."""
    seconds: npt.NDArray[np.float64]
    amounts: npt.NDArray[np.float64]
    """Not a number where there is no price."""
    currency: str

    def of(self, generations: Iterable[str | None]) -> Spending:
        """Sum up generations that are known."""
        total = Spending()
        for generation in generations:
            row = None if generation is None else self.rows.get(generation)
            if row is not None:
                amount, seconds = float(self.amounts[row]), float(self.seconds[row])
                total += (
                    Spending(1, 0, seconds, unpriced=1)
                    if math.isnan(amount)
                    else Spending(1, 0, seconds, amount)
                )
        return total

    def of_judgment(self, judged: _Judged) -> Spending:
        """One judge call: its generation where this log has it, else what the run was told that it costs."""
        here = self.of([judged.generation])
        if here.generations:
            return Spending(0, 1, here.engine_s, here.amount, here.unpriced)
        if judged.cost_usd is not None and self.currency == "USD":
            return Spending(0, 1, 0.0, judged.cost_usd)
        return Spending(0, 1, unpriced=1)


class _Judged(NamedTuple):
    at_us: int
    behaviours: frozenset[str | None]
    generation: str | None
    cost_usd: float | None


@dataclass
class _Battle:
    at_us: int
    behaviours: frozenset[str]
    generations: list[str] = field(default_factory=list)
    voted_us: int | None = None


@dataclass
class _Release:
    started: ReleaseStarted
    began_us: int
    ended_us: int | None = None
    outcome: str = "under way"

    @property
    def pair(self) -> frozenset[str]:
        return frozenset((self.started.candidate_behaviour, self.started.production_behaviour))

    def is_on(self, time_us: int) -> bool:
        return self.began_us <= time_us <= (self.ended_us or time_us)


class Causes:
    """Takes events of `RELEASES` and `CAUSES` in, oldest first."""

    def __init__(self) -> None:
        self._battles: dict[str, _Battle] = {}
        self._releases: dict[str, _Release] = {}
        self._judgments: list[_Judged] = []
        self._items: list[tuple[int, str, tuple[str, ...]]] = []
        """When, of whom, which generations."""

    def take(self, event: StoredEvent) -> None:
        """Take in one event."""
        match event.data:
            case BattleOpened() as opened:
                pair = frozenset(one.behaviour for one in opened.contestants)
                self._battles[opened.battle] = _Battle(event.time_us, pair)
            case BattleTurnFinished() as turn if turn.battle in self._battles:
                made = [one for one in (turn.generation_a, turn.generation_b) if one is not None]
                self._battles[turn.battle].generations += made
            case VoteCast() as vote if vote.battle in self._battles:
                self._battles[vote.battle].voted_us = event.time_us
            case VoteWithdrawn() as taken if taken.battle in self._battles:
                self._battles[taken.battle].voted_us = None
            case EvalItemFinished() as item:
                self._items.append((event.time_us, item.behaviour, item.generations))
            case JudgmentMade() as judgment:
                self._judgments.append(
                    _Judged(
                        event.time_us,
                        frozenset(side.behaviour for side in judgment.sides),
                        judgment.judge_generation,
                        judgment.cost_usd,
                    )
                )
            case ReleaseStarted() as started:
                self._releases[started.release] = _Release(started, event.time_us)
            case ReleaseEnded() as ended if ended.release in self._releases:
                release = self._releases[ended.release]
                release.ended_us, release.outcome = event.time_us, ended.outcome
            case _:
                pass  # a later version of one of them, or one whose beginning was not read

    def forget(self) -> None:
        """Forget all but the releases."""
        self._battles.clear()
        self._judgments.clear()
        self._items.clear()

    def began_us(self, since_us: int) -> int:
        """When the oldest of the releases began that ended, or still run, in a stretch from a moment on; that moment without one."""
        return min([since_us, *(one.began_us for one in self._shown(since_us))])

    def votes(self, bill: Bill, since_us: int, until_us: int) -> VotesCost:
        """What the votes of a stretch cost: of battles that were opened in it."""
        votes, own, without = 0, Spending(), Spending()
        for battle in self._battles.values():
            if not since_us <= battle.at_us <= until_us:
                continue
            if battle.voted_us is not None and battle.voted_us <= until_us:
                votes += 1
                own += bill.of(battle.generations)
            else:
                without += bill.of(battle.generations)
        return VotesCost(votes, own, without)

    def decisions(
        self, bill: Bill, since_us: int, until_us: int, copies: dict[tuple[str, bool], list[str]]
    ) -> Iterator[DecisionCost]:
        """What each release cost, newest first; `copies` are generations by release, of shadow copies and of the candidate's own traffic."""
        for release in sorted(self._shown(since_us), key=lambda one: -one.began_us):
            if release.began_us > until_us:
                continue
            started = release.started
            battles = [
                one
                for one in self._battles.values()
                if one.behaviours == release.pair and release.is_on(one.at_us)
            ]
            judging = [
                bill.of_judgment(one)
                for one in self._judgments
                if release.is_on(one.at_us) and one.behaviours == release.pair
            ]
            yield DecisionCost(
                release=started.release,
                alias=started.alias,
                candidate=started.candidate,
                outcome=release.outcome,
                evals=bill.of(
                    one
                    for at_us, behaviour, made in self._items
                    if release.is_on(at_us) and behaviour in release.pair
                    for one in made
                ),
                shadow=bill.of(copies.get((started.release, True), ())),
                judging=sum(judging, Spending()),
                people=bill.of(one for battle in battles for one in battle.generations),
                votes=sum(battle.voted_us is not None for battle in battles),
                traffic=bill.of(copies.get((started.release, False), ())),
            )

    def _shown(self, since_us: int) -> list[_Release]:
        return [one for one in self._releases.values() if one.ended_us is None or one.ended_us >= since_us]

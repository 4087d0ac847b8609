"""Draws pairs by what the votes so far leave open: follows the log, and keeps the table of probabilities for a few seconds."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiltyard.arena.pair_weights import Standing, pair_probabilities
from tiltyard.arena.pairing import Draw, Entrant, Randomness, draw, draw_from, enough
from tiltyard.arena.pairing_settings import PairingSettings
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.arena.slices import slice_of
from tiltyard.events.log import EventLog
from tiltyard.events.schema import BattleOpened, Choice, VoteCast
from tiltyard.rating.ruleset import Judged

REFRESH_S = 5.0
"""Votes of the last seconds may be missing from a table: it says what to ask next, and no rating hangs on it."""

JUDGING_REST = 20
"""Pauses at least so many times as long as counting took."""

Pair: TypeAlias = frozenset[str]
"""Two behaviour digests."""
_SCORE: dict[Choice, float] = {"a": 1.0, "b": 0.0, "tie": 0.5, "both_bad": 0.5}


class InformedPairing:
    """A `Pairing` for `Arena`, over one log.

    With `recorded` votes that its ruleset and reviews leave out teach nothing; without, every vote counts.

    ::

        arena = Arena(..., pairing=InformedPairing(log, settings, recorded=recorded))
    """

    def __init__(
        self,
        log: EventLog,
        settings: PairingSettings,
        *,
        recorded: RecordedVotes | None = None,
        sought: Callable[[], Collection[Pair]] = tuple,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sought` says on which pairs of behaviours votes are waited for; it is asked before each draw."""
        self._recorded = recorded
        self._sought = sought
        self._log = log
        self._settings = settings
        self._clock_s = clock_s
        self._wins: defaultdict[tuple[str, str], float] = defaultdict(float)
        """What the first behaviour took from the second, a tie as half."""
        self._slice_votes: defaultdict[tuple[str, str], int] = defaultdict(int)
        """By slice and behaviour."""
        self._slice_of_battle: dict[str, str] = {}
        """Of battles without a vote yet, where every vote counts; of all, where some may not."""
        self._sequence = 0
        self._slices_read = 0
        self._judged: Judged | None = None
        self._read_at_s = float("-inf")
        self._rest_s = REFRESH_S
        self._tables: dict[tuple[tuple[str, ...], str, frozenset[Pair]], NDArray[np.float64]] = {}
        self._one_reader = asyncio.Lock()

    async def __call__(self, contestants: Sequence[Entrant], message: str, rng: Randomness) -> Draw:
        """Draw a pair and an order; raises `Unavailable` with fewer than two different contestants."""
        if self._settings.policy == "uniform":
            return draw(contestants, rng)
        ready = enough(contestants)
        name = slice_of(message)
        slice_name = name if name in self._settings.slice_targets else ""
        sought = frozenset(self._sought())
        async with self._one_reader:
            table = await asyncio.to_thread(
                self._table, tuple(e.behaviour for e in ready), slice_name, sought
            )
        return draw_from(ready, table, rng, slice_name=slice_name)

    def _table(
        self, behaviours: tuple[str, ...], slice_name: str, sought: frozenset[Pair]
    ) -> NDArray[np.float64]:
        if self._clock_s() - self._read_at_s >= self._rest_s:
            began_s = self._clock_s()
            if self._follow() if self._recorded is None else self._count(self._recorded):
                self._tables.clear()
            self._read_at_s = self._clock_s()
            # Judging a long log takes a second: at most a share of the time goes into it.
            self._rest_s = max(REFRESH_S, JUDGING_REST * (self._read_at_s - began_s))
        key = (behaviours, slice_name, sought)
        if key not in self._tables:
            self._tables[key] = pair_probabilities(self._standing(*key), self._settings)
        return self._tables[key]

    def _follow(self) -> bool:
        """Take in what the log has gained; say whether a vote was among it."""
        voted = False
        for event in self._log.read(after=self._sequence, types=(BattleOpened, VoteCast)):
            self._sequence = event.sequence
            match event.data:
                case BattleOpened(slice=name) as opened if name:
                    self._slice_of_battle[opened.battle] = name
                case VoteCast() as vote:
                    voted = True
                    pair = vote.behaviour_a, vote.behaviour_b
                    self._take(*pair, vote.choice)
                    if name := self._slice_of_battle.pop(vote.battle, ""):
                        for behaviour in pair:
                            self._slice_votes[name, behaviour] += 1
                case _:
                    pass  # a battle outside of any slice
        return voted

    def _count(self, recorded: RecordedVotes) -> bool:
        """Count the votes that count, anew when there are other ones; say whether there are."""
        if self._settings.slice_targets:
            self._note_slices()
        votes, judged = recorded.votes(), recorded.judge()
        if judged is self._judged:  # the same votes under the same reviews
            return False
        self._judged = judged
        self._wins.clear()
        self._slice_votes.clear()
        for vote in votes:
            if vote.sequence in judged.reasons:
                continue
            self._take(vote.behaviour_a, vote.behaviour_b, vote.choice)
            if name := self._slice_of_battle.get(vote.battle, ""):
                for behaviour in (vote.behaviour_a, vote.behaviour_b):
                    self._slice_votes[name, behaviour] += 1
        return True

    def _note_slices(self) -> None:
        for event in self._log.read(after=self._slices_read, types=(BattleOpened,)):
            self._slices_read = event.sequence
            if isinstance(event.data, BattleOpened) and event.data.slice:
                self._slice_of_battle[event.data.battle] = event.data.slice

    def _take(self, a: str, b: str, choice: Choice) -> None:
        self._wins[a, b] += _SCORE[choice]
        self._wins[b, a] += 1 - _SCORE[choice]

    def _standing(self, behaviours: tuple[str, ...], slice_name: str, sought: frozenset[Pair]) -> Standing:
        wins = np.array([[self._wins.get((a, b), 0.0) for b in behaviours] for a in behaviours])
        np.fill_diagonal(wins, 0)
        waited = np.array([[frozenset((a, b)) in sought for b in behaviours] for a in behaviours])
        if not slice_name:
            return Standing(wins, sought=waited)
        votes = np.array([self._slice_votes.get((slice_name, b), 0) for b in behaviours], dtype=np.float64)
        return Standing(
            wins,
            votes,
            next(t for s, t in self._settings.slice_targets.items() if s == slice_name),
            waited,
        )

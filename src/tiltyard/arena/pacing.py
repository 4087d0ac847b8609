"""Show both sides no faster than the slower one, so that speed does not vote.

While both write, each shows as many characters as the shorter of them has. When one has ended and the other has more,
the rest follows at the pace seen so far, though within `REST_S` seconds: what is waited for is there already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tiltyard.arena.transcript import SIDES, Turn
from tiltyard.events.schema import Side

REST_S: Final = 8.0
"""The longest that a written answer is held back after the other has ended."""
TICK_S: Final = 0.1
"""How often more of a rest is shown."""


def in_step(turn: Turn) -> dict[Side, int]:
    """Characters of each side that may be shown without a clock: as many as the slower side, until that one ends."""
    answers = turn.answers
    if turn.settled:
        return {side: len(answers[side].text) for side in SIDES}
    bounds = [len(answer.text) for answer in answers.values() if answer.finish is None]
    shown = min(bounds, default=min(len(answer.text) for answer in answers.values()))
    return {side: min(len(answers[side].text), shown) for side in SIDES}


class Pacer:
    """How much of each side one watcher may see now."""

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._began_s: float | None = None
        self._free_s: float | None = None
        """Since when one side is bound by nothing but the pace so far."""
        self._free_at = 0
        """Characters shown of it then."""
        self._pace = 0.0
        """Characters a second while both were bound by each other."""

    def shown(self, turn: Turn) -> dict[Side, int]:
        """Characters of each side that may be shown now; never fewer than before."""
        now = self._clock_s()
        lengths = {side: len(turn.answers[side].text) for side in SIDES}
        shorter, longer = min(lengths.values()), max(lengths.values())
        if shorter and self._began_s is None:
            self._began_s = now
        short_side = min(SIDES, key=lambda side: lengths[side])
        if shorter == longer or turn.answers[short_side].finish is None:
            return dict.fromkeys(SIDES, shorter)  # the shorter one may still say more
        if self._free_s is None:
            self._free_s, self._free_at = now, shorter
            began_s = now if self._began_s is None else self._began_s
            self._pace = shorter / max(now - began_s, TICK_S)
        pace = max(self._pace, (longer - self._free_at) / REST_S)
        further = self._free_at + int(pace * (now - self._free_s))
        return {side: min(lengths[side], max(shorter, further)) for side in SIDES}

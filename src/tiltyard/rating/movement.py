"""By how much each rating moves when the rules change: two leaderboards of the same log, side by side."""

from __future__ import annotations

from typing import NamedTuple

from tiltyard.identity.canonical import Json
from tiltyard.rating.leaderboard import DECIMALS, Leaderboard


class Moved(NamedTuple):
    """One model under the old rules and the new."""

    model: str
    """Key of its votes."""
    name: str
    rating_before: float | None
    rating_after: float | None
    rank_before: int | None
    rank_after: int | None
    votes_before: int
    votes_after: int

    @property
    def points(self) -> float | None:
        """How far the rating moved; `None` where one of the boards has none."""
        if self.rating_before is None or self.rating_after is None:
            return None
        return round(self.rating_after - self.rating_before, DECIMALS)

    def to_json(self) -> dict[str, Json]:
        """Return it with the movement in points."""
        return {**self._asdict(), "points": self.points}


def movement(before: Leaderboard, after: Leaderboard) -> list[Moved]:
    """Return every model of either board, the farthest moved first."""
    old = {row.model.key: row for row in before.rows}
    new = {row.model.key: row for row in after.rows}
    moved = []
    for key in sorted(old.keys() | new.keys()):
        then, now = old.get(key), new.get(key)
        shown = now or then
        moved.append(
            Moved(
                key,
                shown.model.name if shown else key,
                then.rating if then else None,
                now.rating if now else None,
                then.rank if then else None,
                now.rank if now else None,
                then.votes if then else 0,
                now.votes if now else 0,
            )
        )
    return sorted(moved, key=lambda one: -abs(one.points or 0))

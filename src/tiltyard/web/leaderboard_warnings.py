"""What a reader should know before relying on a board: pairs that never met, old votes, thin slices."""

from __future__ import annotations

from typing import Final

import numpy as np

from tiltyard.arena.boards import Board

_OLD_DAYS: Final = 7
_MINUTE, _HOUR, _DAY = 60_000_000, 3_600_000_000, 86_400_000_000
_ONE_VOTER: Final = 0.2


def age_of(age_us: int) -> str:
    """Say how long ago something was.

    >>> age_of(30_000_000), age_of(7_200_000_000), age_of(3 * 86_400_000_000)
    ('just now', '2 hours ago', '3 days ago')
    """
    for unit, size in (("day", _DAY), ("hour", _HOUR), ("minute", _MINUTE)):
        if age_us >= size:
            many = age_us // size
            return f"{many} {unit}{'' if many == 1 else 's'} ago"
    return "just now"


def warnings_of(board: Board, *, now_us: int) -> list[str]:
    """List what limits a board, the gravest first; sentences."""
    leaderboard, counts = board.leaderboard, board.leaderboard.counts
    if not leaderboard.votes:
        return []
    found = []
    if parts := len(leaderboard.ratings.components) - 1:
        found.append(
            f"The votes fall into {parts + 1} groups that no battle connects. Ratings and ranks are those of the "
            "largest; the other models need battles against it before they can be compared."
        )
    ranked = {row.model.key for row in leaderboard.rows if row.status == "ranked"}
    inside = np.array([key in ranked for key in counts.models], dtype=np.bool_)
    if len(ranked) > 1:
        met = int((inside[counts.first] & inside[counts.second]).sum()) if len(counts.first) else 0
        pairs = len(ranked) * (len(ranked) - 1) // 2
        if met < pairs:
            found.append(
                f"{pairs - met:,} of {pairs:,} pairs of ranked models never met; what is said of them rests on third models."
            )
        rivals = np.zeros(len(counts.models), dtype=np.int64)
        np.add.at(rivals, counts.first, 1)
        np.add.at(rivals, counts.second, 1)
        names = {row.model.key: row.model.name for row in leaderboard.rows}
        lonely = [
            names[key]
            for key, many in zip(counts.models, rivals.tolist(), strict=True)
            if key in ranked and many == 1
        ]
        if len(ranked) > 2 and lonely:
            shown = ", ".join(lonely[:5]) + (f" and {len(lonely) - 5} more" if len(lonely) > 5 else "")
            found.append(f"Met one rival only: {shown}.")
    if board.votes.voter is not None and len(board.votes) >= 20:
        share = np.bincount(board.votes.voter).max() / len(board.votes)
        if share > _ONE_VOTER:
            found.append(
                f"One voter cast {share:.0%} of these votes; intervals by voter say what that means."
            )
    if len(board.votes) > leaderboard.votes:
        found.append(f"This slice has {leaderboard.votes:,} of {len(board.votes):,} votes.")
    days = (now_us - board.last_time_us) // _DAY
    if days >= _OLD_DAYS:
        found.append(f"The last vote is {days:,} days old.")
    return found

"""What a reader should know before relying on a board: pairs that never met, old votes, thin slices."""

from __future__ import annotations

from typing import Final

import numpy as np

from tiltyard.arena.boards import Board
from tiltyard.rating.leaderboard import Leaderboard
from tiltyard.web.languages import gettext, ngettext, number_in_words, percent

_OLD_DAYS: Final = 7
_MINUTE, _HOUR, _DAY = 60_000_000, 3_600_000_000, 86_400_000_000
_ONE_VOTER: Final = 0.2
_FEW: Final = 4
"""How many times as many votes as the model with the fewest half of the others have."""
_WIDENED: Final = 1.25
"""How much wider an interval is for one model that has few votes, from which on it is said."""


def age_of(age_us: int) -> str:
    """Say how long ago something was.

    >>> age_of(30_000_000), age_of(7_200_000_000), age_of(3 * 86_400_000_000)
    ('just now', '2 hours ago', '3 days ago')
    """
    if age_us >= _DAY:
        return ngettext("%(num)s day ago", "%(num)s days ago", age_us // _DAY)
    if age_us >= _HOUR:
        return ngettext("%(num)s hour ago", "%(num)s hours ago", age_us // _HOUR)
    if age_us >= _MINUTE:
        return ngettext("%(num)s minute ago", "%(num)s minutes ago", age_us // _MINUTE)
    return gettext("just now")


def warnings_of(board: Board, *, now_us: int) -> list[str]:
    """List what limits a board, the gravest first; sentences."""
    leaderboard, counts = board.leaderboard, board.leaderboard.counts
    if not leaderboard.votes:
        return []
    found = []
    if parts := len(leaderboard.ratings.components) - 1:
        found.append(
            gettext(
                "The votes fall into %(number)s groups that no battle connects. Ratings and ranks are those of the "
                "largest; the other models need battles against it before they can be compared.",
                number=parts + 1,
            )
        )
    ranked = {row.model.key for row in leaderboard.rows if row.status == "ranked"}
    inside = np.array([key in ranked for key in counts.models], dtype=np.bool_)
    if len(ranked) > 1:
        met = int((inside[counts.first] & inside[counts.second]).sum()) if len(counts.first) else 0
        pairs = len(ranked) * (len(ranked) - 1) // 2
        if met < pairs:
            found.append(
                gettext(
                    "%(missing)s of %(pairs)s pairs of ranked models never met; what is said of them rests on third "
                    "models.",
                    missing=number_in_words(pairs - met),
                    pairs=number_in_words(pairs),
                )
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
            shown = ", ".join(lonely[:5]) + (", …" if len(lonely) > 5 else "")
            found.append(gettext("Met one rival only: %(models)s.", models=shown))
    if (widener := _widener(leaderboard)) is not None:
        found.append(
            gettext(
                "%(model)s has few votes and widens every interval, which is measured from the mean of all ranked "
                "models; “by difference” does not depend on it.",
                model=widener,
            )
        )
    if board.votes.voter is not None and len(board.votes) >= 20:
        share = np.bincount(board.votes.voter).max() / len(board.votes)
        if share > _ONE_VOTER:
            found.append(
                gettext(
                    "One voter cast %(share)s of these votes; intervals by voter say what that means.",
                    share=percent(share),
                )
            )
    if len(board.votes) > leaderboard.votes:
        found.append(
            gettext(
                "This slice has %(part)s of %(all)s votes.",
                part=number_in_words(leaderboard.votes),
                all=number_in_words(len(board.votes)),
            )
        )
    days = (now_us - board.last_time_us) // _DAY
    if days >= _OLD_DAYS:
        found.append(gettext("The last vote is %(days)s days old.", days=number_in_words(days)))
    return found


def _widener(board: Leaderboard) -> str | None:
    """A model with a fraction of the others' votes, without which half of their intervals were much narrower."""
    rows = [row for row in board.rows if row.status == "ranked"]
    if len(rows) < 3:
        return None
    few = min(rows, key=lambda row: row.votes)
    if few.votes * _FEW >= np.median([row.votes for row in rows if row is not few]):
        return None
    ranked = {row.model.key for row in rows} - {few.model.key}
    others = np.array([key in ranked for key in board.counts.models], dtype=np.bool_)
    covariance = board.ratings.covariance
    with_mean = covariance[:, others].mean(axis=1)
    without = np.diagonal(covariance) - 2 * with_mean + with_mean[others].mean()
    ratio = np.sqrt(np.diagonal(covariance)[others] / np.maximum(without[others], 1e-12))
    return few.model.name if float(np.median(ratio)) > _WIDENED else None

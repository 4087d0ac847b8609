"""The heat map of pairs: what was won, what the ratings predict, how many votes there are; a table, so that it is read aloud."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tiltyard.rating.leaderboard import Leaderboard, LeaderboardRow
from tiltyard.rating.matrix import WinMatrix, win_matrix
from tiltyard.web.charts import distinct_names
from tiltyard.web.languages import gettext, ngettext, percent
from tiltyard.web.leaderboard_query import MatrixKind

MATRIX_ROWS: Final = 20
"""Models in the heat map; more do not fit a screen, and the JSON has every pair."""
_FAR: Final = 2.0  # standard errors between observed and predicted from which a cell is marked


@dataclass(frozen=True)
class Cell:
    """The row's model against the column's."""

    text: str
    small: str
    css: str
    title: str
    far: bool = False
    """Whether the votes are far from what the ratings predict."""


@dataclass(frozen=True)
class HeatRow:
    """One model in the heat map."""

    number: int
    name: str
    cells: tuple[Cell | None, ...]
    """`None` on the diagonal."""


@dataclass(frozen=True)
class HeatMap:
    """The first models against each other."""

    kind: MatrixKind
    rows: tuple[HeatRow, ...]
    left_out: int
    """Models with votes that have no row."""


def heat_map(board: Leaderboard, kind: MatrixKind) -> HeatMap:
    """Draw one of the three maps, for the first models that have votes."""
    with_votes = [row for row in board.rows if row.votes]
    rows = with_votes[:MATRIX_ROWS]
    strength = board.details.get("tie_strength")
    nu = strength[0] if isinstance(strength, list | tuple) and strength else 0.0
    matrix = win_matrix(
        board.counts, board.ratings, tie_strength=float(nu) if isinstance(nu, int | float) else 0.0
    )
    place = {key: node for node, key in enumerate(board.counts.models)}
    most = int(matrix.votes.max(initial=0))
    names = distinct_names(rows)
    made = []
    for number, (row, name) in enumerate(zip(rows, names, strict=True), 1):
        cells = tuple(
            None
            if other is row
            else _cell(kind, matrix, (place[row.model.key], place[other.model.key]), most, (row, other))
            for other in rows
        )
        made.append(HeatRow(number, name, cells))
    return HeatMap(kind, tuple(made), len(with_votes) - len(rows))


def _cell(
    kind: MatrixKind,
    matrix: WinMatrix,
    at: tuple[int, int],
    most: int,
    pair: tuple[LeaderboardRow, LeaderboardRow],
) -> Cell:
    votes, observed, predicted = (
        int(matrix.votes[at]),
        float(matrix.observed[at]),
        float(matrix.predicted[at]),
    )
    surprise = float(matrix.surprise[at])
    who = gettext("%(model)s against %(rival)s", model=pair[0].model.name, rival=pair[1].model.name)
    words = f"{who}: {_told(votes, observed)}"
    if not math.isnan(predicted):
        words += ", " + gettext("%(share)s predicted", share=percent(predicted, 1))
    far = votes > 0 and abs(surprise) > _FAR
    match kind:
        case "votes":
            # Ten shades by the logarithm: a pair with a tenth of the most votes is still seen.
            shade = round(10 * math.log1p(votes) / math.log1p(most)) if most else 0
            return Cell(f"{votes:,}" if votes else "–", "", f"n{shade}" if votes else "none", words)
        case "predicted":
            if math.isnan(predicted):
                return Cell("–", "", "none", words)
            return Cell(f"{predicted:.0%}", f"{observed:.0%}" if votes else "", _shade(predicted), words, far)
        case _:
            if not votes:
                return Cell("–", "", "none", words)
            return Cell(f"{observed:.0%}", f"{votes:,}", _shade(observed), words, far)


def _told(votes: int, observed: float) -> str:
    if not votes:
        return gettext("no votes")
    return ngettext(
        "%(share)s of %(num)s vote", "%(share)s of %(num)s votes", votes, share=percent(observed, 1)
    )


def _shade(share: float) -> str:
    # Eleven shades, w5 for even; they end at a quarter and three quarters, where strong models mostly stay.
    return f"w{min(max(round((share - 0.25) * 20), 0), 10)}"

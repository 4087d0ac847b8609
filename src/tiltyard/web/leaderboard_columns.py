"""The columns of the leaderboard's table, as data: another column is one more entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from tiltyard.arena.saying import to_tell
from tiltyard.rating.leaderboard import LeaderboardRow
from tiltyard.web.leaderboard_query import LeaderboardQuery, SortKey

SortValue = str | float | None

_NOTES: Final = (
    to_tell("undefeated: only half a virtual loss keeps its rating finite"),
    to_tell("winless: only half a virtual win keeps its rating finite"),
    to_tell("separated: its votes against the rest all point one way; half virtual wins keep it finite"),
    to_tell("no chain of votes connects it to the main group, so it has no rating beside it"),
    to_tell("the fit did not converge; do not rely on this rating"),
)
"""What `LeaderboardRow.notes` says, marked for the catalogs: the template looks it up."""
REASON_WORDS: Final = (
    to_tell("withdrawn"),
    to_tell("excluded by review"),
    to_tell("same behaviour on both sides"),
    to_tell("identity leak"),
    to_tell("too fast"),
    to_tell("beyond voter day"),
    to_tell("beyond network day"),
    to_tell("duplicate prompt"),
    to_tell("voter surprise"),
    to_tell("voter side"),
    to_tell("voter model"),
    to_tell("answers without words or times"),
)
_TRAITS: Final = (
    to_tell("length"),
    to_tell("headers"),
    to_tell("bold"),
    to_tell("lists"),
    to_tell("time to first token"),
    to_tell("tokens per second"),
    to_tell("left side"),
)


@dataclass(frozen=True)
class ColumnSpec:
    """One column: its head, and what a row shows in it."""

    label: str
    css: str
    text: Callable[[LeaderboardRow], str]
    title: str = ""
    """Explains the column; shown at its head."""
    cell_title: Callable[[LeaderboardRow], str] = lambda _row: ""
    kind: Literal["text", "rank", "model"] = "text"
    """`rank` and `model` have a cell of their own in the template."""
    sort: SortKey | None = None
    value: Callable[[LeaderboardRow], SortValue] = lambda _row: None
    """What the column sorts by; `None` and `""` come last in both directions."""


@dataclass(frozen=True)
class Column:
    """A column as the page prints it; `address` sorts by it."""

    spec: ColumnSpec
    address: str | None
    aria_sort: str | None


def place(best: int | None, worst: int | None) -> str:
    """Write a range of places.

    >>> place(1, 3), place(2, 2), place(None, None)
    ('1–3', '2', '–')
    """
    if best is None or worst is None:
        return "–"
    return str(best) if best == worst else f"{best}–{worst}"


def _at_once(row: LeaderboardRow) -> str:
    return place(*(row.ranks_simultaneous or (None, None)))


COLUMNS: Final[tuple[ColumnSpec, ...]] = (
    ColumnSpec(
        to_tell("Rank"),
        "rank",
        lambda row: place(row.rank, row.rank_worst),
        to_tell(
            "1 + the models whose interval lies wholly above; below it, the places that the interval leaves open"
        ),
        kind="rank",
        sort="rank",
    ),
    ColumnSpec(
        to_tell("Model"),
        "model",
        lambda row: row.model.name,
        kind="model",
        sort="name",
        value=lambda row: row.model.name.casefold(),
    ),
    ColumnSpec(
        to_tell("Rating"),
        "number rating",
        lambda row: "–" if row.rating is None else f"{row.rating:.0f}",
        to_tell("400 points more are odds of 10 to 1; the mean is 1000 unless a model is the anchor"),
        sort="rating",
        value=lambda row: row.rating,
    ),
    ColumnSpec(
        "±",
        "number",
        lambda row: "–" if row.half_width is None else f"±{row.half_width:.0f}",
        to_tell("Half of the interval"),
        cell_title=lambda row: (
            "" if row.lower is None or row.upper is None else f"{row.lower:.1f} to {row.upper:.1f}"
        ),
        sort="interval",
        value=lambda row: row.half_width,
    ),
    ColumnSpec(
        to_tell("Votes"),
        "number",
        lambda row: f"{row.votes:,}",
        sort="votes",
        value=lambda row: float(row.votes),
    ),
    ColumnSpec(
        to_tell("By difference"),
        "number places",
        lambda row: place(row.rank_by_differences, row.rank_by_differences_worst),
        to_tell(
            "Places left open by a test of each difference, which sees more than two separate intervals do"
        ),
        sort="differences",
        value=lambda row: row.rank_by_differences,
    ),
    ColumnSpec(
        to_tell("All at once"),
        "number places",
        _at_once,
        to_tell("Places that hold for all models at once, with the confidence of the board"),
        sort="simultaneous",
        value=lambda row: None if row.ranks_simultaneous is None else row.ranks_simultaneous[0],
    ),
    ColumnSpec(
        to_tell("W / L / T"),
        "number wlt",
        lambda row: f"{row.wins:,} / {row.losses:,} / {row.ties:,}",
        to_tell("Wins, losses and ties; both bad is counted apart"),
    ),
    ColumnSpec(to_tell("Both bad"), "number", lambda row: f"{row.both_bad:,}"),
    ColumnSpec(
        to_tell("Organisation"),
        "text",
        lambda row: row.model.organization or "–",
        sort="organization",
        value=lambda row: row.model.organization.casefold(),
    ),
    ColumnSpec(
        to_tell("Licence"),
        "text",
        lambda row: row.model.license or "–",
        sort="license",
        value=lambda row: row.model.license.casefold(),
    ),
    ColumnSpec(
        to_tell("Identity"),
        "text digest",
        lambda row: row.model.behaviour[7:19] if row.model.behaviour else "–",
        to_tell("Behaviour digest: everything that can change a token"),
        cell_title=lambda row: row.model.behaviour or "",
    ),
)


def columns(
    query: LeaderboardQuery, default: LeaderboardQuery, page: str, specs: tuple[ColumnSpec, ...] = COLUMNS
) -> list[Column]:
    """Make the column heads; those that sort are links, so no script is needed."""
    made = []
    for spec in specs:
        if spec.sort is None:
            made.append(Column(spec, None, None))
            continue
        direction = None
        if spec.sort == query.sort:
            direction = "ascending" if query.order == "asc" else "descending"
        made.append(Column(spec, query.sorted_by(spec.sort).address(page, default), direction))
    return made


def sort_rows(
    rows: tuple[LeaderboardRow, ...], query: LeaderboardQuery, specs: tuple[ColumnSpec, ...] = COLUMNS
) -> list[LeaderboardRow]:
    """Put rows in the order asked for; rows without a value come last in both directions."""
    down = query.order == "desc"
    if query.sort == "rank":
        ranked = [row for row in rows if row.rank is not None]
        rest = [row for row in rows if row.rank is None]
        return [*(reversed(ranked) if down else ranked), *rest]
    spec = next(spec for spec in specs if spec.sort == query.sort)
    keyed = [(spec.value(row), row) for row in rows]
    numbers = [(value, row) for value, row in keyed if isinstance(value, int | float)]
    words = [(value, row) for value, row in keyed if isinstance(value, str) and value]
    numbers.sort(key=lambda pair: pair[0], reverse=down)
    words.sort(key=lambda pair: pair[0], reverse=down)
    return [
        *(row for _, row in numbers),
        *(row for _, row in words),
        *(row for value, row in keyed if value in (None, "")),
    ]

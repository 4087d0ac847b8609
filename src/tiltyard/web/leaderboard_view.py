"""What the leaderboard page shows: rows as text, column links, the win matrix and the method, all ready to print."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from tiltyard.rating.leaderboard import Leaderboard, LeaderboardRow
from tiltyard.web.charts import (
    CHARTS_MISSING,
    HOW_TO_INSTALL,
    bars_of,
    content_key,
    describe,
    distinct_names,
)
from tiltyard.web.leaderboard_query import LeaderboardQuery, SortKey

PAGE: Final = "/leaderboard"
CHART_ROWS: Final = 30
"""Models in the chart that the page opens with; the rest is one click away."""
MATRIX_ROWS: Final = 20
"""Models in the win matrix; more do not fit a screen, and the JSON has every pair."""


@dataclass(frozen=True)
class Link:
    """A choice that the reader can make."""

    label: str
    address: str
    current: bool


@dataclass(frozen=True)
class Column:
    """A column head; `address` sorts by it."""

    label: str
    css: str
    address: str | None = None
    aria_sort: str | None = None
    title: str | None = None


@dataclass(frozen=True)
class Cell:
    """How often the row's model beat the column's."""

    text: str
    votes: str
    css: str
    title: str


@dataclass(frozen=True)
class MatrixRow:
    """One model in the win matrix."""

    number: int
    name: str
    cells: tuple[Cell | None, ...]
    """`None` on the diagonal."""


@dataclass(frozen=True)
class ChartView:
    """Addresses of the chart's variants; `""` when the page has nothing to draw."""

    light: str
    dark: str
    light_narrow: str
    dark_narrow: str


@dataclass(frozen=True)
class Frozen:
    """What a published board says of itself."""

    published: str
    altered: bool
    """Whether its numbers are not those of its name."""


@dataclass(frozen=True)
class LeaderboardView:
    """All that `leaderboard.html` prints."""

    board: Leaderboard
    rows: list[LeaderboardRow]
    columns: list[Column]
    ranked: int
    rated: int
    """Models with votes."""
    last_vote: str | None
    whole_time: bool
    windows: list[Link]
    policies: list[Link]
    json_address: str
    csv_address: str
    all_time_address: str
    chart: ChartView | None
    chart_all: ChartView | None
    """The chart of every model, where `chart` shows only the first."""
    chart_alt: str
    charts_missing: str | None
    matrix: list[MatrixRow]
    frozen: Frozen | None = None
    """When and under which name it was published; `None` for the live board."""
    chart_rows: int = CHART_ROWS
    matrix_rows: int = MATRIX_ROWS


def frozen_of(
    board: Leaderboard,
    query: LeaderboardQuery,
    default: LeaderboardQuery,
    *,
    digest: str,
    time_us: int,
    altered: bool,
) -> LeaderboardView:
    """Prepare the page of a published board, at `/leaderboard/<digest>`."""
    view = view_of(board, query, default, last_time_us=0, page=f"{PAGE}/{digest}")
    return replace(view, frozen=Frozen(_moment(time_us) or "", altered))


def view_of(
    board: Leaderboard,
    query: LeaderboardQuery,
    default: LeaderboardQuery,
    *,
    last_time_us: int,
    page: str = PAGE,
) -> LeaderboardView:
    """Prepare a page."""
    bars = bars_of(board.rows)
    drawable = bool(bars) and CHARTS_MISSING is None

    def link(label: str, target: LeaderboardQuery) -> Link:
        return Link(label, target.address(page, default), target == query)

    return LeaderboardView(
        board=board,
        rows=sort_rows(board.rows, query),
        columns=columns(query, default, page),
        ranked=sum(row.status == "ranked" for row in board.rows),
        rated=int((board.ratings.votes > 0).sum()),
        last_vote=_moment(last_time_us),
        whole_time=query.window == "all",
        windows=[
            link("All time", replace(query, window="all")),
            link("Last 30 days", replace(query, window="30d")),
        ],
        policies=[
            link("count as ties", replace(query, both_bad="tie")),
            link("leave out", replace(query, both_bad="drop")),
        ],
        json_address=replace(query, format="json").address(page, default),
        csv_address=replace(query, format="csv").address(page, default),
        all_time_address=replace(query, window="all").address(PAGE, default),
        chart=chart_view(board, query, default, page, str(CHART_ROWS)) if drawable else None,
        chart_all=chart_view(board, query, default, page, "all")
        if drawable and len(bars) > CHART_ROWS
        else None,
        chart_alt=describe(bars),
        charts_missing=HOW_TO_INSTALL if CHARTS_MISSING else None,
        matrix=matrix(board),
    )


def sort_rows(rows: tuple[LeaderboardRow, ...], query: LeaderboardQuery) -> list[LeaderboardRow]:
    """Put rows in the order asked for; rows without a value come last in both directions."""
    if query.sort == "rank":
        ranked = [row for row in rows if row.rank is not None]
        rest = [row for row in rows if row.rank is None]
        return [*(reversed(ranked) if query.order == "desc" else ranked), *rest]
    keyed = [(_sort_value(row, query.sort), row) for row in rows]
    present = [(value, row) for value, row in keyed if value not in (None, "")]
    present.sort(key=lambda pair: pair[0], reverse=query.order == "desc")
    return [*(row for _, row in present), *(row for value, row in keyed if value in (None, ""))]


def _sort_value(row: LeaderboardRow, key: SortKey) -> str | float | None:
    match key:
        case "rating":
            return row.rating
        case "interval":
            return row.half_width
        case "votes":
            return row.votes
        case "organization":
            return row.model.organization.casefold()
        case "license":
            return row.model.license.casefold()
        case _:
            return row.model.name.casefold()


def columns(query: LeaderboardQuery, default: LeaderboardQuery, page: str) -> list[Column]:
    """Make the column heads; those that sort are links, so no script is needed."""

    def sortable(label: str, css: str, key: SortKey, title: str | None = None) -> Column:
        direction = None
        if key == query.sort:
            direction = "ascending" if query.order == "asc" else "descending"
        return Column(label, css, query.sorted_by(key).address(page, default), direction, title)

    return [
        sortable(
            "Rank", "rank", "rank", "1 + the models that are surely better; below it, the places left open"
        ),
        sortable("Model", "model", "name"),
        sortable("Rating", "number", "rating", "Bradley-Terry, 400 points are odds of 10 to 1, mean 1000"),
        sortable("±95%", "number", "interval", "Half of the 95% interval"),
        sortable("Votes", "number", "votes"),
        Column("W / L / T", "number", title="Wins, losses and ties; both bad is counted apart"),
        Column("Both bad", "number"),
        sortable("Organisation", "text", "organization"),
        sortable("Licence", "text", "license"),
        Column("Identity", "text", title="Behaviour digest: everything that can change a token"),
    ]


def chart_view(
    board: Leaderboard, query: LeaderboardQuery, default: LeaderboardQuery, page: str, top: str
) -> ChartView:
    """Address the chart in both themes and both sizes; `v` names the content, so it may be kept for ever."""
    plain = replace(query, sort=default.sort, order=default.order, format=None)
    version = content_key(bars_of(board.rows))

    def address(theme: str, size: str) -> str:
        return plain.address(f"{page}/chart.svg", default, theme=theme, size=size, top=top, v=version)

    return ChartView(
        light=address("light", "wide"),
        dark=address("dark", "wide"),
        light_narrow=address("light", "narrow"),
        dark_narrow=address("dark", "narrow"),
    )


def matrix(board: Leaderboard) -> list[MatrixRow]:
    """Observed share of wins of each model against each other, ties half, for the first models that have votes."""
    place = {key: node for node, key in enumerate(board.counts.models)}
    rows = [row for row in board.rows if row.votes][:MATRIX_ROWS]
    score: dict[tuple[int, int], tuple[float, int]] = {}
    for i, j, (wins, losses, ties, bad) in zip(
        board.counts.first.tolist(), board.counts.second.tolist(), board.counts.counts.tolist(), strict=True
    ):
        drawn = ties + (bad if board.ratings.both_bad == "tie" else 0)
        total = wins + losses + drawn
        score[i, j] = (wins + drawn / 2, total)
        score[j, i] = (losses + drawn / 2, total)
    made = []
    for number, (row, name) in enumerate(zip(rows, distinct_names(rows), strict=True), 1):
        node = place[row.model.key]
        cells = tuple(
            None if other is row else _cell(row, other, *score.get((node, place[other.model.key]), (0.0, 0)))
            for other in rows
        )
        made.append(MatrixRow(number, name, cells))
    return made


def _cell(row: LeaderboardRow, other: LeaderboardRow, score: float, votes: int) -> Cell:
    pair = f"{row.model.name} against {other.model.name}"
    if not votes:
        return Cell("–", "", "none", f"{pair}: no votes")
    share = score / votes
    # Eleven shades, w5 for even; they end at a quarter and three quarters, where strong models mostly stay.
    shade = min(max(round((share - 0.25) * 20), 0), 10)
    return Cell(f"{share:.0%}", f"{votes:,}", f"w{shade}", f"{pair}: {share:.1%} of {votes:,} votes")


def _moment(time_us: int) -> str | None:
    if not time_us:
        return None
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).strftime("%-d %B %Y, %H:%M UTC")

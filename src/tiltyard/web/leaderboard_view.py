"""What the leaderboard page shows: rows as text, pickers as links, heat maps, pairs, warnings, all ready to print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tiltyard.arena.boards import Board, History
from tiltyard.arena.imported_boards import ImportedSource
from tiltyard.rating.leaderboard import Leaderboard, LeaderboardRow
from tiltyard.rating.matrix import PairCheck, win_matrix
from tiltyard.web.charts import CHARTS_MISSING, HOW_TO_INSTALL, Bar, bars_of, content_key, distinct_names
from tiltyard.web.history_chart import HistoryLines, history_key, lines_of
from tiltyard.web.languages import gettext, moment, number_in_words
from tiltyard.web.leaderboard_columns import Column, columns, sort_rows
from tiltyard.web.leaderboard_heat import HeatMap, heat_map
from tiltyard.web.leaderboard_pickers import Link, Picker, pickers_of
from tiltyard.web.leaderboard_query import MATRICES, Format, LeaderboardQuery
from tiltyard.web.leaderboard_warnings import age_of, warnings_of

PAGE: Final = "/leaderboard"
CHART_ROWS: Final = 30
"""Models in the chart that the page opens with; the rest is one click away."""
DOWNLOADS: Final[tuple[tuple[str, Format], ...]] = (("JSON", "json"), ("CSV", "csv"), ("Parquet", "parquet"))
PAIRS: Final = 8
"""Pairs in each of the two lists."""


@dataclass(frozen=True)
class ChartView:
    """Addresses of a chart's variants."""

    light: str
    dark: str
    light_narrow: str
    dark_narrow: str


@dataclass(frozen=True)
class PairView:
    """One pair of a list, ready to print."""

    model: str
    rival: str
    votes: str
    observed: str
    predicted: str
    surprise: str
    standard_error: str


@dataclass(frozen=True)
class EffectView:
    """What a controlled trait does."""

    name: str
    coefficient: str
    interval: str
    points: str


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
    age: str
    whole: bool
    """Whether the board is of all votes, not of a window or slice."""
    special: bool
    """Whether the reader asked for anything else than the default."""
    pickers: list[Picker]
    warnings: list[str]
    downloads: list[Link]
    whole_address: str
    chart: ChartView | None
    chart_all: ChartView | None
    """The chart of every model, where `chart` shows only the first."""
    chart_alt: str
    charts_missing: str | None
    matrices: list[Link]
    matrix: HeatMap
    worst_connected: list[PairView]
    most_surprising: list[PairView]
    effects: list[EffectView]
    found: list[str]
    """What an unusual method found besides, a sentence each."""
    history: HistoryLines | None
    history_chart: ChartView | None
    frozen: Frozen | None = None
    """When it was published; `None` for the live board."""
    refused: str | None = None
    """Why a control that was asked for is not in these numbers."""
    chart_rows: int = CHART_ROWS


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
    view = _view(board, query, default, f"{PAGE}/{digest}")
    return replace(view, frozen=Frozen(moment(time_us, "short"), altered))


def view_of(
    board: Board,
    query: LeaderboardQuery,
    default: LeaderboardQuery,
    *,
    now_us: int,
    history: History | None = None,
    refused: str | None = None,
    sources: Sequence[ImportedSource] = (),
) -> LeaderboardView:
    """Prepare the live page; `history` is drawn when it has at least two windows; `sources` can be asked for."""
    leaderboard = board.leaderboard
    view = _view(leaderboard, query, default, PAGE)
    names = _names(leaderboard)
    matrix = win_matrix(board.rated.counts, board.rated.ratings, tie_strength=board.rated.tie_strength)
    lines = (
        None
        if history is None or len(history.windows) < 2
        else lines_of(history, leaderboard.rows, leaderboard.minimum_votes)
    )
    return replace(
        view,
        last_vote=moment(board.last_time_us, "short") if board.last_time_us else None,
        age=age_of(now_us - board.last_time_us) if board.last_time_us else "",
        pickers=pickers_of(board, query, default, PAGE, sources),
        warnings=warnings_of(board, now_us=now_us),
        worst_connected=[_pair(pair, names) for pair in matrix.worst_connected(PAIRS)],
        most_surprising=[_pair(pair, names) for pair in matrix.most_surprising(PAIRS)],
        history=lines,
        history_chart=None
        if lines is None or CHARTS_MISSING is not None
        else _themed(query, default, f"{PAGE}/history.svg", v=history_key(lines)),
        refused=refused,
    )


def _view(
    board: Leaderboard, query: LeaderboardQuery, default: LeaderboardQuery, page: str
) -> LeaderboardView:
    """Prepare what live and published boards have in common."""
    bars = bars_of(board.rows)
    drawable = bool(bars) and CHARTS_MISSING is None
    version = content_key(bars)

    def chart(top: str) -> ChartView:
        return _themed(query, default, f"{page}/chart.svg", top=top, v=version)

    return LeaderboardView(
        board=board,
        rows=sort_rows(board.rows, query),
        columns=columns(query, default, page),
        ranked=sum(row.status == "ranked" for row in board.rows),
        rated=int((board.ratings.votes > 0).sum()),
        last_vote=None,
        age="",
        whole=query.window == "all" and not query.where,
        special=(query.sources, query.question) != (default.sources, default.question),
        pickers=[],
        warnings=[],
        downloads=[
            Link(label, replace(query, format=form).address(page, default), False)
            for label, form in DOWNLOADS
        ],
        whole_address=replace(query, window="all", where=()).address(page, default),
        chart=chart(str(CHART_ROWS)) if drawable else None,
        chart_all=chart("all") if drawable and len(bars) > CHART_ROWS else None,
        chart_alt=_alt(bars, board.ratings.confidence),
        charts_missing=HOW_TO_INSTALL if CHARTS_MISSING else None,
        matrices=[
            Link(
                label,
                replace(query, matrix=kind).address(page, default) + "#matrix",
                kind == query.matrix,
            )
            for kind, label in zip(
                MATRICES, (gettext("won"), gettext("predicted"), gettext("votes a pair")), strict=True
            )
        ],
        matrix=heat_map(board, query.matrix),
        worst_connected=[],
        most_surprising=[],
        effects=_effects(board),
        found=_found(board),
        history=None,
        history_chart=None,
    )


def _themed(query: LeaderboardQuery, default: LeaderboardQuery, path: str, **extra: str) -> ChartView:
    """Address a chart in both themes and both sizes; `v` names the content, so it may be kept for ever."""
    plain = replace(query, sort=default.sort, order=default.order, matrix=default.matrix, format=None)

    def address(theme: str, size: str) -> str:
        return plain.address(path, default, theme=theme, size=size, **extra)

    return ChartView(
        light=address("light", "wide"),
        dark=address("dark", "wide"),
        light_narrow=address("light", "narrow"),
        dark_narrow=address("dark", "narrow"),
    )


def _alt(bars: Sequence[Bar], confidence: float) -> str:
    """Say in the reader's language what `describe` says inside the chart."""
    percent = f"{100 * confidence:.4g}%"
    told = ", ".join(f"{bar.name} {bar.rating:.0f} ({bar.lower:.0f}–{bar.upper:.0f})" for bar in bars[:8])
    return gettext(
        "Ratings with %(percent)s intervals: %(models)s",
        percent=percent,
        models=told + (", …" if len(bars) > 8 else ""),
    )


def _names(board: Leaderboard) -> dict[str, str]:
    return {row.model.key: name for row, name in zip(board.rows, distinct_names(board.rows), strict=True)}


def _pair(pair: PairCheck, names: dict[str, str]) -> PairView:
    return PairView(
        model=names[pair.model],
        rival=names[pair.rival],
        votes=f"{pair.votes:,}",
        observed="–" if pair.observed is None else f"{pair.observed:.0%}",
        predicted=f"{pair.predicted:.0%}",
        surprise=f"{pair.surprise:+.1f}" if pair.votes else "–",
        standard_error=f"{pair.standard_error:.0f}",
    )


def _effects(board: Leaderboard) -> list[EffectView]:
    effects = board.details.get("effects")
    made = []
    for effect in effects if isinstance(effects, Sequence) else ():
        if isinstance(effect, dict):
            made.append(
                EffectView(
                    name=str(effect["name"]).replace("_", " "),
                    coefficient=f"{effect['coefficient']:+.3f}",
                    interval=f"{effect['lower']:+.3f} to {effect['upper']:+.3f}",
                    points=f"{effect['points']:+.1f}",
                )
            )
    return made


def _found(board: Leaderboard) -> list[str]:
    details, lines = board.details, []
    strength = details.get("tie_strength")
    if isinstance(strength, Sequence) and len(strength) == 3:
        nu, low, high = strength
        lines.append(gettext("Strength of ties ν = %(nu)s (%(low)s to %(high)s).", nu=nu, low=low, high=high))
    if isinstance(worth := details.get("effective_votes"), int | float):
        lines.append(gettext("Worth %(number)s equal votes.", number=number_in_words(round(worth))))
    if isinstance(voters := details.get("voters"), int):
        lines.append(gettext("Intervals by %(number)s voters.", number=number_in_words(voters)))
    drawn = details.get("bootstrap")
    if isinstance(drawn, dict):
        lines.append(
            gettext(
                "%(number)s bootstrap resamples of seed %(seed)s; their bounds are in the JSON.",
                number=drawn["resamples"],
                seed=drawn["seed"],
            )
        )
    return lines

"""The leaderboard over HTTP: one page, the same content as JSON and CSV, its charts, and published boards.

`GET /leaderboard` and `GET /api/leaderboard` take the same parameters (`leaderboard_query.py`). The page's own
address gives JSON to who asks for it: `Accept: application/json`, or `?format=json`. `/leaderboard/<digest>` and
`/api/leaderboard/<digest>` show a published board as it was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Final, NamedTuple

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tiltyard.arena import publication
from tiltyard.arena.boards import Board, Boards, History
from tiltyard.arena.imported_boards import ImportedBoards
from tiltyard.arena.publication import Published
from tiltyard.errors import Conflict, InvalidRequest, NotFound, StorageFailed
from tiltyard.events.envelope import format_time
from tiltyard.events.schema import LeaderboardPublished
from tiltyard.identity.canonical import Json, digest_of_json
from tiltyard.rating.leaderboard import DECIMALS, Leaderboard
from tiltyard.rating.matrix import win_matrix
from tiltyard.web.charts import SIZES, THEMES, Size, Theme, bars_of, content_key, interval_chart
from tiltyard.web.history_chart import history_chart, history_key, lines_of
from tiltyard.web.leaderboard_files import to_csv, to_parquet
from tiltyard.web.leaderboard_query import Format, LeaderboardQuery
from tiltyard.web.leaderboard_view import CHART_ROWS, PAIRS, LeaderboardView, frozen_of, view_of
from tiltyard.web.leaderboard_warnings import warnings_of
from tiltyard.web.telling import told
from tiltyard.web.templating import render

PAGE: Final = "/leaderboard"
API: Final = "/api/leaderboard"
CHART: Final = "/leaderboard/chart.svg"
HISTORY: Final = "/api/leaderboard/history"
HISTORY_CHART: Final = "/leaderboard/history.svg"
PUBLISH_EVERY_US: Final = 600_000_000
"""The page publishes its default board when it is shown, but not more often than every ten minutes."""

_CONTROL_FAULTS: Final = ("covariates", "control", "ridge", "ties")
"""What `InvalidRequest` names when the votes cannot serve a control."""
_logger = logging.getLogger(__name__)

Publish = Callable[[LeaderboardPublished], Awaitable[object]]


def leaderboard_routes(
    *,
    boards: Boards,
    publish: Publish | None = None,
    clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> list[Route]:
    """Make the routes of the leaderboard.

    `boards` answers in a worker thread, so it may block. `publish` appends an event when the board of the default
    settings is shown with new content, at most every `PUBLISH_EVERY_US`. `clock_us` ends the time windows: microseconds
    since 1970, UTC.
    """
    pages = LeaderboardPages(boards, publish, clock_us)
    return [
        Route(PAGE, pages.page),
        Route(API, pages.api),
        Route(CHART, pages.chart),
        Route(HISTORY_CHART, pages.history_chart),
        Route(HISTORY, pages.history),
        Route(PAGE + "/{digest}", pages.frozen_page),
        Route(PAGE + "/{digest}/chart.svg", pages.frozen_chart),
        Route(API + "/{digest}", pages.frozen_api),
    ]


@dataclass(frozen=True)
class Shown:
    """One answer: what was asked, what the votes gave, and what was left of the question."""

    query: LeaderboardQuery
    board: Board
    now_us: int
    refused: str | None = None
    """Why the controls that were asked for are not in it."""


class LeaderboardPages:
    """The endpoints. What was computed for a log position is kept; a vote makes it compute anew."""

    def __init__(self, boards: Boards, publish: Publish | None, clock_us: Callable[[], int]) -> None:
        self._boards = boards
        self._imported = ImportedBoards(boards.recorded.log)
        self._log = boards.recorded.log
        self._default = LeaderboardQuery.default(boards.minimum_votes)
        self._publish = publish
        self._clock_us = clock_us
        self._published: tuple[str, int] | None = None
        """Digest and time of the last publication that this process made or saw."""

    async def page(self, request: Request) -> Response:
        """Answer `GET /leaderboard` in the form that the reader prefers."""
        query = self._parse(request)
        form = query.format or preferred_format(request.headers.get("accept", ""))
        return await self._answer(await self._show(query, forgiving=form == "html"), form)

    async def api(self, request: Request) -> Response:
        """Answer `GET /api/leaderboard`."""
        query = self._parse(request)
        return await self._answer(await self._show(query), _no_page(query.format))

    async def chart(self, request: Request) -> Response:
        """Answer `GET /leaderboard/chart.svg`: the same parameters, and `theme`, `size`, `top`, `v`."""
        query = self._parse(request, *_CHART_PARAMETERS)
        return await _chart(request, (await self._show(query)).board.leaderboard)

    async def history(self, request: Request) -> Response:
        """Answer `GET /api/leaderboard/history`: ratings of rolling windows."""
        query = self._parse(request)
        history = await run_in_threadpool(self._history, query, self._clock_us())
        if history is None:
            raise InvalidRequest("these votes have no times, so they have no history.", param="source")
        body = await run_in_threadpool(history_body, history)
        return Response(
            orjson.dumps(body), media_type="application/json", headers={"cache-control": "no-store"}
        )

    async def history_chart(self, request: Request) -> Response:
        """Answer `GET /leaderboard/history.svg`: the same parameters, and `theme`, `size`, `v`."""
        query, drawing = self._parse(request, "theme", "size", "v"), _Drawing.of(request)
        now_us = self._clock_us()
        history = await run_in_threadpool(self._history, query, now_us)
        if history is None or len(history.windows) < 2:
            raise NotFound("ratings over time need votes of more days than one window has")
        board = (await self._ask(query, now_us)).leaderboard
        lines = lines_of(history, board.rows, board.minimum_votes)
        svg = await run_in_threadpool(history_chart, lines, *drawing)
        return _image(request, svg, history_key(lines))

    async def frozen_page(self, request: Request) -> Response:
        """Answer `GET /leaderboard/<digest>`: a published board as it was."""
        query = self._parse(request)
        form = query.format or preferred_format(request.headers.get("accept", ""))
        return await self._answer_frozen(request, query, form)

    async def frozen_api(self, request: Request) -> Response:
        """Answer `GET /api/leaderboard/<digest>`: the published document, whose digest is its name."""
        query = self._parse(request)
        return await self._answer_frozen(request, query, _no_page(query.format))

    async def frozen_chart(self, request: Request) -> Response:
        """Answer `GET /leaderboard/<digest>/chart.svg`."""
        self._parse(request, *_CHART_PARAMETERS)
        published = await self._find(request)
        return await _chart(request, await run_in_threadpool(publication.board_of, published))

    def _parse(self, request: Request, *also: str) -> LeaderboardQuery:
        return LeaderboardQuery.parse(
            request.query_params, minimum_votes=self._default.minimum_votes, also=also
        )

    async def _show(self, query: LeaderboardQuery, *, forgiving: bool = False) -> Shown:
        """Compute what was asked; `forgiving`, without the controls when the votes cannot serve them."""
        now_us = self._clock_us()
        try:
            return Shown(query, await self._ask(query, now_us), now_us)
        except InvalidRequest as error:
            if not (forgiving and query.control and error.param in _CONTROL_FAULTS):
                raise
            plain = replace(query, control=())
            return Shown(plain, await self._ask(plain, now_us), now_us, told(error))

    async def _ask(self, query: LeaderboardQuery, now_us: int) -> Board:
        if query.sources is not None:
            return await run_in_threadpool(self._imported.ask, query.sources, query.question)
        return await run_in_threadpool(self._boards.ask, query.question, now_us=now_us)

    def _history(self, query: LeaderboardQuery, now_us: int) -> History | None:
        """Ratings over time; `None` where the votes have no times. Blocks."""
        if query.sources is not None:
            return self._imported.history(query.sources, query.question)
        return self._boards.history(query.question, now_us=now_us)

    async def _find(self, request: Request) -> Published:
        return await run_in_threadpool(publication.find, self._log, request.path_params["digest"])

    async def _answer(self, shown: Shown, form: Format) -> Response:
        unpublished = await self._publish_new(shown)
        headers = {"vary": "accept", "cache-control": "no-store"}
        board = shown.board.leaderboard
        if form == "json":
            body = await run_in_threadpool(api_body, shown.board, shown.now_us)
            return Response(orjson.dumps(body), media_type="application/json", headers=headers)
        if form != "html":
            return await _file(board, form, "leaderboard", headers)
        view = await run_in_threadpool(self._view, shown)
        frozen = None if self._published is None else self._published[0].removeprefix("sha256:")
        current = self._published is not None and self._published[0] == board.digest
        return render(
            "leaderboard.html",
            headers=headers,
            unpublished=unpublished,
            view=view,
            frozen=frozen,
            frozen_now=current,
        )

    def _view(self, shown: Shown) -> LeaderboardView:
        history = None
        try:
            history = self._history(shown.query, shown.now_us)
        except InvalidRequest as error:
            # Some window has too few votes for a control: the board stands, only its past cannot be drawn.
            _logger.info("no ratings over time for %s: %s", shown.query, error.message)
        return view_of(
            shown.board,
            shown.query,
            self._default,
            now_us=shown.now_us,
            history=history,
            refused=shown.refused,
            sources=self._imported.sources(),
        )

    async def _answer_frozen(self, request: Request, query: LeaderboardQuery, form: Format) -> Response:
        published = await self._find(request)
        board = await run_in_threadpool(publication.board_of, published)
        headers = {"vary": "accept", "cache-control": "no-cache"}
        altered = digest_of_json(published.event.board) != published.digest
        name = published.digest.removeprefix("sha256:")
        if form == "json":
            body: dict[str, Json] = {
                "digest": published.digest,
                "frozen": True,
                "published": format_time(published.time_us),
                "sequence": published.sequence,
                "altered": altered,
                "document": published.event.board,
                "names": {key: model.model_dump(mode="json") for key, model in published.event.names.items()},
                "live": API,
                "replay": f"tiltyard replay leaderboard {name}",
            }
            return Response(orjson.dumps(body), media_type="application/json", headers=headers)
        if form != "html":
            return await _file(board, form, f"leaderboard-{name[:12]}", headers)
        view = frozen_of(board, query, self._default, digest=name, time_us=published.time_us, altered=altered)
        return render(
            "leaderboard.html", headers=headers, unpublished=None, view=view, frozen=name, frozen_now=True
        )

    async def _publish_new(self, shown: Shown) -> str | None:
        """Append the event of a new board of the default settings; return why not, if the log refused."""
        board, now_us = shown.board.leaderboard, shown.now_us
        usual = shown.query.sources is None and shown.query.question == self._default.question
        if self._publish is None or not board.votes or not usual:
            return None
        if self._published is None:
            newest = await run_in_threadpool(publication.newest, self._log)
            self._published = None if newest is None else (newest.digest, newest.time_us)
        if self._published is not None:
            digest, time_us = self._published
            if digest == board.digest or time_us <= now_us < time_us + PUBLISH_EVERY_US:
                return None
        try:
            await self._publish(await run_in_threadpool(publication.event_of, board))
        except Conflict:
            pass  # another process, or this one before a restart, published the same content
        except StorageFailed as error:
            return told(error)
        self._published = board.digest, now_us
        return None


_CHART_PARAMETERS: Final = ("theme", "size", "top", "v")


def _no_page(form: Format | None) -> Format:
    if form == "html":
        raise InvalidRequest(
            f"format is 'html'; the page is at {PAGE}, here are json, csv and parquet.", param="format"
        )
    return form or "json"


class _Drawing(NamedTuple):
    theme: Theme
    size: Size

    @classmethod
    def of(cls, request: Request) -> _Drawing:
        theme = request.query_params.get("theme", THEMES[0])
        size = request.query_params.get("size", SIZES[0])
        if theme not in THEMES:
            raise InvalidRequest(f"theme is {theme[:40]!r}; it may be {' or '.join(THEMES)}.", param="theme")
        if size not in SIZES:
            raise InvalidRequest(f"size is {size[:40]!r}; it may be {' or '.join(SIZES)}.", param="size")
        return cls(theme, size)


async def _chart(request: Request, board: Leaderboard) -> Response:
    drawing = _Drawing.of(request)
    top = request.query_params.get("top", str(CHART_ROWS))
    if top != "all" and not (top.isascii() and top.isdigit()):
        raise InvalidRequest(f"top is {top[:40]!r}; it may be a number or 'all'.", param="top")
    bars = bars_of(board.rows)
    shown = bars if top == "all" else bars[: int(top[:6])]
    svg = await run_in_threadpool(interval_chart, shown, *drawing, board.ratings.confidence)
    return _image(request, svg, content_key(bars))


def _image(request: Request, svg: str, current: str) -> Response:
    # The page names the content in `v`, so what it asked for never changes.
    kept = request.query_params.get("v") == current
    return Response(
        svg,
        media_type="image/svg+xml",
        headers={
            "cache-control": "public, max-age=31536000, immutable" if kept else "no-cache",
            # An image runs no script; its few styles are its own.
            "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
        },
    )


async def _file(board: Leaderboard, form: Format, name: str, headers: dict[str, str]) -> Response:
    if form == "csv":
        content, media_type = to_csv(board.rows).encode(), "text/csv; charset=utf-8"
    else:
        content = await run_in_threadpool(to_parquet, board)
        media_type = "application/vnd.apache.parquet"
    disposition = f'attachment; filename="{name}.{form}"'
    return Response(content, media_type=media_type, headers={**headers, "content-disposition": disposition})


def api_body(board: Board, now_us: int) -> dict[str, Json]:
    """Return a live board as the API shows it: the leaderboard, how fresh it is, and the pairs worth a look."""
    matrix = win_matrix(board.rated.counts, board.rated.ratings, tie_strength=board.rated.tie_strength)
    return {
        **board.leaderboard.to_json(),
        "last_vote": format_time(board.last_time_us) if board.last_time_us else None,
        "last_vote_age_s": (now_us - board.last_time_us) // 1_000_000 if board.last_time_us else None,
        "read_to": board.read_to,
        "warnings": warnings_of(board, now_us=now_us),
        "worst_connected": [asdict(pair) for pair in matrix.worst_connected(PAIRS)],
        "most_surprising": [asdict(pair) for pair in matrix.most_surprising(PAIRS)],
    }


def history_body(history: History) -> dict[str, Json]:
    """Return ratings over time as the API shows them; each model has `[lower, rating, upper]` by window."""
    return {
        "days": history.days,
        "step_days": history.step_days,
        "windows": [
            {
                "start": format_time(period.start_us),
                "end": format_time(period.end_us),
                "votes": rated.counts.votes,
                "ratings": {
                    model: [round(float(value), DECIMALS) for value in bounds]
                    for model, votes, *bounds in zip(
                        rated.ratings.models,
                        rated.ratings.votes.tolist(),
                        rated.ratings.lower,
                        rated.ratings.ratings,
                        rated.ratings.upper,
                        strict=True,
                    )
                    if votes
                },
            }
            for period, rated in history.windows
        ],
    }


def preferred_format(accept: str) -> Format:
    """Choose between the page and JSON by an `Accept` header; the page wins a draw.

    >>> preferred_format("application/json"), preferred_format("text/html,*/*;q=0.8")
    ('json', 'html')
    """
    return "json" if _quality(accept, "application/json") > _quality(accept, "text/html") else "html"


def _quality(accept: str, media_type: str) -> float:
    """Weight of a media type, by its most specific range (RFC 9110, section 12.5.1)."""
    main = media_type.partition("/")[0]
    best = (-1, 0.0)
    for part in (accept or "*/*").split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        specific = {"*/*": 0, f"{main}/*": 1, media_type: 2}.get(name, -1)
        if specific < 0:
            continue
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        best = max(best, (specific, quality))
    return best[1]

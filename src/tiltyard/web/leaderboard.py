"""The leaderboard over HTTP: one page, the same content as JSON and CSV, its charts, and published boards.

`GET /leaderboard` and `GET /api/leaderboard` take the same parameters (`leaderboard_query.py`). The page's own
address gives JSON to who asks for it: `Accept: application/json`, or `?format=json`. `/leaderboard/<digest>` and
`/api/leaderboard/<digest>` show a published board as it was.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tiltyard.arena import publication
from tiltyard.arena.boards import Boards
from tiltyard.arena.publication import Published
from tiltyard.errors import Conflict, InvalidRequest, StorageFailed
from tiltyard.events.envelope import format_time
from tiltyard.events.schema import LeaderboardPublished
from tiltyard.identity.canonical import Json, digest_of_json
from tiltyard.rating.leaderboard import Leaderboard, LeaderboardRow
from tiltyard.web.charts import SIZES, THEMES, bars_of, content_key, interval_chart
from tiltyard.web.leaderboard_query import Format, LeaderboardQuery
from tiltyard.web.leaderboard_view import CHART_ROWS, frozen_of, view_of
from tiltyard.web.templating import render

PAGE: Final = "/leaderboard"
API: Final = "/api/leaderboard"
CHART: Final = "/leaderboard/chart.svg"
PUBLISH_EVERY_US: Final = 600_000_000
"""The page publishes its default board when it is shown, but not more often than every ten minutes."""

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
        Route(PAGE + "/{digest}", pages.frozen_page),
        Route(PAGE + "/{digest}/chart.svg", pages.frozen_chart),
        Route(API + "/{digest}", pages.frozen_api),
    ]


@dataclass
class Shown:
    """One answer: what was asked, what the votes gave, and when the last of them was cast."""

    query: LeaderboardQuery
    leaderboard: Leaderboard
    last_time_us: int


class LeaderboardPages:
    """The endpoints. What was computed for a log position is kept; a vote makes it compute anew."""

    def __init__(self, boards: Boards, publish: Publish | None, clock_us: Callable[[], int]) -> None:
        self._boards = boards
        self._log = boards.recorded.log
        self._default = LeaderboardQuery.default(boards.minimum_votes)
        self._publish = publish
        self._clock_us = clock_us
        self._published: tuple[str, int] | None = None
        """Digest and time of the last publication that this process made or saw."""

    async def page(self, request: Request) -> Response:
        """Answer `GET /leaderboard` in the form that the reader prefers."""
        query = self._parse(request)
        shown = await self._show(query)
        return await self._answer(shown, query.format or preferred_format(request.headers.get("accept", "")))

    async def api(self, request: Request) -> Response:
        """Answer `GET /api/leaderboard`."""
        query = self._parse(request)
        return await self._answer(await self._show(query), _no_page(query.format))

    async def chart(self, request: Request) -> Response:
        """Answer `GET /leaderboard/chart.svg`: the same parameters, and `theme`, `size`, `top`, `v`."""
        query = self._parse(request, *_CHART_PARAMETERS)
        return await _chart(request, (await self._show(query)).leaderboard)

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

    async def _show(self, query: LeaderboardQuery) -> Shown:
        board = await run_in_threadpool(self._boards.ask, query.question, now_us=self._clock_us())
        return Shown(query, board.leaderboard, board.last_time_us)

    async def _find(self, request: Request) -> Published:
        return await run_in_threadpool(publication.find, self._log, request.path_params["digest"])

    async def _answer(self, shown: Shown, form: Format) -> Response:
        unpublished = await self._publish_new(shown)
        headers = {"vary": "accept", "cache-control": "no-store"}
        if form == "json":
            body = orjson.dumps(shown.leaderboard.to_json())
            return Response(body, media_type="application/json", headers=headers)
        if form == "csv":
            return _csv(shown.leaderboard.rows, "leaderboard.csv", headers)
        view = view_of(shown.leaderboard, shown.query, self._default, last_time_us=shown.last_time_us)
        frozen = None if self._published is None else self._published[0].removeprefix("sha256:")
        return render("leaderboard.html", headers=headers, unpublished=unpublished, view=view, frozen=frozen)

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
        if form == "csv":
            return _csv(board.rows, f"leaderboard-{name[:12]}.csv", headers)
        view = frozen_of(board, query, self._default, digest=name, time_us=published.time_us, altered=altered)
        return render("leaderboard.html", headers=headers, unpublished=None, view=view, frozen=name)

    async def _publish_new(self, shown: Shown) -> str | None:
        """Append the event of a new board of the default settings; return why not, if the log refused."""
        board, now_us = shown.leaderboard, self._clock_us()
        if self._publish is None or not board.votes or shown.query.question != self._default.question:
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
            return error.message
        self._published = board.digest, now_us
        return None


_CHART_PARAMETERS: Final = ("theme", "size", "top", "v")


def _no_page(form: Format | None) -> Format:
    if form == "html":
        raise InvalidRequest(
            f"format is 'html'; the page is at {PAGE}, here are json and csv.", param="format"
        )
    return form or "json"


async def _chart(request: Request, board: Leaderboard) -> Response:
    theme = request.query_params.get("theme", THEMES[0])
    size = request.query_params.get("size", SIZES[0])
    top = request.query_params.get("top", str(CHART_ROWS))
    if theme not in THEMES:
        raise InvalidRequest(f"theme is {theme[:40]!r}; it may be {' or '.join(THEMES)}.", param="theme")
    if size not in SIZES:
        raise InvalidRequest(f"size is {size[:40]!r}; it may be {' or '.join(SIZES)}.", param="size")
    if top != "all" and not (top.isascii() and top.isdigit()):
        raise InvalidRequest(f"top is {top[:40]!r}; it may be a number or 'all'.", param="top")
    bars = bars_of(board.rows)
    current = content_key(bars)
    svg = await run_in_threadpool(interval_chart, bars if top == "all" else bars[: int(top[:6])], theme, size)
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


def _csv(rows: Sequence[LeaderboardRow], name: str, headers: dict[str, str]) -> Response:
    return Response(
        to_csv(rows),
        media_type="text/csv",
        headers={**headers, "content-disposition": f'attachment; filename="{name}"'},
    )


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


_CSV_COLUMNS: Final = (
    "rank",
    "rank_worst",
    "rank_by_differences",
    "status",
    "name",
    "rating",
    "lower",
    "upper",
    "votes",
    "wins",
    "losses",
    "ties",
    "both_bad",
    "votes_needed",
    "organization",
    "license",
    "behaviour",
    "superseded",
    "notes",
)


def to_csv(rows: Sequence[LeaderboardRow]) -> str:
    """Write rows as CSV; a text that a spreadsheet would run as a formula is prefixed with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for row in rows:
        superseded = "true" if row.model.superseded else "false"  # as in the JSON
        values = {**row.to_json(), "superseded": superseded, "notes": "; ".join(row.notes)}
        writer.writerow([_inert(values[column]) for column in _CSV_COLUMNS])
    return out.getvalue()


def _inert(value: object) -> object:
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )

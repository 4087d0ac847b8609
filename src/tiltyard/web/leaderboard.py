"""The leaderboard over HTTP: one page, the same content as JSON and CSV, and its chart.

`GET /leaderboard` and `GET /api/leaderboard` take the same parameters (`leaderboard_query.py`). The page's own
address gives JSON to who asks for it: `Accept: application/json`, or `?format=json`.
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

from tiltyard.errors import Conflict, InvalidRequest, StorageFailed
from tiltyard.events.schema import LeaderboardPublished
from tiltyard.rating.admission import Admitted, VoteLike, Window, admit
from tiltyard.rating.leaderboard import Evidence, Leaderboard, LeaderboardRow, make_leaderboard
from tiltyard.rating.rated_models import IdentityLike, rated_models
from tiltyard.web.charts import SIZES, THEMES, bars_of, content_key, interval_chart
from tiltyard.web.leaderboard_query import Format, LeaderboardQuery
from tiltyard.web.leaderboard_view import CHART_ROWS, view_of
from tiltyard.web.templating import render

PAGE: Final = "/leaderboard"
API: Final = "/api/leaderboard"
CHART: Final = "/leaderboard/chart.svg"

Admission = Callable[[Window, int], Admitted]
"""Adds up the votes that count in a window that ends at a moment in microseconds."""
Publish = Callable[[LeaderboardPublished], Awaitable[object]]


def leaderboard_routes(
    *,
    votes: Callable[[], Sequence[VoteLike]],
    identities: Callable[[], Sequence[IdentityLike]],
    minimum_votes: int,
    publish: Publish | None = None,
    clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    admission: Admission | None = None,
) -> list[Route]:
    """Make the routes of the leaderboard.

    `admission` says which votes count, in place of `votes`; without it every vote counts.

    `votes` and `identities` (oldest first) are called in a worker thread for each request, so they may block;
    `EventLog.votes` and `EventLog.identities` will do. `publish` appends an event the first time that a leaderboard
    with the default settings is shown. `clock_us` ends the time windows: microseconds since 1970, UTC.
    """
    admitting: Admission = admission or (lambda window, now_us: admit(votes(), window=window, now_us=now_us))
    pages = LeaderboardPages(admitting, identities, minimum_votes, publish, clock_us)
    return [
        Route(PAGE, pages.page),
        Route(API, pages.api),
        Route(CHART, pages.chart),
    ]


@dataclass
class Shown:
    """One answer: what was asked, what the votes gave, and when the last of them was cast."""

    query: LeaderboardQuery
    leaderboard: Leaderboard
    last_time_us: int


class LeaderboardPages:
    """The endpoints. Each request fits the votes anew: milliseconds, and always what the log says now."""

    def __init__(
        self,
        admission: Admission,
        identities: Callable[[], Sequence[IdentityLike]],
        minimum_votes: int,
        publish: Publish | None,
        clock_us: Callable[[], int],
    ) -> None:
        self._admission = admission
        self._identities = identities
        self._default = LeaderboardQuery.default(minimum_votes)
        self._publish = publish
        self._clock_us = clock_us
        self._published: str | None = None

    async def page(self, request: Request) -> Response:
        """Answer `GET /leaderboard` in the form that the reader prefers."""
        query = self._parse(request)
        shown = await self._show(query)
        return await self._answer(shown, query.format or preferred_format(request.headers.get("accept", "")))

    async def api(self, request: Request) -> Response:
        """Answer `GET /api/leaderboard`."""
        query = self._parse(request)
        if query.format == "html":
            raise InvalidRequest(
                f"format is 'html'; the page is at {PAGE}, here are json and csv.", param="format"
            )
        return await self._answer(await self._show(query), query.format or "json")

    async def chart(self, request: Request) -> Response:
        """Answer `GET /leaderboard/chart.svg`: the same parameters, and `theme`, `size`, `top`, `v`."""
        query = self._parse(request, "theme", "size", "top", "v")
        theme = request.query_params.get("theme", THEMES[0])
        size = request.query_params.get("size", SIZES[0])
        top = request.query_params.get("top", str(CHART_ROWS))
        if theme not in THEMES:
            raise InvalidRequest(f"theme is {theme[:40]!r}; it may be {' or '.join(THEMES)}.", param="theme")
        if size not in SIZES:
            raise InvalidRequest(f"size is {size[:40]!r}; it may be {' or '.join(SIZES)}.", param="size")
        if top != "all" and not (top.isascii() and top.isdigit()):
            raise InvalidRequest(f"top is {top[:40]!r}; it may be a number or 'all'.", param="top")
        shown = await self._show(query)
        bars = bars_of(shown.leaderboard.rows)
        current = content_key(bars)
        svg = await run_in_threadpool(
            interval_chart, bars if top == "all" else bars[: int(top[:6])], theme, size
        )
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

    def _parse(self, request: Request, *also: str) -> LeaderboardQuery:
        return LeaderboardQuery.parse(
            request.query_params, minimum_votes=self._default.minimum_votes, also=also
        )

    async def _show(self, query: LeaderboardQuery) -> Shown:
        return await run_in_threadpool(self._compute, query)

    def _compute(self, query: LeaderboardQuery) -> Shown:
        admitted = self._admission(Window.parse(query.window), self._clock_us())
        evidence = Evidence(
            ruleset=admitted.ruleset,
            window=query.window,
            first_sequence=admitted.first_sequence,
            last_sequence=admitted.last_sequence,
            excluded=admitted.excluded,
        )
        leaderboard = make_leaderboard(
            admitted.counts,
            models=rated_models(self._identities()),
            evidence=evidence,
            minimum_votes=query.minimum_votes,
            both_bad=query.both_bad,
        )
        return Shown(query, leaderboard, admitted.last_time_us)

    async def _answer(self, shown: Shown, form: Format) -> Response:
        unpublished = await self._publish_once(shown)
        headers = {"vary": "accept", "cache-control": "no-store"}
        if form == "json":
            body = orjson.dumps(shown.leaderboard.to_json())
            return Response(body, media_type="application/json", headers=headers)
        if form == "csv":
            headers["content-disposition"] = 'attachment; filename="leaderboard.csv"'
            return Response(to_csv(shown.leaderboard.rows), media_type="text/csv", headers=headers)
        view = view_of(shown.leaderboard, shown.query, self._default, last_time_us=shown.last_time_us)
        return render("leaderboard.html", headers=headers, unpublished=unpublished, view=view)

    async def _publish_once(self, shown: Shown) -> str | None:
        """Append the event of a new leaderboard; return why not, if the log refused."""
        board = shown.leaderboard
        is_default = (
            shown.query.window == self._default.window
            and shown.query.both_bad == self._default.both_bad
            and shown.query.minimum_votes == self._default.minimum_votes
        )
        if self._publish is None or not is_default or not board.votes or self._published == board.digest:
            return None
        event = LeaderboardPublished(
            digest=board.digest,
            method=board.ratings.method,
            ruleset=board.evidence.ruleset,
            votes=board.votes,
            first_sequence=board.evidence.first_sequence,
            last_sequence=board.evidence.last_sequence,
        )
        try:
            await self._publish(event)
        except Conflict:
            pass  # another process, or this one before a restart, published the same content
        except StorageFailed as error:
            return error.message
        self._published = board.digest
        return None


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

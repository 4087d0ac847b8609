"""Both sensors in one row, over HTTP: what people preferred, how it ran, and what judges, fixed sets and experts say."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tiltyard.arena.measurements import Measurements
from tiltyard.identity.canonical import Json
from tiltyard.rating.leaderboard import Leaderboard
from tiltyard.rating.sensors import SensorRow, sensor_rows
from tiltyard.rating.sources import Source, gathered
from tiltyard.web.failures import json_response
from tiltyard.web.languages import gettext
from tiltyard.web.templating import render

PAGE: Final = "/leaderboard/sensors"
API: Final = "/api/leaderboard/sensors"


def headings() -> dict[str, str]:
    """What the kinds of other sources are called on the page."""
    return {"judge": gettext("Judges"), "fixed_set": gettext("Fixed sets"), "expert": gettext("Experts")}


def sensor_routes(
    *,
    board: Callable[[int], Leaderboard],
    measurements: Measurements,
    sources: Sequence[Source] = (),
    clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> list[Route]:
    """Make the page and the API.

    `board` computes the leaderboard of a moment; `measurements` hold figures back, for these pages are seen by voters. All are called
    in a worker thread.
    """

    def look() -> tuple[Leaderboard, list[SensorRow]]:
        now_us = clock_us()
        found = board(now_us)
        return found, sensor_rows(found, measurements.measured(now_us), gathered(sources))

    async def page(_request: Request) -> Response:
        found, rows = await run_in_threadpool(look)
        return render(
            "sensors.html",
            board=found,
            ratings={row.model.key: row for row in found.rows},
            rows=rows,
            headings=headings(),
            names={row.behaviour: row.name for row in rows},
            disagreements=list(dict.fromkeys(one for row in rows for one in row.disagrees)),
        )

    async def api(_request: Request) -> Response:
        return json_response(to_json(*await run_in_threadpool(look)))

    return [Route(PAGE, page, methods=["GET"]), Route(API, api, methods=["GET"])]


def to_json(board: Leaderboard, rows: Sequence[SensorRow]) -> dict[str, Json]:
    """Write the rows beside the ratings that they belong to."""
    ratings = {row.model.key: row for row in board.rows}
    shown: list[Json] = []
    for row in rows:
        rated = ratings[row.behaviour]
        shown.append(
            {
                "rank": rated.rank,
                "rating": rated.rating,
                "lower": rated.lower,
                "upper": rated.upper,
                "votes": rated.votes,
                **row.to_json(),
            }
        )
    return {"leaderboard": board.digest, "method": board.ratings.method, "rows": shown}

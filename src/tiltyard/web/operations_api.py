"""How the operation stands, as JSON: objectives and costs, for whoever may look after the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tiltyard.costs.look import Costs
from tiltyard.costs.stretch import since_us
from tiltyard.errors import InvalidRequest
from tiltyard.objectives.look import DAY_US, Objectives
from tiltyard.web.failures import json_response
from tiltyard.web.release_operators import COOKIE, Operators

MOST_DAYS: Final = 31
"""How far back `GET /api/cost` looks: all of it is read and kept in the serving process."""


def operations_routes(
    objectives: Objectives,
    costs: Costs,
    operators: Operators,
    *,
    clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> list[Route]:
    """Make the routes; `operators` says who may look, and everybody may where the API needs no key."""

    async def allow(request: Request) -> None:
        if not await operators.is_open():
            await operators.who(request.headers, request.cookies.get(COOKIE))

    async def stands(request: Request) -> Response:
        await allow(request)
        return json_response((await run_in_threadpool(objectives.look, clock_us())).to_json())

    async def cost(request: Request) -> Response:
        await allow(request)
        if unknown := sorted(set(request.query_params) - {"since"}):
            raise InvalidRequest(
                f"there is no parameter {unknown[0][:40]!r} here; known: since", param=unknown[0][:40]
            )
        now_us = clock_us()
        began_us = since_us(request.query_params.get("since", "24h"), now_us)
        if now_us - began_us > MOST_DAYS * DAY_US:
            raise InvalidRequest(
                f"since reaches back more than {MOST_DAYS} days; for longer ask `tiltyard cost`, which holds up nobody",
                param="since",
            )
        report = await run_in_threadpool(lambda: costs.look(since_us=began_us, until_us=now_us))
        return json_response(report.to_json())

    return [
        Route("/api/objectives", stands, methods=["GET"]),
        Route("/api/cost", cost, methods=["GET"]),
    ]

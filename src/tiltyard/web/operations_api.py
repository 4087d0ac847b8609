"""How the operation stands, as JSON: objectives and costs, for whoever may look after the server."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tiltyard.objectives.look import Objectives
from tiltyard.web.failures import json_response
from tiltyard.web.release_operators import COOKIE, Operators


def operations_routes(
    objectives: Objectives,
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

    return [Route("/api/objectives", stands, methods=["GET"])]

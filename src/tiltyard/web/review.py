"""The review queue for programs, behind a key: who is suspected, and what somebody decided."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.arena.review import SOURCE, cases, decision
from tiltyard.errors import InvalidRequest
from tiltyard.web.failures import json_response
from tiltyard.web.visitor import Body, read_json

API: Final = "/api/arena/review"

Authorize = Callable[[Mapping[str, str]], Awaitable[str]]
"""From a request's headers to who is asking; raises a `TiltyardError` for whoever may not review."""


class DecisionBody(Body):
    """`POST /api/arena/review`."""

    name: str
    decision: str
    reason: str


def review_routes(recorded: RecordedVotes, authorize: Authorize) -> list[Route]:
    """Make the routes: `GET` lists the cases, `POST` appends a decision and answers when it is durable."""
    one_at_a_time = asyncio.Lock()

    async def listed(request: Request) -> Response:
        await authorize(request.headers)
        waiting = request.query_params.get("waiting", "false")
        if waiting not in ("true", "false"):
            raise InvalidRequest(f"waiting is {waiting[:40]!r}; it must be true or false.", param="waiting")
        found = await run_in_threadpool(cases, recorded, waiting_only=waiting == "true")
        return json_response({"ruleset": recorded.ruleset.label, "cases": [one.to_json() for one in found]})

    async def decided(request: Request) -> Response:
        by = await authorize(request.headers)
        body = await read_json(request, DecisionBody)
        async with one_at_a_time:  # a decision is checked against those before it
            made = await run_in_threadpool(
                lambda: decision(recorded, body.name, body.decision, reason=body.reason, by=by)
            )
            stored = await recorded.log.append(made, subject=made.name, source=SOURCE)
        return json_response({"receipt": stored.id, **made.model_dump(mode="json")}, status=201)

    return [Route(API, listed, methods=["GET"]), Route(API, decided, methods=["POST"])]

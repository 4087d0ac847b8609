"""`POST /v1/completions`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tiltyard.gateway.answers import answer, openai_words
from tiltyard.gateway.door import Door
from tiltyard.gateway.openapi import request_schema
from tiltyard.gateway.taking import take
from tiltyard.wire.openai import CompletionRequest, completion_request


def completion_routes(door: Door) -> APIRouter:
    """The route for plain completions."""
    routes = APIRouter(tags=["generate"])

    @routes.post(
        "/v1/completions",
        summary="Continue a prompt",
        openapi_extra=request_schema(CompletionRequest),
        response_class=Response,
    )
    async def completions(request: Request) -> Response:
        """Continue a prompt without a chat template, whole or as a stream of server-sent events."""
        taken = await take(door, request, completion_request)
        return await answer(door, taken.asked, request, taken, openai_words(taken.asked))

    return routes

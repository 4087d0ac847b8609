"""`POST /v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tiltyard.gateway.answers import answer, openai_words
from tiltyard.gateway.door import Door
from tiltyard.gateway.openapi import request_schema
from tiltyard.gateway.taking import take
from tiltyard.wire.openai import ChatCompletionRequest, chat_request


def chat_routes(door: Door) -> APIRouter:
    """The route for chat completions."""
    routes = APIRouter(tags=["generate"])

    @routes.post(
        "/v1/chat/completions",
        summary="Answer a conversation",
        openapi_extra=request_schema(ChatCompletionRequest),
        response_class=Response,
    )
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation, whole or as a stream of server-sent events."""
        taken = await take(door, request, chat_request)
        return await answer(door, taken.asked, request, taken, openai_words(taken.asked))

    return routes

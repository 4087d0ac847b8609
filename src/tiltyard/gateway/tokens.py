"""`POST /tokenize`, `/detokenize`, `/render`: what a model reads, without an answer. Nothing is recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tiltyard.gateway.asking import ask
from tiltyard.gateway.body import while_connected
from tiltyard.gateway.door import Door
from tiltyard.gateway.errors import CLIENT_CLOSED
from tiltyard.gateway.openapi import request_schema
from tiltyard.gateway.taking import take
from tiltyard.wire.openai import ChatCompletionRequest, chat_request
from tiltyard.wire.phrasing import Chunk
from tiltyard.wire.tokens import DetokenizeRequest, TokenizeRequest, detokenize_request, tokenize_request


def token_routes(door: Door) -> APIRouter:
    """The routes for tokens."""
    routes = APIRouter(tags=["tokens"])

    @routes.post(
        "/tokenize",
        summary="Text or conversation to tokens",
        openapi_extra=request_schema(TokenizeRequest),
        response_class=Response,
    )
    async def tokenize(request: Request) -> Response:
        """The token ids of a text or a conversation, in vLLM's shape."""
        asked, headers, _ = await take(door, request, tokenize_request)
        if (chat := asked.chat) is not None:
            chat_request(chat)
        body: Chunk = asked.model_dump(mode="json", exclude_none=True)
        return await _answered(request, ask(door, "/tokenize", body), headers)

    @routes.post(
        "/detokenize",
        summary="Tokens to text",
        openapi_extra=request_schema(DetokenizeRequest),
        response_class=Response,
    )
    async def detokenize(request: Request) -> Response:
        """The text of token ids, in vLLM's shape."""
        asked, headers, _ = await take(door, request, detokenize_request)
        return await _answered(request, ask(door, "/detokenize", asked.model_dump(mode="json")), headers)

    @routes.post(
        "/render",
        summary="What a chat request becomes",
        openapi_extra=request_schema(ChatCompletionRequest),
        response_class=Response,
    )
    async def render(request: Request) -> Response:
        """The exact text and token ids that a chat request becomes; nothing is generated."""
        asked, headers, _ = await take(door, request, chat_request)
        return await _answered(request, ask(door, "/render", rendering(asked)), headers)

    return routes


def rendering(asked: ChatCompletionRequest) -> Chunk:
    """The body with which a worker is asked to render a chat request."""
    body = asked.to_worker(identity=asked.model, seed=asked.seed or 0)
    return {**body, "stream": False, "stream_options": None}


async def _answered(request: Request, asking: Awaitable[Chunk], headers: Mapping[str, str]) -> Response:
    try:
        answer = await while_connected(asking, request.receive)
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED)
    return Response(orjson.dumps(answer), headers=headers, media_type="application/json")

"""`POST /tokenize`, `/detokenize`, `/render`: what a model reads, without an answer. Nothing is recorded."""

from __future__ import annotations

from collections.abc import Awaitable

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tiltyard.gateway.asking import ask
from tiltyard.gateway.body import read_body, while_connected
from tiltyard.gateway.door import Door
from tiltyard.gateway.errors import CLIENT_CLOSED
from tiltyard.gateway.openapi import request_schema
from tiltyard.wire.openai import ChatCompletionRequest, chat_request
from tiltyard.wire.phrasing import Chunk
from tiltyard.wire.problems import parse_object
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
        asked = tokenize_request(parse_object(await read_body(request, door.max_body_bytes)))
        if (chat := asked.chat) is not None:
            chat_request(chat)
        body: Chunk = asked.model_dump(mode="json", exclude_none=True)
        return await _answered(request, ask(door, "/tokenize", body))

    @routes.post(
        "/detokenize",
        summary="Tokens to text",
        openapi_extra=request_schema(DetokenizeRequest),
        response_class=Response,
    )
    async def detokenize(request: Request) -> Response:
        """The text of token ids, in vLLM's shape."""
        asked = detokenize_request(parse_object(await read_body(request, door.max_body_bytes)))
        return await _answered(request, ask(door, "/detokenize", asked.model_dump(mode="json")))

    @routes.post(
        "/render",
        summary="What a chat request becomes",
        openapi_extra=request_schema(ChatCompletionRequest),
        response_class=Response,
    )
    async def render(request: Request) -> Response:
        """The exact text and token ids that a chat request becomes; nothing is generated."""
        asked = chat_request(parse_object(await read_body(request, door.max_body_bytes)))
        return await _answered(request, ask(door, "/render", rendering(asked)))

    return routes


def rendering(asked: ChatCompletionRequest) -> Chunk:
    """The body with which a worker is asked to render a chat request."""
    body = asked.to_worker(identity=asked.model, seed=asked.seed or 0)
    return {**body, "stream": False, "stream_options": None}


async def _answered(request: Request, asking: Awaitable[Chunk]) -> Response:
    try:
        answer = await while_connected(asking, request.receive)
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED)
    return Response(orjson.dumps(answer), media_type="application/json")

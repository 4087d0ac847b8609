"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's door, on the one way of a chat request."""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tiltyard.errors import TiltyardError
from tiltyard.gateway.answers import Spoken, answer
from tiltyard.gateway.asking import ask
from tiltyard.gateway.body import while_connected
from tiltyard.gateway.door import Door
from tiltyard.gateway.errors import CLIENT_CLOSED
from tiltyard.gateway.openapi import request_schema
from tiltyard.gateway.taking import take
from tiltyard.gateway.tokens import rendering
from tiltyard.wire.messages import (
    CountTokensRequest,
    MessagesRequest,
    count_request,
    messages_request,
    to_chat,
)
from tiltyard.wire.messages_answer import MessagesPhrasing
from tiltyard.wire.openai import chat_request


def message_routes(door: Door) -> APIRouter:
    """The routes for messages."""
    routes = APIRouter(tags=["generate"])

    @routes.post(
        "/v1/messages",
        summary="Answer in Anthropic's shape",
        openapi_extra=request_schema(MessagesRequest),
        response_class=Response,
    )
    async def messages(request: Request) -> Response:
        """Answer in the shape of Anthropic's Messages API, whole or as a stream of its events."""
        taken = await take(door, request, messages_request)
        fields = to_chat(taken.asked)
        phrasing = MessagesPhrasing(fields.places)
        try:
            chat = chat_request(fields.body)
        except TiltyardError as error:
            phrasing.rename(error)
            raise
        return await answer(door, chat, request, taken, Spoken("messages", phrasing))

    @routes.post(
        "/v1/messages/count_tokens",
        summary="Count a message's tokens",
        openapi_extra=request_schema(CountTokensRequest),
        response_class=Response,
    )
    async def count_tokens(request: Request) -> Response:
        """How many tokens the prompt of such a message would have."""
        asked, headers, _ = await take(door, request, count_request)
        fields = to_chat(asked)
        try:
            chat = chat_request(fields.body)
            rendered = await while_connected(ask(door, "/render", rendering(chat)), request.receive)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED)
        except TiltyardError as error:
            MessagesPhrasing(fields.places).rename(error)
            raise
        counted = orjson.dumps({"input_tokens": rendered["count"]})
        return Response(counted, headers=headers, media_type="application/json")

    return routes

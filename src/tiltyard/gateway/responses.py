"""`POST /v1/responses`: OpenAI's newer door, on the one way of a chat request; earlier responses come from the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tiltyard.errors import NotFound, TiltyardError
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.answers import Spoken, answer
from tiltyard.gateway.caller import current_caller
from tiltyard.gateway.door import Door
from tiltyard.gateway.openapi import request_schema
from tiltyard.gateway.taking import take
from tiltyard.identity.canonical import Json
from tiltyard.wire.openai import chat_request
from tiltyard.wire.responses import Earlier, ResponsesRequest, echoed, responses_request, to_chat
from tiltyard.wire.responses_answer import ResponsesPhrasing, generation_id

KEPT = "response"
"""The member of a vaulted prompt that says what the response told of its request."""


def response_routes(door: Door) -> APIRouter:
    """The route for responses."""
    routes = APIRouter(tags=["generate"])

    @routes.post(
        "/v1/responses",
        summary="Answer, and remember",
        openapi_extra=request_schema(ResponsesRequest),
        response_class=Response,
    )
    async def responses(request: Request) -> Response:
        """Answer in the shape of OpenAI's Responses API, whole or as a stream of its events."""
        taken = await take(door, request, responses_request)
        asked = taken.asked
        earlier = Earlier()
        if asked.previous_response_id is not None:
            earlier = await asyncio.to_thread(
                conversation, door.log, asked.previous_response_id, tenant=current_caller().tenant
            )
        fields = to_chat(asked, earlier)
        phrasing = ResponsesPhrasing(echoed(asked), fields.places)
        try:
            chat = chat_request(fields.body)
        except TiltyardError as error:
            phrasing.rename(error)
            raise
        kept: Mapping[str, Json] = {KEPT: echoed(asked)}
        return await answer(door, chat, request, taken, Spoken("responses", phrasing, kept))

    return routes


def conversation(log: EventLog, response: str, *, tenant: str) -> Earlier:
    """The messages up to a response and its answer, without its instructions.

    Raises `NotFound` for a response that is not the tenant's, or that was not to be stored, and `ContentMissing`
    when its words were erased. Blocks.
    """
    event, words = stored(log, response, tenant=tenant)
    messages = list(cast(list[Mapping[str, Json]], words["messages"]))
    if cast(Mapping[str, Json], words[KEPT])["instructions"] is not None:
        messages = messages[1:]  # the system message in front, which is not carried over
    if event.response is not None:
        choice = orjson.loads(log.read_content(event.response))["choices"][0]
        messages.append(choice.get("message") or {"role": "assistant", "content": choice["text"]})
    return Earlier(messages)


def stored(log: EventLog, response: str, *, tenant: str) -> tuple[GenerationFinished, Mapping[str, Json]]:
    """The event of a response and the prompt that it kept; raises as `conversation` does."""
    found = log.find(GenerationFinished, subject=generation_id(response))
    if found is not None and found.tenant == tenant and isinstance(found.data, GenerationFinished):
        event = found.data
        if event.endpoint == "responses" and event.prompt is not None:
            words = orjson.loads(log.read_content(event.prompt))
            if words[KEPT]["store"]:
                return event, words
    raise NotFound(
        f"response {response!r} is not stored here", param="previous_response_id", code="response_not_found"
    )

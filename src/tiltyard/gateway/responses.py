"""`POST /v1/responses`: OpenAI's newer door, on the one way of a chat request; earlier responses come from the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tiltyard.errors import InvalidRequest, NotFound, TiltyardError, UpstreamFailed
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.answers import Spoken, answer
from tiltyard.gateway.asking import ask
from tiltyard.gateway.body import while_connected
from tiltyard.gateway.caller import current_caller
from tiltyard.gateway.door import Door
from tiltyard.gateway.errors import CLIENT_CLOSED
from tiltyard.gateway.openapi import request_schema
from tiltyard.gateway.retelling import given_again
from tiltyard.gateway.screening import RESPONSE
from tiltyard.gateway.taking import take
from tiltyard.gateway.tokens import rendering
from tiltyard.identity.canonical import Json
from tiltyard.wire.openai import ChatCompletionRequest, chat_request
from tiltyard.wire.responses import ResponsesRequest, responses_request
from tiltyard.wire.responses_answer import ResponsesPhrasing, error_of, generation_id
from tiltyard.wire.responses_chat import Earlier, echoed, to_chat


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
        chat, phrasing = await read(taken.asked)
        kept: Mapping[str, Json] = {RESPONSE: echo_text(taken.asked)}
        return await answer(door, chat, request, taken, Spoken("responses", phrasing, kept))

    @routes.get("/v1/responses/{response}", summary="Show a stored response", response_class=Response)
    async def retrieve(response: str) -> Response:
        """A response that was stored, from the event log."""
        again = await asyncio.to_thread(told_again, door.log, response, tenant=current_caller().tenant)
        return Response(orjson.dumps(again), media_type="application/json")

    @routes.post(
        "/v1/responses/input_tokens",
        summary="Count a response's tokens",
        openapi_extra=request_schema(ResponsesRequest),
        response_class=Response,
    )
    async def input_tokens(request: Request) -> Response:
        """How many tokens the prompt of such a response would have."""
        taken = await take(door, request, responses_request)
        chat, phrasing = await read(taken.asked)
        try:
            rendered = await while_connected(ask(door, "/render", rendering(chat)), request.receive)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED)
        except TiltyardError as error:
            phrasing.rename(error)
            raise
        counted = {"object": "response.input_tokens", "input_tokens": rendered["count"]}
        return Response(orjson.dumps(counted), headers=taken.headers, media_type="application/json")

    async def read(asked: ResponsesRequest) -> tuple[ChatCompletionRequest, ResponsesPhrasing]:
        """The chat request that is meant, with what it goes on from."""
        earlier = Earlier()
        if asked.previous_response_id is not None:
            earlier = await asyncio.to_thread(
                conversation, door.log, asked.previous_response_id, tenant=current_caller().tenant
            )
        fields = to_chat(asked, earlier)
        phrasing = ResponsesPhrasing(echoed(asked), fields.places)
        try:
            return chat_request(fields.body), phrasing
        except TiltyardError as error:
            phrasing.rename(error)
            raise

    return routes


def conversation(log: EventLog, response: str, *, tenant: str) -> Earlier:
    """The messages up to a response and its answer, without its instructions.

    Raises `NotFound` for a response that is not the tenant's, or that was not to be stored, and `ContentMissing`
    when its words were erased. Blocks.
    """
    event, words = stored(log, response, tenant=tenant)
    messages = list(cast(list[Mapping[str, Json]], words["messages"]))
    if echo_in(words)["instructions"] is not None:
        messages = messages[1:]  # the system message in front, which is not carried over
    if event.response is not None:
        choice = orjson.loads(log.own_words("gateway/responses").read(event.response))["choices"][0]
        messages.append(choice.get("message") or {"role": "assistant", "content": choice["text"]})
    return Earlier(messages)


def told_again(log: EventLog, response: str, *, tenant: str) -> Mapping[str, Json]:
    """A stored response, as it was given; raises as `conversation` does. Blocks."""
    event, words = stored(log, response, tenant=tenant, param="response")
    found = log.find(GenerationFinished, subject=event.generation)
    ended_s = 0 if found is None else found.time_us // 1_000_000
    given = given_again(log, event, created=int(ended_s - event.total_ms / 1000), chat=True)
    phrasing = ResponsesPhrasing(echo_in(words), (), lambda: ended_s)
    again = phrasing.whole(given.answer, given.end)
    if event.error is None:
        return again
    error = UpstreamFailed(f"it failed with {event.error}", code=event.error)
    return {**again, "status": "failed", "completed_at": None, "error": error_of(error)}


def stored(
    log: EventLog, response: str, *, tenant: str, param: str = "previous_response_id"
) -> tuple[GenerationFinished, Mapping[str, Json]]:
    """The event of a response and the prompt that it kept; raises as `conversation` does."""
    found = log.find(GenerationFinished, subject=generation_id(response))
    if found is not None and found.tenant == tenant and isinstance(found.data, GenerationFinished):
        event = found.data
        if event.endpoint == "responses" and event.prompt is not None:
            words = orjson.loads(log.own_words("gateway/responses").read(event.prompt))
            if echo_in(words)["store"]:
                return event, words
    raise NotFound(f"response {response[:80]!r} is not stored here", param=param, code="response_not_found")


def echo_text(asked: ResponsesRequest) -> str:
    """What the vault keeps of what a response says of its request: text, since schemas may hold any number.

    Raises `InvalidRequest` for what is nested deeper than an answer around it could be written.
    """
    try:
        orjson.dumps([[[[echoed(asked)]]]])
        return orjson.dumps(echoed(asked)).decode()
    except TypeError as error:
        raise InvalidRequest(f"tools or text.format cannot be given back: {error}", param="tools") from error


def echo_in(words: Mapping[str, Json]) -> Mapping[str, Json]:
    """Read it again."""
    return cast(Mapping[str, Json], orjson.loads(cast(str, words[RESPONSE])))

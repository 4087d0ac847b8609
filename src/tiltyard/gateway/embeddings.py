"""`POST /v1/embeddings`."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tiltyard.errors import Overloaded, Unavailable, UpstreamFailed
from tiltyard.events.schema import TextsEmbedded
from tiltyard.gateway.addressing import addressed, trouble
from tiltyard.gateway.attempt import WorkerLost
from tiltyard.gateway.body import while_connected
from tiltyard.gateway.caller import current_caller
from tiltyard.gateway.charge import Charge
from tiltyard.gateway.door import Door
from tiltyard.gateway.errors import CLIENT_CLOSED
from tiltyard.gateway.line import HopFailed
from tiltyard.gateway.openapi import request_schema
from tiltyard.gateway.screening import embedded as embedded_texts
from tiltyard.gateway.taking import take
from tiltyard.router.ledger import Ask
from tiltyard.router.router import Route
from tiltyard.wire.embeddings import EmbeddingsRequest, embeddings_request
from tiltyard.wire.terms import ServiceTerms
from tiltyard.wire.worker import HEADER_IDENTITY, HEADER_TENANT

CHARACTERS_A_TOKEN = 4
SOURCE = "tiltyard/gateway"
PATH = "/v1/embeddings"


def embedding_routes(door: Door) -> APIRouter:
    """The route for embeddings."""
    routes = APIRouter(tags=["embed"])

    @routes.post(
        "/v1/embeddings",
        summary="Turn texts into vectors",
        openapi_extra=request_schema(EmbeddingsRequest),
        response_class=Response,
    )
    async def embeddings(request: Request) -> Response:
        """One vector of length 1 for each text; the event has their number and tokens, and no words."""
        began = time.perf_counter()
        terms = ServiceTerms.read(request.headers)
        asked, headers, _ = await take(door, request, embeddings_request)
        try:
            response = await while_connected(_charged(door, asked, terms, began), request.receive)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED)
        response.headers.update(headers)
        return response

    return routes


async def _charged(door: Door, asked: EmbeddingsRequest, terms: ServiceTerms, began: float) -> Response:
    """Hold what the texts may cost while a worker is asked, and bill what it counted."""
    caller = current_caller()
    caller.terms.check_model(asked.model)
    if caller.terms.personal_data != "keep":
        asked = await asyncio.to_thread(embedded_texts, asked, caller.terms.personal_data, door.screens)
    terms = caller.terms.with_class(terms)
    route = door.router.choose(door.router.resolve(asked.model))
    limit = route.identity.max_context_tokens
    # A token has at least one byte, and two more may stand around a text.
    most = sum(min(limit, 2 + len(t.encode() if isinstance(t, str) else t)) for t in asked.input)
    ask = Ask(caller.terms.weight(_estimated_tokens(asked), 0), caller.terms.cost_nano(most, 0))
    charge = Charge(door.ledger, door.metrics, caller, ask)
    await charge.reserve()
    recording: asyncio.Future[None] | None = None
    try:
        embedded = await _from_a_worker(door, asked, terms, began, route)
        recording = asyncio.ensure_future(_record(door, charge, asked, embedded, began))
        # Shielded: a client that hangs up just now must not leave half of it behind.
        await asyncio.shield(recording)
    finally:
        if recording is None:
            await charge.settle(0, 0)
    return Response(
        embedded.body,
        headers={HEADER_IDENTITY: embedded.route.identity.behaviour},
        media_type="application/json",
    )


class Embedded(NamedTuple):
    """What a worker answered, and which."""

    body: bytes
    route: Route


async def _record(
    door: Door, charge: Charge, asked: EmbeddingsRequest, embedded: Embedded, began: float
) -> None:
    """Append the event and bill what it says."""
    identity, caller = embedded.route.identity, current_caller()
    billed = 0
    try:
        event = TextsEmbedded(
            alias=asked.model,
            identity=identity.name,
            behaviour=identity.behaviour,
            worker=embedded.route.worker.name,
            api_key=caller.key,
            texts=len(asked.input),
            prompt_tokens=orjson.loads(embedded.body)["usage"]["prompt_tokens"],
            total_ms=(time.perf_counter() - began) * 1000,
        )
        await door.log.append(event, subject=identity.name, tenant=caller.tenant, source=SOURCE)
        billed = event.prompt_tokens
    finally:
        await charge.settle(billed, 0)


async def _from_a_worker(
    door: Door, asked: EmbeddingsRequest, terms: ServiceTerms, began: float, route: Route
) -> Embedded:
    """Ask a worker, and another one if the first is gone or takes nothing more."""
    identity = route.identity.name

    def headers() -> dict[str, str]:
        elapsed_ms = (time.perf_counter() - began) * 1e3
        return {
            "content-type": "application/json",
            HEADER_TENANT: current_caller().tenant,
            **terms.headers(elapsed_ms=elapsed_ms),
        }

    try:
        return await _ask(door, asked, route, headers())
    except (WorkerLost, Unavailable, Overloaded) as error:
        name = route.worker.name
        if isinstance(error, WorkerLost):
            door.router.registry.failed(name, error.message, gone=True)
        if all(worker.name == name for worker in door.router.registry.serving(identity)):
            raise
        door.metrics.retries.inc()
        return await _ask(door, asked, door.router.choose(identity, without={name}), headers())


def _estimated_tokens(asked: EmbeddingsRequest) -> int:
    return sum(len(t) // CHARACTERS_A_TOKEN + 1 if isinstance(t, str) else len(t) for t in asked.input)


async def _ask(door: Door, asked: EmbeddingsRequest, route: Route, headers: dict[str, str]) -> Embedded:
    name, own = addressed(route, PATH)
    if route.worker.engine is None:
        own = headers
    with door.router.loads.entry(route.worker.name, _estimated_tokens(asked)):
        try:
            answer = await door.hop.post(route.url + PATH, asked.to_worker(name), own)
            try:
                body = await answer.read()
            finally:
                answer.close()
        except HopFailed as error:
            raise WorkerLost(f"worker {route.worker.name} went away in the middle of the request") from error
    if answer.status != 200:
        raise trouble(route, answer.status, answer.headers, body)
    if route.worker.engine is not None:
        body = _named(body, route)
    return Embedded(body, route)


def _named(body: bytes, route: Route) -> bytes:
    """What another engine answered, under our name of the model; raises `UpstreamFailed` where it is no such answer."""
    try:
        answer = orjson.loads(body)
        if not isinstance(answer["usage"]["prompt_tokens"], int) or not isinstance(answer["data"], list):
            raise TypeError
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise UpstreamFailed(
            f"worker {route.worker.name} answered {PATH} with something that is no embeddings",
            code="stream_unreadable",
        ) from error
    return orjson.dumps({**answer, "model": route.identity.name})

"""Puts the public door together: one file a concern, one object that they all need."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tiltyard import __version__
from tiltyard.errors import TiltyardError
from tiltyard.events.log import EventLog
from tiltyard.gateway.admin import NewKeyRequest, RotateRequest, admin_routes
from tiltyard.gateway.body import MAX_BODY_BYTES
from tiltyard.gateway.chat import chat_routes
from tiltyard.gateway.completions import completion_routes
from tiltyard.gateway.door import Door
from tiltyard.gateway.embeddings import embedding_routes
from tiltyard.gateway.errors import answer_http_exception, answer_nobody, answer_unexpected, error_response
from tiltyard.gateway.fleet import fleet_routes
from tiltyard.gateway.forgetting import forget
from tiltyard.gateway.gate import Gate, GateMiddleware
from tiltyard.gateway.guard import Guard
from tiltyard.gateway.health import health_routes
from tiltyard.gateway.hop import Hop
from tiltyard.gateway.keyring import KeyRing
from tiltyard.gateway.messages import message_routes
from tiltyard.gateway.models import model_routes
from tiltyard.gateway.openapi import describe
from tiltyard.gateway.responses import response_routes
from tiltyard.gateway.running import Running, running_routes
from tiltyard.gateway.screening import MakeScreen
from tiltyard.gateway.sessions import Sessions
from tiltyard.gateway.telling import Tellings
from tiltyard.gateway.tokens import token_routes
from tiltyard.gateway.waiting import WaitingRoom
from tiltyard.gateway.websocket import socket_routes
from tiltyard.router.ledger import Ledger, MemoryLedger
from tiltyard.router.router import Router
from tiltyard.router.tenants import TenantTerms
from tiltyard.telemetry.metrics import GatewayMetrics
from tiltyard.telemetry.process_metrics import register_process
from tiltyard.telemetry.traced_requests import TracedRequests
from tiltyard.telemetry.tracing import NO_TRACING, Tracing
from tiltyard.wire.embeddings import EmbeddingsRequest
from tiltyard.wire.leniency import UnknownFields
from tiltyard.wire.messages import CountTokensRequest, MessagesRequest
from tiltyard.wire.openai import ChatCompletionRequest, CompletionRequest
from tiltyard.wire.responses import ResponsesRequest
from tiltyard.wire.tokens import DetokenizeRequest, TokenizeRequest

SWITCH_S = 0.0005
"""How long the threads that write the log may keep a token waiting for the interpreter; Python's own is 5 ms."""


def create_gateway(
    *,
    router: Router,
    log: EventLog,
    hosts: Iterable[str] = (),
    max_body_bytes: int = MAX_BODY_BYTES,
    unknown_fields: UnknownFields = "refuse",
    tenants: Mapping[str, TenantTerms] | None = None,
    ledger: Ledger | None = None,
    require_keys: bool = False,
    house_key: str | None = None,
    collectors: Iterable[Collector] = (),
    screens: MakeScreen | None = None,
    waiting: WaitingRoom | None = None,
    tracing: Tracing = NO_TRACING,
) -> FastAPI:
    """Make the gateway; `hosts` are the names it is served under beside the loopback ones (`*`: any).

    The caller keeps the registry true (a launcher or `Registry.watch`) and closes the log after the app.
    `tenants` are the terms by name, `ledger` (this process's own unless given) keeps their accounts; with
    `require_keys` a key is needed even before the first one is made. `house_key` lets this process's own
    arena in. `screens` finds personal data where a tenant's terms want it screened. `collectors` are further metrics of this process, shown on `/metrics` too. `waiting` is where requests wait for workers that are still to come. `tracing` is where spans go.
    `app.state.answering` holds the answers under way on WebSockets, which the caller's server may wait for.
    """
    metrics = GatewayMetrics()
    register_process(metrics.registry, "gateway")
    for collector in collectors:
        metrics.registry.register(collector)
    router.splits.look(log)  # before the first request, not a moment after
    gate = Gate(KeyRing(log), tenants or {}, require_keys=require_keys, house_key=house_key)
    door = Door(
        router=router,
        log=log,
        hop=Hop(),
        gate=gate,
        ledger=ledger or MemoryLedger(),
        metrics=metrics,
        max_body_bytes=max_body_bytes,
        unknown_fields=unknown_fields,
        running=Running(),
        sessions=Sessions(),
        tellings=Tellings(),
        answering=set(),
        screens=screens,
        waiting=waiting or WaitingRoom(router.registry),
        tracing=tracing,
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        watching = asyncio.create_task(router.splits.watch(log))
        router.registry.after_asking.append(door.under_way.look)
        yield
        router.registry.after_asking.remove(door.under_way.look)
        sys.setswitchinterval(before)
        watching.cancel()
        await door.shadows.aclose()
        await door.tellings.aclose()
        await door.hop.aclose()
        await gate.keys.aclose()
        await door.ledger.aclose()

    app = FastAPI(
        title="tiltyard",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.forget = partial(forget, door)
    app.state.answering = door.answering
    app.state.tellings = door.tellings
    app.state.splits = router.splits
    app.add_middleware(GateMiddleware, gate=gate, count_error=metrics.count_error)
    app.add_middleware(Guard, hosts=tuple(hosts))
    if tracing.recording:
        app.add_middleware(TracedRequests, tracing=tracing)

    async def answer_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, TiltyardError):
            raise error
        door.metrics.count_error(error.code)
        return error_response(error, path=request.url.path)

    app.add_exception_handler(TiltyardError, answer_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_exception_handler(ClientDisconnect, answer_nobody)
    app.add_exception_handler(Exception, answer_unexpected)
    for routes in (
        chat_routes,
        completion_routes,
        response_routes,
        message_routes,
        embedding_routes,
        token_routes,
        running_routes,
        model_routes,
        health_routes,
        fleet_routes,
        socket_routes,
        admin_routes,
    ):
        app.include_router(routes(door))
    models = (
        ChatCompletionRequest,
        CompletionRequest,
        ResponsesRequest,
        MessagesRequest,
        CountTokensRequest,
        EmbeddingsRequest,
        TokenizeRequest,
        DetokenizeRequest,
        NewKeyRequest,
        RotateRequest,
    )
    describe(app, models)
    return app

"""The worker's doors: OpenAI's two endpoints, and what the fleet asks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from uuid import uuid4

import orjson
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tiltyard.errors import InvalidRequest, TiltyardError, Unavailable, to_http
from tiltyard.telemetry.trace_context import CURRENT, trace_of
from tiltyard.telemetry.traced_requests import TracedRequests
from tiltyard.telemetry.tracing import NO_TRACING, Tracing
from tiltyard.wire.embeddings import parse_embeddings_request
from tiltyard.wire.hosts import host_name
from tiltyard.wire.openai import (
    ChatCompletionRequest,
    CompletionRequest,
    parse_chat_request,
    parse_completion_request,
)
from tiltyard.wire.terms import ServiceTerms
from tiltyard.wire.tools import ToolUse
from tiltyard.wire.worker import (
    HEADER_GENERATION,
    HEADER_IDENTITY,
    HEADER_TENANT,
    WorkerStatus,
)
from tiltyard.worker.answer import AnswerPlan, Terms
from tiltyard.worker.answer_response import AnswerResponse, Told
from tiltyard.worker.embeddings import embeddings_json, engine_requests, while_connected
from tiltyard.worker.frames import ChatFraming, CompletionFraming, Framing
from tiltyard.worker.host import AnswerRequest, ModelHost, ServedIdentity
from tiltyard.worker.metrics import CONTENT_TYPE
from tiltyard.worker.reading import Reading
from tiltyard.worker.service import WorkerService

MAX_BODY_BYTES = 16 << 20
_logger = logging.getLogger(__name__)

CLIENT_CLOSED = 499
"""Nobody receives it."""


class WorkerDoors:
    """The routes of one worker; `service` is there once the model is loaded."""

    def __init__(self, worker: str, tracing: Tracing = NO_TRACING) -> None:
        self.worker = worker
        self.tracing = tracing
        self.service: WorkerService | None = None

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/embeddings", self.embeddings, methods=["POST"]),
                *Reading(lambda: self._loaded().host, _body).routes(),
                Route("/v1/models", self.models),
                Route("/worker", self.status),
                Route("/worker/drain", self.drain, methods=["POST"]),
                Route("/worker/forget", self.forget, methods=["POST"]),
                Route("/health", self.health),
                Route("/ready", self.ready),
                Route("/metrics", self.metrics),
            ],
            middleware=[
                Middleware(NoBrowsers),
                *([Middleware(TracedRequests, tracing=self.tracing)] if self.tracing.recording else ()),
            ],
            exception_handlers={TiltyardError: _error_response, ClientDisconnect: _nobody},
        )

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        service = self._loaded()
        arrived_s = time.perf_counter()
        body = parse_chat_request(await _body(request))
        terms = Terms.starting(ServiceTerms.read(request.headers, body.service_tier), arrived_s)
        identity = service.host.identity(body.model)
        service.admit(terms.priority, body.n)  # before the work of reading the prompt
        messages = [message.to_json() for message in body.messages]
        # In a thread: megabytes of text take seconds, and the other answers must go on.
        prompt = await asyncio.to_thread(
            service.host.encode_chat,
            identity,
            messages,
            tools=body.tool_use,
            truncated=body.truncate_prompt_tokens is not None,
        )
        top_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        try:
            plan = await _plan(
                service.host,
                identity,
                prompt,
                body=body,
                headers=request.headers,
                top_logprobs=top_logprobs,
                terms=terms,
                tools=body.tool_use,
            )
        except InvalidRequest as error:
            error.param = "messages" if error.param == "prompt" else error.param
            raise
        return self._answer(service, plan, ChatFraming, request, arrived_s, stream=body.stream)

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        service = self._loaded()
        arrived_s = time.perf_counter()
        terms = Terms.starting(ServiceTerms.read(request.headers), arrived_s)
        body = parse_completion_request(await _body(request))
        identity = service.host.identity(body.model)
        service.admit(terms.priority, body.n)
        prompt = await asyncio.to_thread(
            service.host.encode_text, body.prompt, truncated=body.truncate_prompt_tokens is not None
        )
        plan = await _plan(
            service.host,
            identity,
            prompt,
            body=body,
            headers=request.headers,
            top_logprobs=body.logprobs,
            terms=terms,
            echo=body.echo,
        )
        return self._answer(service, plan, CompletionFraming, request, arrived_s, stream=body.stream)

    async def embeddings(self, request: Request) -> Response:
        """`POST /v1/embeddings`."""
        service = self._loaded()
        arrived_s = time.perf_counter()
        body = parse_embeddings_request(await _body(request))
        terms = Terms.starting(ServiceTerms.read(request.headers), arrived_s)
        identity = service.host.identity(body.model)
        texts = await asyncio.to_thread(engine_requests, service.host, identity, body, terms, request.headers)
        vectors = await while_connected(asyncio.create_task(service.embed(texts)), request.receive)
        if vectors is None:
            return Response(status_code=CLIENT_CLOSED)
        tokens = sum(len(text.prompt) for text in texts)
        answer = embeddings_json(identity.name, vectors, body.encoding_format, prompt_tokens=tokens)
        headers = {HEADER_IDENTITY: identity.behaviour_digest}
        return Response(answer, headers=headers, media_type="application/json")

    async def models(self, _: Request) -> Response:
        """`GET /v1/models`."""
        entries = [
            {
                "id": identity.name,
                "object": "model",
                "created": 0,
                "owned_by": identity.declaration.organization or "tiltyard",
                "tiltyard": {
                    "behaviour": identity.behaviour_digest,
                    "deployment": identity.deployment.digest,
                },
            }
            for identity in self._loaded().host.identities.values()
        ]
        return JSONResponse({"object": "list", "data": entries})

    async def status(self, _: Request) -> Response:
        """`GET /worker`."""
        if self.service is not None:
            return _json(self.service.status())
        return _json(
            WorkerStatus(
                worker=self.worker,
                state="loading",
                identities=(),
                unfinished_tokens=0,
                running=0,
                waiting=0,
                kv_blocks_used=0,
                kv_blocks_cached=0,
                kv_blocks_total=0,
                last_step_age_ms=None,
            )
        )

    async def drain(self, _: Request) -> Response:
        """`POST /worker/drain`: finish what runs, refuse what comes, then exit."""
        service = self._loaded()
        # After this response has gone out, lest an idle worker exits before it answers.
        asyncio.get_running_loop().call_soon(service.drain)
        service.draining = True
        return _json(service.status())

    async def forget(self, request: Request) -> Response:
        """`POST /worker/forget`: drop every cached block of the tenant in `x-tiltyard-tenant`."""
        tenant = request.headers.get(HEADER_TENANT) or "default"
        return JSONResponse({"tenant": tenant, "blocks": await self._loaded().forget(tenant)})

    async def health(self, _: Request) -> Response:
        """`GET /health`: the process lives and its engine has not failed."""
        dead = self.service is not None and self.service.dead
        return JSONResponse({"status": "failed" if dead else "alive"}, 503 if dead else 200)

    async def ready(self, _: Request) -> Response:
        """`GET /ready`: would a request be served now?"""
        ready = self.service is not None and self.service.ready
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def metrics(self, _: Request) -> Response:
        """`GET /metrics`."""
        service = self._loaded()
        return Response(service.metrics.exposition(service.state), media_type=CONTENT_TYPE)

    def _loaded(self) -> WorkerService:
        if self.service is None:
            raise Unavailable(f"worker {self.worker} is still loading its model; try again shortly")
        return self.service

    def _answer(
        self,
        service: WorkerService,
        plan: AnswerPlan,
        framing: type[Framing],
        request: Request,
        arrived_s: float,
        *,
        stream: bool,
    ) -> Response:
        created_s = int(time.time())
        live = service.begin(plan, lambda answer: framing(answer, created_s), stream=stream)
        trace = trace_of(request.headers)
        CURRENT.set(trace)
        told = Told(self.tracing, trace, arrived_s)
        return AnswerResponse(service, live, told, stream=stream)


class NoBrowsers:
    """ASGI middleware: refuses what a web page can make a browser send here.

    A worker's callers are programs that know its address. A page of another site could post to any port of
    this machine (`Origin`), or reach it under a name of its own by DNS rebinding (`Host`).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on."""
        if scope["type"] == "http" and not self._is_a_program(Headers(scope=scope)):
            refused = InvalidRequest(
                "a worker answers programs that call its address, not web pages; ask the gateway",
                code="origin_refused",
            )
            await JSONResponse(to_http(refused)[2], 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_a_program(self, headers: Headers) -> bool:
        name = host_name(headers.get("host", ""))
        return "origin" not in headers and name is not None and (name == "localhost" or _is_address(name))


async def _plan(
    host: ModelHost,
    identity: ServedIdentity,
    prompt: list[int],
    *,
    body: ChatCompletionRequest | CompletionRequest,
    headers: Mapping[str, str],
    top_logprobs: int | None,
    terms: Terms,
    echo: bool = False,
    tools: ToolUse | None = None,
) -> AnswerPlan:
    if body.seed is None:
        raise InvalidRequest(
            "a worker needs a seed; the gateway draws one when the client sends none", param="seed"
        )
    tenant = headers.get(HEADER_TENANT) or "default"
    structure = host.form(identity, tools, body.structure)
    grammar = None if structure is None else await host.grammars.compile(structure, tenant)
    return host.plan(
        identity,
        prompt,
        AnswerRequest(
            generation=headers.get(HEADER_GENERATION) or f"gen_{uuid4().hex}",
            tenant=tenant,
            sampling=body.effective_sampling(identity.resolved.behaviour.default_sampling),
            seed=body.seed,
            longest_is_default=body.answer_tokens is None,
            decoding=replace(body.decoding, structure=structure),
            grammar=grammar,
            n=body.n,
            top_logprobs=top_logprobs,
            prompt_logprobs=body.prompt_logprobs,
            prompt_logprobs_last=body.prompt_logprobs_last,
            echo=echo,
            terms=terms,
            tools=tools,
        ),
    )


async def _nobody(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)


async def _body(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise InvalidRequest(f"the request body is larger than {MAX_BODY_BYTES:,} bytes; send less")
        parts.append(part)
    return b"".join(parts)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _json(model: WorkerStatus) -> Response:
    return Response(orjson.dumps(model.model_dump(mode="json")), media_type="application/json")


async def _error_response(_: Request, error: Exception) -> Response:
    if not isinstance(error, TiltyardError):
        raise error
    status, headers, body = to_http(error)
    return JSONResponse(body, status, headers)

"""One answer on its way to whoever asked, and what is told once it is over."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tiltyard.identity.canonical import digest_of_json
from tiltyard.telemetry.logs import fields
from tiltyard.telemetry.trace_context import TraceParent
from tiltyard.telemetry.tracing import Tracing
from tiltyard.wire.worker import (
    HEADER_CACHED_TOKENS,
    HEADER_GENERATION,
    HEADER_IDENTITY,
    HEADER_PROMPT_DIGEST,
    HEADER_PROMPT_TOKENS,
)
from tiltyard.worker.phases import tell_phases
from tiltyard.worker.service import LiveAnswer, WorkerService

_logger = logging.getLogger(__name__)


class Told(NamedTuple):
    """Where the phases of an answer are told once it is over, and when its request arrived (`time.perf_counter`)."""

    tracing: Tracing
    trace: TraceParent | None
    arrived_s: float


class AnswerResponse(Response):
    """Sends an answer as it comes and watches for the reader to leave; one task an answer, none a token."""

    def __init__(self, service: WorkerService, live: LiveAnswer, told: Told, *, stream: bool) -> None:
        super().__init__()
        self._told = told
        self._service = service
        self._live = live
        self._stream = stream

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """ASGI."""
        watcher = asyncio.create_task(_watch(receive, self._live))
        try:
            await self._send_all(send)
        finally:
            watcher.cancel()
            self._service.close(self._live)
            self._log_end()
            tracing, trace, arrived_s = self._told
            failure = self._live.failure
            error = None if failure is None else failure.code
            tell_phases(tracing, trace, self._live.answer, arrived_s=arrived_s, error=error)

    def _log_end(self) -> None:
        if _logger.isEnabledFor(logging.INFO):
            answer = self._live.answer
            facts = {
                "generation": answer.plan.generation,
                "identity": answer.plan.identity,
                "finished": answer.finished,
                "prompt_tokens": len(answer.plan.prompt),
                "completion_tokens": answer.completion_tokens,
            }
            _logger.info("%s is over", answer.plan.generation, extra=fields(facts))

    async def _send_all(self, send: Send) -> None:
        live, started = self._live, False
        while (data := await live.frames()) is not None:
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": self._head()})
                started = True
            await send({"type": "http.response.body", "body": data, "more_body": True})
        if live.abandoned:
            return
        if live.failure is not None:
            raise live.failure
        await send({"type": "http.response.body", "body": b""})

    def _head(self) -> list[tuple[bytes, bytes]]:
        plan = self._live.answer.plan
        return [
            (b"content-type", b"text/event-stream; charset=utf-8" if self._stream else b"application/json"),
            (b"cache-control", b"no-store"),
            (HEADER_GENERATION.encode(), plan.generation.encode()),
            (HEADER_IDENTITY.encode(), plan.behaviour.encode()),
            (HEADER_PROMPT_TOKENS.encode(), str(len(plan.prompt)).encode()),
            (HEADER_CACHED_TOKENS.encode(), str(self._live.answer.cached_tokens or 0).encode()),
            (HEADER_PROMPT_DIGEST.encode(), digest_of_json(plan.prompt).encode()),
        ]


async def _watch(receive: Receive, live: LiveAnswer) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    live.abandon()

"""The web app: arena pages, the arena's HTTP API, static files, and whatever further pages are handed in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from tiltyard.arena.battle import Arena, Pairing
from tiltyard.arena.health import AppendTimes
from tiltyard.arena.outages import Outages
from tiltyard.arena.pairing import Entrant, Randomness
from tiltyard.arena.reveal import REPLAY
from tiltyard.arena.screening import Screening
from tiltyard.arena.sessions import SessionLimits
from tiltyard.arena.transcript import Limits
from tiltyard.client import ModelClient
from tiltyard.errors import TiltyardError
from tiltyard.events.log import EventLog
from tiltyard.governance.erasure import PERSON, REASON, Erasure
from tiltyard.governance.erasure import erase as erase_subject
from tiltyard.telemetry.traced_requests import TracedRequests
from tiltyard.telemetry.tracing import NO_TRACING, Tracing
from tiltyard.telemetry.web_metrics import MeasuredRequests, WebMetrics
from tiltyard.web.arena_api import ArenaApi
from tiltyard.web.arena_pages import ArenaPages
from tiltyard.web.failures import on_disconnect, on_http_error, on_tiltyard_error
from tiltyard.web.language_page import language_routes
from tiltyard.web.languages import Languages
from tiltyard.web.my_data import EraseVoter, MyData
from tiltyard.web.security import Guard
from tiltyard.wire.hosts import LOOPBACK_NAMES

STATIC = Path(__file__).parent / "static"


class VersionedStaticFiles(StaticFiles):
    """Static files; one asked for by its content's digest (`?v=`) may be kept for ever."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one file."""
        kept = (
            b"public, max-age=31536000, immutable" if scope["query_string"].startswith(b"v=") else b"no-cache"
        )

        async def send_with_age(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in (200, 304):
                message["headers"] = [*message["headers"], (b"cache-control", kept)]
            await send(message)

        await super().__call__(scope, receive, send_with_age)


def create_web(
    *,
    log: EventLog,
    client: ModelClient,
    contestants: Sequence[Entrant] | Callable[[], Sequence[Entrant]],
    routes: Sequence[BaseRoute] = (),
    rng: Randomness | None = None,
    limits: Limits | None = None,
    pairing: Pairing | None = None,
    outages: Outages | None = None,
    sessions: SessionLimits | None = None,
    appends: AppendTimes | None = None,
    screening: Screening | None = None,
    erase: EraseVoter | None = None,
    replay: str = REPLAY,
    collectors: Iterable[Collector] = (),
    allowed_hosts: Collection[str] = LOOPBACK_NAMES,
    tracing: Tracing = NO_TRACING,
) -> Starlette:
    """Make the app of all pages; mount it at `/`, beside the gateway.

    `contestants` says who may be drawn now; `routes` are further pages (the leaderboard); `pairing` draws
    among them and `outages` says who rests, uniformly and with the defaults where left out;
    `sessions` limits battles by the hour; `appends` takes in how long votes took to be durable; `screening` is what is done with personal data; `erase` erases a voter who asks for it; `replay` is the
    command that a reveal shows, up to the battle's id, quoted for a shell; `collectors` are metrics for whoever serves them
    (`app.state.collectors`); `tracing` is where spans go. The app's own lifespan ends the
    running battles; who mounts it under another app awaits `app.state.arena.close()`.
    """
    now = contestants if callable(contestants) else lambda: contestants
    arena = Arena(
        log=log,
        client=client,
        contestants=now,
        rng=rng or random.SystemRandom(),
        limits=limits,
        pairing=pairing,
        outages=outages,
        sessions=sessions,
        appends=appends,
        screening=screening,
        tracing=tracing,
    )

    metrics = WebMetrics()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await arena.close()

    app = Starlette(
        routes=[
            *ArenaPages(arena, replay=replay).routes(),
            *ArenaApi(arena, replay=replay).routes(),
            *MyData(arena, erase or _eraser(arena)).routes(),
            *routes,
            *language_routes(),
            Mount("/static", VersionedStaticFiles(directory=STATIC), name="static"),
        ],
        middleware=[
            *([Middleware(TracedRequests, tracing=tracing)] if tracing.recording else ()),
            Middleware(MeasuredRequests, metrics=metrics),
            Middleware(Languages),
            Middleware(Guard, allowed_hosts=allowed_hosts),
        ],
        exception_handlers={
            TiltyardError: on_tiltyard_error,
            HTTPException: on_http_error,
            ClientDisconnect: on_disconnect,
        },
        lifespan=lifespan,
    )
    app.state.arena = arena
    app.state.collectors = (*collectors, metrics)
    return app


def _eraser(arena: Arena) -> EraseVoter:
    """Erases over the arena's own log, for an app that no server follows."""

    async def erase_voter(voter: str) -> Erasure:
        done = await asyncio.to_thread(
            erase_subject, arena.log, voter, reason=REASON, by=PERSON, revocations=None, server_runs=False
        )
        await arena.forget(voter)
        return done

    return erase_voter

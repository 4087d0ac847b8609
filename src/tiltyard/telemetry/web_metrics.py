"""Metrics of the pages and the arena's API: how many requests, how they ended, how long until the first byte of the answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FIRST_BYTE_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
NO_ROUTE: Final = "(none)"
"""Paths that lead nowhere, and requests that were refused before it was looked where they lead."""


class WebMetrics(Collector):
    """Labels are our own routes, the usual methods and classes of status (`2xx`): nothing that a visitor writes."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "tiltyard_web_requests",
            "Requests for pages and the arena's API, by route and class of status.",
            ("route", "method", "status"),
            registry=registry,
        )
        self.first_byte_s = Histogram(
            "tiltyard_web_first_byte_seconds",
            "From a request's arrival to the first byte of its answer.",
            ("route",),
            buckets=FIRST_BYTE_BUCKETS_S,
            registry=registry,
        )

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from self._registry.collect()


class MeasuredRequests:
    """ASGI middleware that counts what an app answers."""

    def __init__(self, app: ASGIApp, *, metrics: WebMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status, first_s = "5xx", None

        async def send_and_look(message: Message) -> None:
            nonlocal status, first_s
            if message["type"] == "http.response.start":
                status, first_s = f"{message['status'] // 100}xx", time.perf_counter() - began
            await send(message)

        try:
            await self._app(scope, receive, send_and_look)
        finally:
            route = getattr(scope.get("route"), "path", None) or NO_ROUTE
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._metrics.requests.labels(route, method, status).inc()
            if first_s is not None:
                self._metrics.first_byte_s.labels(route).observe(first_s)

"""A span around each HTTP request of an app; what runs inside sees that span in `traceparent`, as if the client had sent it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiltyard.telemetry.trace_context import CURRENT, trace_of
from tiltyard.telemetry.tracing import CANCELLED, Tracing

QUIET: Final = ("/health", "/ready", "/metrics", "/static", "/worker", "/openapi.json")
"""What monitors ask every few seconds, and what no trace is about."""
_OURS: Final = frozenset({b"traceparent", b"tracestate"})


class TracedRequests:
    """ASGI middleware, for an app whose process has a collector.

    Names and attributes are those of OpenTelemetry's HTTP conventions; the name has the route's pattern, never a path that a client chose.
    """

    def __init__(self, app: ASGIApp, *, tracing: Tracing, quiet: Collection[str] = QUIET) -> None:
        self._app = app
        self._tracing = tracing
        self._quiet = tuple(quiet)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request under its span."""
        if scope["type"] != "http" or self._is_quiet(scope["path"]):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method = scope["method"]
        span = self._tracing.begin(
            method,
            parent=trace_of(headers),
            kind="server",
            attributes={"http.request.method": method, "url.scheme": scope.get("scheme", "http")},
        )
        status = 0

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        inside = scope
        if span.trace is not None:
            ours = [(name.encode(), value.encode()) for name, value in span.trace.headers.items()]
            inside = {**scope, "headers": [h for h in scope["headers"] if h[0] not in _OURS] + ours}
        token = CURRENT.set(span.trace)
        error: str | None = None
        try:
            await self._app(inside, receive, send_and_look)
        except BaseException as failure:
            error = type(failure).__name__ if isinstance(failure, Exception) else CANCELLED
            raise
        finally:
            CURRENT.reset(token)
            route = getattr(inside.get("route"), "path", None)
            if route:
                span.rename(f"{method} {route}")
                span.set({"http.route": route})
            if status:
                span.set({"http.response.status_code": status})
                error = error or (str(status) if status >= 500 else None)
            span.end(error=error)

    def _is_quiet(self, path: str) -> bool:
        return any(path == quiet or path.startswith(quiet + "/") for quiet in self._quiet)

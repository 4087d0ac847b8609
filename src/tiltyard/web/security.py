"""What every answer of the web app carries, and which requests it refuses before they reach a page."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiltyard.errors import InvalidRequest, TiltyardError
from tiltyard.web.failures import failure_response
from tiltyard.wire.hosts import LOOPBACK_NAMES, host_name, origin_host

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types tiltyard",
    )
)

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI middleware: hosts that we answer to, POSTs only from our own pages, headers that browsers obey.

    A browser says where a POST comes from (`Origin`, or `Sec-Fetch-Site`); one from another site is refused.
    A program that sends neither header holds no cookie that a stranger's page could ride on. The host check
    keeps a stranger's domain that resolves to our address (DNS rebinding) from being taken for our own page.
    A page that needs another `content-security-policy` sets its own.
    """

    def __init__(self, app: ASGIApp, *, allowed_hosts: Collection[str] = LOOPBACK_NAMES) -> None:
        self._app = app
        self._allowed_hosts = frozenset(allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, and put the headers on whatever answers it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        try:
            self._check_host(request.headers)
            if request.method not in ("GET", "HEAD", "OPTIONS"):
                check_same_origin(request.headers)
        except TiltyardError as error:
            await failure_response(request, error)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        name = host_name(host)
        if name is None or ("*" not in self._allowed_hosts and name not in self._allowed_hosts):
            raise InvalidRequest(
                f"this server does not answer to the host name {host[:80]!r}. Use one of "
                f"{', '.join(sorted(self._allowed_hosts))}, or add the name to its allowed hosts.",
                code="unknown_host",
            )


def check_same_origin(headers: Headers) -> None:
    """Raise `InvalidRequest` when a browser says that the request comes from another site's page."""
    origin, fetch_site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None:
        ours = origin_host(origin) == headers.get("host", "").lower()
    else:
        ours = fetch_site in (None, "same-origin", "none")
    if not ours:
        raise InvalidRequest(
            f"this request comes from another site ({(origin or fetch_site or '')[:80]}) and was refused. "
            "Open the arena's own page and try there.",
            code="cross_site_request",
        )

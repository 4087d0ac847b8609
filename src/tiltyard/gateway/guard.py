"""Who may speak to the door at all: the Host and Origin checks and the request id, around every route.

A page on the internet can make a browser send requests to 127.0.0.1, and by DNS rebinding even read the
answers. The Host header then names the page's own domain, which we refuse; a request that only pretends to
come from here carries the page's Origin, which we refuse too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiltyard.errors import InvalidRequest
from tiltyard.events.ids import new_id
from tiltyard.gateway.connection import MAX_HEAD_BYTES
from tiltyard.gateway.errors import HeadTooLarge, Refused, error_response
from tiltyard.wire.hosts import LOOPBACK_NAMES, host_name, origin_host

ANY_HOST = "*"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_ONCE = frozenset({b"host", b"origin", b"authorization", b"x-api-key"})
"""Headers by which we decide who may come in."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """ASGI middleware: refuses foreign hosts and origins, gives every answer an `x-request-id`."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self.app = app
        self.hosts = LOOPBACK_NAMES | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        refusal = _too_large(scope) or _ambiguous(scope) or self._refusal(scope, headers)
        if scope["type"] == "http":
            send = _with_request_id(send, headers.get(b"x-request-id", ""))
        if refusal is None:
            await self.app(scope, receive, send)
        else:  # a WebSocket's handshake is answered as any other request
            await error_response(refusal, path=scope["path"])(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[bytes, str]) -> Refused | None:
        host = headers.get(b"host", "")
        if not self._is_ours(host):
            return Refused(f"host {host!r} is not served here; use one of {', '.join(sorted(self.hosts))}")
        changes = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
        origin = headers.get(b"origin")
        if changes and origin is not None and not self._is_ours(origin_host(origin) or ""):
            return Refused(f"origin {origin!r} may not use this server", code="origin_refused")
        return None

    def _is_ours(self, host: str) -> bool:
        name = host_name(host)
        return name is not None and (ANY_HOST in self.hosts or name in self.hosts)


def _too_large(scope: Scope) -> HeadTooLarge | None:
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    size += len(scope["path"]) + len(scope["query_string"])
    if size <= MAX_HEAD_BYTES:
        return None
    return HeadTooLarge(
        f"the request's head has {size:,} bytes; at most {MAX_HEAD_BYTES:,} are read. Send less."
    )


def _ambiguous(scope: Scope) -> InvalidRequest | None:
    """A proxy may read the first of two headers where we read the last one."""
    names = [name for name, _ in scope["headers"] if name in _ONCE]
    twice = next((name.decode() for name in names if names.count(name) > 1), None)
    if twice is None:
        return None
    return InvalidRequest(f"there are {names.count(twice.encode())} headers {twice}; send one", param=twice)


def _with_request_id(send: Send, asked: str) -> Send:
    request_id = asked if _REQUEST_ID.fullmatch(asked) else new_id()

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
        await send(message)

    return send_with_id

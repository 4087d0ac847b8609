"""One address for two apps: the protocol's paths go to the gateway, all others to the pages."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from tiltyard.errors import ConfigurationError

PROTOCOL_PATHS = (
    "/v1",
    "/tokenize",
    "/detokenize",
    "/render",
    "/health",
    "/ready",
    "/metrics",
    "/openapi.json",
)


class OneAddress:
    """An ASGI app that hands each request to the gateway or to the pages; without pages, all go to the gateway."""

    def __init__(self, gateway: Starlette, pages: Starlette | None) -> None:
        self._gateway = gateway
        self._pages = pages or gateway
        apps = [gateway] if pages is None else [gateway, pages]

        @asynccontextmanager
        async def lifespans(_app: Starlette) -> AsyncIterator[None]:
            async with AsyncExitStack() as stack:
                for app in apps:
                    await stack.enter_async_context(app.router.lifespan_context(app))
                yield

        self._lifespan = Starlette(lifespan=lifespans)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif is_protocol(scope["path"]):
            await self._gateway(scope, receive, send)
        else:
            await self._pages(scope, receive, send)


def is_protocol(path: str) -> bool:
    """Whether a path belongs to the gateway.

    >>> is_protocol("/v1/models"), is_protocol("/v1x"), is_protocol("/leaderboard")
    (True, False, False)
    """
    return any(path == prefix or path.startswith(prefix + "/") for prefix in PROTOCOL_PATHS)


def refuse_strangers(host: str, *, said_by: str) -> ConfigurationError:
    """The error for an address that strangers can reach, with nothing to keep them out."""
    return ConfigurationError(
        f"{said_by}: {host!r} is not a loopback address, and there are no API keys yet to keep strangers out; make "
        "one with `tiltyard keys create --tenant NAME --scope inference`, use 127.0.0.1, or set "
        "server.serve_without_keys"
    )


def listen(host: str, port: int) -> socket.socket:
    """Take the address before anything slow is done; raises `ConfigurationError` for a port in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"port {port} on {host} is in use; stop what uses it, or pass --port with another number"
            ) from None
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def is_wildcard(host: str) -> bool:
    """Whether a host stands for every address of this machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

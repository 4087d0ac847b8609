"""Reads a request's body up to a limit, and runs work only as long as its client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from tiltyard.gateway.errors import BodyTooLarge, BodyTooSlow

MAX_BODY_BYTES = 4 << 20
BODY_WITHIN_S = 30.0
T = TypeVar("T")


async def read_body(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """Read the whole body; raises `BodyTooLarge` as soon as it must be, without reading the rest, or `BodyTooSlow`."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(size, limit)
                parts.append(part)
    except TimeoutError:
        raise BodyTooSlow(
            f"the body did not come within {BODY_WITHIN_S:g} s ({size:,} bytes did); send it faster"
        ) from None
    return b"".join(parts)


def _too_large(size: int, limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body has {size:,} bytes or more; at most {limit:,} are read. Send less.")


async def while_connected(work: Awaitable[T], receive: Receive) -> T:
    """Run `work`; when the client hangs up first, cancel it, let it clean up, and raise `ClientDisconnect`.

    The request's body must have been read: the next message of `receive` is then the disconnect.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

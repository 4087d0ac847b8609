"""The answers under way, by tenant, and `POST /v1/generations/{generation}/cancel`, which ends one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastapi import APIRouter

from tiltyard.errors import NotFound
from tiltyard.gateway.caller import current_caller

if TYPE_CHECKING:
    from tiltyard.gateway.door import Door

_ID = re.compile(r"(?:gen|resp|msg)_([0-9a-f]{32})")


class Running:
    """Of this process."""

    def __init__(self) -> None:
        self._stops: dict[tuple[str, str], Callable[[], None]] = {}

    @contextmanager
    def having(self, tenant: str, generation: str, stop: Callable[[], None]) -> Iterator[None]:
        """Let an answer be stopped for the length of the block."""
        self._stops[tenant, generation] = stop
        try:
            yield
        finally:
            del self._stops[tenant, generation]

    def stop(self, tenant: str, generation: str) -> None:
        """End a tenant's answer; raises `NotFound`."""
        stop = self._stops.get((tenant, generation))
        if stop is None:
            raise NotFound(
                f"{generation} is not being answered here now; it may have ended",
                param="generation",
                code="generation_not_running",
            )
        stop()


def running_routes(door: Door) -> APIRouter:
    """The route that ends an answer."""
    routes = APIRouter(tags=["generate"])

    @routes.post("/v1/generations/{generation}/cancel", summary="End an answer under way")
    async def cancel(generation: str) -> dict[str, object]:
        """Its stream ends with `cancelled` and its usage, whoever listens to it. Ids of responses and messages do too."""
        match = _ID.fullmatch(generation)
        name = generation[:80] if match is None else "gen_" + match[1]
        door.running.stop(current_caller().tenant, name)
        return {"id": name, "object": "generation.cancelled", "cancelled": True}

    return routes

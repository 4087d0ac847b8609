"""What a worker calls a model and what its errors mean, whichever engine it is."""

from __future__ import annotations

from collections.abc import Mapping

from tiltyard.client.failures import error_from_response
from tiltyard.errors import TiltyardError
from tiltyard.gateway.caller import current_caller
from tiltyard.router.router import Route
from tiltyard.telemetry.trace_context import CURRENT, headers_of
from tiltyard.wire.worker import HEADER_TENANT
from tiltyard.worker.adapters.troubles import trouble_of


def addressed(route: Route, path: str) -> tuple[str, dict[str, str]]:
    """What the worker calls the model, and the headers it gets; raises `InvalidRequest` where it has no such door."""
    engine, identity = route.worker.engine, route.identity.name
    headers = {"content-type": "application/json", **headers_of(CURRENT.get())}
    if engine is None:
        return identity, {**headers, HEADER_TENANT: current_caller().tenant}
    return engine.door(identity, path), {**headers, **engine.headers}


def trouble(route: Route, status: int, headers: Mapping[str, str], content: bytes) -> TiltyardError:
    """The error that a worker's answer means."""
    engine = route.worker.engine
    if engine is None:
        return error_from_response(status, headers, content)
    return trouble_of(route.worker.name, engine.key_env, status, headers, content)

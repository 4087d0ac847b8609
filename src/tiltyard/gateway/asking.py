"""Asks a worker something small that is no answer of a model: one body there, one body back."""

from __future__ import annotations

import orjson

from tiltyard.errors import Overloaded, Unavailable, UpstreamFailed
from tiltyard.gateway.addressing import addressed, trouble
from tiltyard.gateway.attempt import WorkerLost
from tiltyard.gateway.caller import current_caller
from tiltyard.gateway.charge import Charge
from tiltyard.gateway.door import Door
from tiltyard.gateway.line import HopFailed
from tiltyard.router.ledger import Ask
from tiltyard.router.router import Route
from tiltyard.wire.phrasing import Chunk


async def ask(door: Door, path: str, body: Chunk) -> Chunk:
    """Post `body` to a worker that serves its `model`, and to another one if the first is gone or full.

    It costs nothing, and is one of the tenant's requests all the same: a long text keeps a core busy for seconds.
    Raises the worker's own error, `NotFound` for a model that does not exist, `LimitReached`, `Unavailable`,
    `WorkerLost`.
    """
    caller = current_caller()
    caller.terms.check_model(str(body["model"]))
    identity = door.router.resolve(str(body["model"]))
    route = door.router.choose(identity)
    charge = Charge(door.ledger, door.metrics, caller, Ask(0.0, 0))
    await charge.reserve()
    try:
        return await _from_a_worker(door, identity, route, path, body)
    finally:
        await charge.settle(0, 0)


async def _from_a_worker(door: Door, identity: str, route: Route, path: str, body: Chunk) -> Chunk:
    try:
        return await _ask(door, route, path, body)
    except (WorkerLost, Unavailable, Overloaded) as error:
        name = route.worker.name
        if isinstance(error, WorkerLost):
            door.router.registry.failed(name, error.message, gone=True)
        if all(worker.name == name for worker in door.router.registry.serving(identity)):
            raise
        door.metrics.retries.inc()
        return await _ask(door, door.router.choose(identity, without={name}), path, body)


async def _ask(door: Door, route: Route, path: str, body: Chunk) -> Chunk:
    name, headers = addressed(route, path)
    named = orjson.dumps({**body, "model": name})
    try:
        answer = await door.hop.post(route.url + path, named, headers)
        try:
            content = await answer.read()
        finally:
            answer.close()
    except HopFailed as error:
        raise WorkerLost(f"worker {route.worker.name} went away in the middle of the request") from error
    if answer.status != 200:
        raise trouble(route, answer.status, answer.headers, content)
    try:
        read = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UpstreamFailed(
            f"worker {route.worker.name} answered {path} with something that is not JSON",
            code="stream_unreadable",
        ) from error
    return dict(read)

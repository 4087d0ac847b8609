"""Takes a request's body: up to a limit, as JSON, field by field, under the rule for unknown fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from starlette.requests import Request

from tiltyard.gateway.body import read_body
from tiltyard.gateway.door import Door
from tiltyard.gateway.resuming import needs_digest
from tiltyard.identity.canonical import Json, digest_of
from tiltyard.wire.leniency import Lenient, dropped_header, read_leniently, rule_of
from tiltyard.wire.problems import parse_object

T = TypeVar("T")


class Taken(NamedTuple, Generic[T]):
    """A request that was read, and what the head of its answer says of that."""

    asked: T
    headers: dict[str, str]
    digest: str
    """Of route and body, where it may have to be told apart from others; else empty."""


async def take(door: Door, request: Request, parse: Callable[[Mapping[str, Json]], T]) -> Taken[T]:
    """Read a request's body with `parse`; raises what is wrong with it, naming the field."""
    rule = rule_of(request.headers, door.unknown_fields)
    body = await read_body(request, door.max_body_bytes)
    value = parse_object(body)
    read = read_leniently(parse, value) if rule == "drop" else Lenient(parse(value), ())
    digest = digest_of(request.url.path.encode() + b"\n" + body) if needs_digest(request) else ""
    return Taken(read.asked, dropped_header(read.dropped), digest)

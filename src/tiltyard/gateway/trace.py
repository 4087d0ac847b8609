"""Reads the W3C trace context of a request."""

from __future__ import annotations

import re

from starlette.requests import HTTPConnection

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent_of(connection: HTTPConnection) -> str | None:
    """The `traceparent` header if it is well formed; the standard says to ignore it otherwise."""
    value = connection.headers.get("traceparent", "")
    return value if _TRACEPARENT.fullmatch(value) else None

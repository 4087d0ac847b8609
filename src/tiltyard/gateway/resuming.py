"""What a request says about being cut off: `Idempotency-Key`, `x-tiltyard-resume-ms` and `Last-Event-ID`."""

from __future__ import annotations

import re
from typing import NamedTuple

from starlette.requests import Request

from tiltyard.errors import InvalidRequest
from tiltyard.gateway.telling import Asking

HEADER_KEY = "idempotency-key"
HEADER_RESUME = "x-tiltyard-resume-ms"
HEADER_LAST = "last-event-id"
MAX_RESUME_MS = 300_000
KEY_RESUME_MS = 30_000
"""How long an answer with a key goes on without a listener, where the request does not say."""
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_EVENT_ID = re.compile(r"(gen_[0-9a-f]{32}):([0-9]{1,9})")


class EventId(NamedTuple):
    """The last event that a client has of a stream."""

    generation: str
    number: int


def needs_digest(request: Request) -> bool:
    """Whether the answer may have to be told apart from that of another request."""
    return any(name in request.headers for name in (HEADER_KEY, HEADER_RESUME, HEADER_LAST))


def asking_of(request: Request, digest: str, tenant: str) -> Asking | None:
    """How the answer is to be told; `None` if it dies with its connection. Raises `InvalidRequest`."""
    key, resume = request.headers.get(HEADER_KEY), request.headers.get(HEADER_RESUME)
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"Idempotency-Key is {key[:40]!r}; it must be 1 to 255 printable ASCII characters without spaces",
            param=HEADER_KEY,
        )
    if resume is not None and not (
        resume.isascii() and resume.isdecimal() and len(resume) <= 7 and 1 <= int(resume) <= MAX_RESUME_MS
    ):
        raise InvalidRequest(
            f"{HEADER_RESUME} is {resume[:40]!r}; it must be whole milliseconds from 1 to {MAX_RESUME_MS}",
            param=HEADER_RESUME,
        )
    if key is None and resume is None:
        return None
    linger_ms = KEY_RESUME_MS if resume is None else int(resume)
    return Asking(tenant, digest, key, linger_ms / 1000)


def event_id_of(request: Request) -> EventId | None:
    """Where a client wants to go on; raises `InvalidRequest` for what is no id of ours."""
    text = request.headers.get(HEADER_LAST)
    if not text:
        return None
    match = _EVENT_ID.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"Last-Event-ID is {text[:60]!r}; it must be the id of an event of one of our streams, gen_…:7",
            param=HEADER_LAST,
        )
    return EventId(match[1], int(match[2]))

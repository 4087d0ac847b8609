"""What a failed request means: one `TiltyardError` for each cause."""

from __future__ import annotations

from collections.abc import Mapping

import httpx2
import orjson

from tiltyard.errors import (
    Conflict,
    ContentMissing,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    StorageFailed,
    TiltyardError,
    Unavailable,
    UnknownField,
    UpstreamFailed,
)

_BY_STATUS: dict[int, type[TiltyardError]] = {
    404: NotFound,
    409: Conflict,
    410: ContentMissing,
    503: Unavailable,
    507: StorageFailed,
}
_BY_CODE: dict[str, type[TiltyardError]] = {
    UnknownField.default_code: UnknownField,
    ContextTooLong.default_code: ContextTooLong,
    DeadlineExceeded.default_code: DeadlineExceeded,
}
HOPELESS = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""OpenAI's codes of a 429 that only a person can help."""


def error_from_transport(error: httpx2.HTTPError, url: str) -> TiltyardError:
    """Name why no answer came: refused, too slow, or cut in the middle."""
    if isinstance(error, httpx2.ConnectTimeout):
        return Unavailable(
            f"{url} did not accept a connection in time; is the address right?", code="timed_out"
        )
    if isinstance(error, httpx2.TimeoutException):
        return UpstreamFailed(f"{url} sent nothing for too long; the answer was given up", code="timed_out")
    if isinstance(error, httpx2.ConnectError):
        return Unavailable(
            f"nothing answers at {url} ({error}). Start the server with `tiltyard up` or name another.",
            code="connection_refused",
        )
    if isinstance(
        error, (httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.WriteError, httpx2.CloseError)
    ):
        return UpstreamFailed(
            f"{url} closed the connection in the middle of the answer; it is not complete. Ask again.",
            code="stream_cut",
        )
    return UpstreamFailed(f"the request to {url} failed: {error}", code="request_failed")


def error_from_response(status: int, headers: Mapping[str, str], content: bytes) -> TiltyardError:
    """Turn an HTTP error into the exception that the server raised, as far as its body tells."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        start = content[:200].decode("utf-8", errors="replace")
        body = {"error": {"message": f"HTTP {status} without an error body: {start!r}"}}
    return error_from_body(status, body, headers=headers)


def error_from_body(
    status: int, body: Mapping[str, object], *, headers: Mapping[str, str] | None = None
) -> TiltyardError:
    """Turn OpenAI's error shape into an exception; `status` decides when the code is unknown.

    `headers` say when to come back after a 429, and whether that helps.

    Servers that leave out the outer object (SGLang), or say `detail` (FastAPI), are understood as well.
    """
    inner = body.get("error", body)
    fields: Mapping[object, object] = inner if isinstance(inner, Mapping) else {"message": inner}
    message = str(fields.get("message") or fields.get("detail") or f"HTTP {status} without a word")
    param = _text(fields.get("param"))
    code = _text(fields.get("code"))
    if status == 429:
        helps = (headers or {}).get("x-should-retry") != "false" and code not in HOPELESS
        return Overloaded(
            message, retry_after_s=_seconds(headers or {}), param=param, code=code, should_retry=helps
        )
    kind = _BY_CODE.get(code or "") or _BY_STATUS.get(status)
    if kind is None:
        kind = InvalidRequest if 400 <= status < 500 else UpstreamFailed
    return kind(message, param=param, code=code)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _seconds(headers: Mapping[str, str]) -> float:
    """When to come back, as OpenAI's servers say it: in milliseconds, or in seconds; not their dates."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue
    return 1.0

"""Every error that tiltyard raises on purpose, and the one place that maps them to HTTP.

::

    TiltyardError
    ├── InvalidRequest            400  the request is wrong; `param` names the field
    │   ├── UnknownField          400  a field that we do not know or do not honour
    │   ├── ContextTooLong        400  prompt and answer do not fit the model
    │   └── ContentMissing        410  the words were erased or never kept
    ├── NotFound                  404  no such model, battle, generation, identity
    ├── Conflict                  409  a single-use thing was used, or the state moved on
    ├── Overloaded                429  try again after `retry_after_s`
    ├── DeadlineExceeded          504  the request's own deadline passed before there was an answer
    ├── Unavailable               503  no worker can take the work now
    ├── UpstreamFailed            502  a worker broke its promise
    ├── ConfigurationError        500  tiltyard.toml or a flag is wrong
    ├── ModelRejected             500  a model file is hostile, damaged or not supported
    │   └── DigestMismatch        500  bytes are not the pinned bytes; both digests shown
    ├── FetchFailed               500  a model source could not be read
    └── StorageFailed             507  the log or the disk refused a write
        └── LogTampered           500  a seal does not match the events under it

What only one room can raise is drawn there: the door's 403, 405 and 413 in `gateway/errors.py`, a lost or failed
worker in `gateway/attempt.py` and `fleet/place.py`. `docs/errors.md` lists every code.

A message names the thing, the value, the limit and the next step.
"""

from __future__ import annotations

import math
from typing import TypedDict


class TiltyardError(Exception):
    """The root; `code` is stable and machine-readable, `param` names the offending field if there is one."""

    status = 500
    kind = "server_error"
    default_code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code


class InvalidRequest(TiltyardError):
    """The request is wrong; the caller can fix it."""

    status = 400
    kind = "invalid_request_error"
    default_code = "invalid_value"


class UnknownField(InvalidRequest):
    """A field that we do not know, or know and do not honour."""

    default_code = "unknown_parameter"
    location: tuple[int | str, ...] | None = None
    """Where it stands, if the request means something without it; `param` is the same as text."""


class ContextTooLong(InvalidRequest):
    """Prompt and answer do not fit the model's context."""

    default_code = "context_length_exceeded"


class ContentMissing(InvalidRequest):
    """The words behind an event were erased, or a policy kept none."""

    status = 410
    default_code = "content_missing"


class NotFound(TiltyardError):
    """No such model, battle, generation or identity."""

    status = 404
    kind = "invalid_request_error"
    default_code = "not_found"


class Conflict(TiltyardError):
    """A single-use thing was used already, or the state has moved on."""

    status = 409
    kind = "invalid_request_error"
    default_code = "conflict"


class Overloaded(TiltyardError):
    """The queue is full, or a limit is reached; `retry_after_s` says when to come back, if that helps."""

    status = 429
    kind = "rate_limit_error"
    default_code = "overloaded"

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None,
        param: str | None = None,
        code: str | None = None,
        should_retry: bool = True,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry
        """Whether a client should try again by itself; not when only a person or the next day helps."""


class DeadlineExceeded(TiltyardError):
    """The deadline that the request brought passed before a token of its answer came; `param` names the header."""

    status = 504
    kind = "deadline_error"
    default_code = "deadline_exceeded"


class Unavailable(TiltyardError):
    """No worker can take the work now."""

    status = 503
    kind = "unavailable_error"
    default_code = "unavailable"


class UpstreamFailed(TiltyardError):
    """A worker broke its promise: it died, hung up or sent something unreadable."""

    status = 502
    kind = "upstream_error"
    default_code = "upstream_failed"


class ConfigurationError(TiltyardError):
    """`tiltyard.toml`, an environment variable or a flag is wrong."""

    default_code = "configuration_error"


class ModelRejected(TiltyardError):
    """A model file is hostile, damaged or of a kind that we do not support."""

    default_code = "model_rejected"


class DigestMismatch(ModelRejected):
    """The bytes are not the pinned bytes."""

    default_code = "digest_mismatch"

    def __init__(self, what: str, *, expected: str, actual: str) -> None:
        super().__init__(
            f"{what} is not the pinned file: expected {expected}, got {actual}. "
            "Delete it and pull again; if it stays wrong, do not use this source."
        )
        self.expected = expected
        self.actual = actual


class FetchFailed(TiltyardError):
    """A model source could not be read: no network, no such package, no such file."""

    default_code = "fetch_failed"


class StorageFailed(TiltyardError):
    """The event log or the disk refused a write; nothing was acknowledged."""

    status = 507
    default_code = "storage_failed"


class LogTampered(StorageFailed):
    """A seal does not match the events under it."""

    status = 500
    default_code = "log_tampered"


UNAVAILABLE_RETRY_S = 2
"""A worker that ended is started again in about this time."""


class ErrorBody(TypedDict):
    """The inner object of OpenAI's error shape."""

    message: str
    type: str
    param: str | None
    code: str | None


def to_http(error: TiltyardError) -> tuple[int, dict[str, str], dict[str, ErrorBody]]:
    """Turn an error into `(status, headers, body)` in OpenAI's shape.

    >>> to_http(NotFound("model 'x' does not exist"))[0]
    404
    """
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        if error.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
            headers["retry-after-ms"] = str(max(1, math.ceil(error.retry_after_s * 1000)))
        headers["x-should-retry"] = "true" if error.should_retry else "false"
    if isinstance(error, Unavailable):
        headers["retry-after"] = str(UNAVAILABLE_RETRY_S)
    body = ErrorBody(message=error.message, type=error.kind, param=error.param, code=error.code)
    return error.status, headers, {"error": body}

"""Errors of the door itself, and how every error leaves it: OpenAI's shape, with a retry hint."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tiltyard.errors import InvalidRequest, NotFound, TiltyardError, to_http

CLIENT_CLOSED = 499
"""Status for our own records of a client that hung up; nobody receives it."""


class BodyTooLarge(InvalidRequest):
    """The request's body is larger than the gateway reads."""

    status = 413
    default_code = "body_too_large"


class InvalidApiKey(InvalidRequest):
    """No API key where one is needed, an unknown one, or one that has ended."""

    status = 401
    default_code = "invalid_api_key"


class MissingScope(InvalidRequest):
    """The API key may not do this."""

    status = 403
    default_code = "missing_scope"


class HeadTooLarge(InvalidRequest):
    """The request's line and headers are larger than the gateway reads."""

    status = 431
    default_code = "head_too_large"


class BodyTooSlow(InvalidRequest):
    """The request's body did not come in time."""

    status = 408
    default_code = "body_too_slow"


class Refused(InvalidRequest):
    """The request came under a host name, or from a page, that is not ours."""

    status = 403
    default_code = "host_refused"


class MethodNotAllowed(InvalidRequest):
    """The path exists and does not take this method."""

    status = 405
    default_code = "method_not_allowed"


def error_response(error: TiltyardError, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with an error in OpenAI's shape."""
    status, extra, body = to_http(error)
    if isinstance(error, InvalidApiKey):
        extra = {**extra, "www-authenticate": "Bearer"}
    return Response(orjson.dumps(body), status, {**extra, **(headers or {})}, media_type="application/json")


def error_data(error: TiltyardError) -> bytes:
    """The same shape as the data of a stream's last frame."""
    return orjson.dumps(to_http(error)[2])


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for what the framework refuses: no such path, wrong method."""
    if not isinstance(error, HTTPException):
        raise error
    place = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return error_response(
            NotFound(f"{place} does not exist; /openapi.json lists what does", code="unknown_url")
        )
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return error_response(
            MethodNotAllowed(f"{place} is not allowed; use {allowed or 'another method'}"), error.headers
        )
    return error_response(InvalidRequest(f"{place}: {error.detail}"), error.headers)


async def answer_nobody(_request: Request, _error: Exception) -> Response:
    """Exception handler for a client that hung up before its request was whole: no mistake of ours."""
    return Response(status_code=CLIENT_CLOSED)


async def answer_unexpected(_request: Request, _error: Exception) -> Response:
    """Exception handler for our own mistakes; the traceback goes to the server's log, not to the client."""
    return error_response(TiltyardError("an unexpected error; the server's log has the details"))

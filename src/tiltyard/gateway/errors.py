"""Errors of the door itself, and how every error leaves it: in the protocol's shape, with a retry hint."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tiltyard.errors import InvalidRequest, NotFound, TiltyardError
from tiltyard.identity.canonical import Json
from tiltyard.wire.messages_answer import anthropic_refusal
from tiltyard.wire.phrasing import Refusal, openai_refusal

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


MESSAGES_PATH = "/v1/messages"


def refused(error: TiltyardError, path: str) -> Refusal:
    """An error in the shape that the clients of a path read: Anthropic's on its own routes, else OpenAI's."""
    if path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/"):
        return anthropic_refusal(error)
    return openai_refusal(error)


def error_response(
    error: TiltyardError, headers: Mapping[str, str] | None = None, *, path: str = ""
) -> Response:
    """Answer a request to `path` with an error."""
    asked = {"www-authenticate": "Bearer"} if isinstance(error, InvalidApiKey) else {}
    return refusal_response(refused(error, path), {**asked, **(headers or {})})


def refusal_response(
    refusal: Refusal, headers: Mapping[str, str] | None = None, *, usage: Mapping[str, Json] | None = None
) -> Response:
    """Answer with a worded error, and the usage of what was done in vain."""
    body = {**refusal.body} if usage is None else {**refusal.body, "usage": usage}
    return Response(
        orjson.dumps(body),
        refusal.status,
        {**refusal.headers, **(headers or {})},
        media_type="application/json",
    )


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for what the framework refuses: no such path, wrong method."""
    if not isinstance(error, HTTPException):
        raise error
    place = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return error_response(
            NotFound(f"{place} does not exist; /openapi.json lists what does", code="unknown_url"),
            path=request.url.path,
        )
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return error_response(
            MethodNotAllowed(f"{place} is not allowed; use {allowed or 'another method'}"),
            error.headers,
            path=request.url.path,
        )
    return error_response(InvalidRequest(f"{place}: {error.detail}"), error.headers, path=request.url.path)


async def answer_nobody(_request: Request, _error: Exception) -> Response:
    """Exception handler for a client that hung up before its request was whole: no mistake of ours."""
    return Response(status_code=CLIENT_CLOSED)


async def answer_unexpected(request: Request, _error: Exception) -> Response:
    """Exception handler for our own mistakes; the traceback goes to the server's log, not to the client."""
    unexpected = TiltyardError("an unexpected error; the server's log has the details")
    return error_response(unexpected, path=request.url.path)

"""Say what went wrong: OpenAI's error shape to programs, a page to people."""

from __future__ import annotations

from http import HTTPStatus

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tiltyard.errors import InvalidRequest, NotFound, TiltyardError, to_http
from tiltyard.identity.canonical import Json
from tiltyard.web.languages import gettext
from tiltyard.web.telling import told
from tiltyard.web.templating import render


def _heading(status: int) -> str:
    headings = {
        404: gettext("Nothing here"),
        409: gettext("Not now"),
        410: gettext("No longer kept"),
        429: gettext("Too many at once"),
        503: gettext("Not ready yet"),
        507: gettext("Nothing was stored"),
    }
    return headings.get(status) or gettext("That did not work")


def json_response(value: Json, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Answer with JSON that no cache keeps."""
    return Response(
        orjson.dumps(value),
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store", **(headers or {})},
    )


def wants_json(request: Request) -> bool:
    """Whether a program asks: an API path, or a script that says so."""
    # Not `request.url`: it is put together from the Host header, which may be what we refuse.
    path: str = request.scope["path"]
    return path.startswith("/api/") or "application/json" in request.headers.get("accept", "")


def failure_response(request: Request, error: TiltyardError) -> Response:
    """Answer with the error, in the shape that the asker reads."""
    status, headers, body = to_http(error)
    if wants_json(request):
        if not request.scope["path"].startswith("/api/"):  # a page's own script, which shows it to a person
            body["error"]["message"] = told(error)
        return Response(
            orjson.dumps(body),
            status_code=status,
            media_type="application/json",
            headers={"cache-control": "no-store", **headers},
        )
    return render(
        "error.html",
        status=status,
        headers=headers,
        heading=_heading(status),
        message=told(error),
        code=error.code,
    )


async def on_tiltyard_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for the exception tree."""
    if not isinstance(error, TiltyardError):
        raise error
    return failure_response(request, error)


async def on_disconnect(_request: Request, _error: Exception) -> Response:
    """Starlette's handler for a browser that left before its request was whole; nobody reads the answer."""
    return Response(status_code=HTTPStatus.BAD_REQUEST)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for its own refusals: no such route, no such method."""
    if not isinstance(error, HTTPException):
        raise error
    path = request.url.path[:120]
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        refused = InvalidRequest(f"{path} does not take {request.method}", code="method_not_allowed")
        response = failure_response(request, refused)
        response.status_code = error.status_code
        response.headers.update(error.headers or {})
        return response
    return failure_response(request, NotFound(f"there is no page at {path!r}"))

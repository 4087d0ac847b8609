"""`POST /language`: remember which language a browser wants, and go back to the page it was on."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from tiltyard.errors import InvalidRequest
from tiltyard.web.languages import LANGUAGE_COOKIE, LANGUAGES, language_named
from tiltyard.web.visitor import COOKIE_AGE_S, read_form

_OUR_PATH: Final = re.compile(r"/(?![/\\])[\x21-\x7e]{0,2000}")
"""A place on this server: `//elsewhere` and `/\\elsewhere` are places on others."""


def language_routes() -> list[BaseRoute]:
    """The one route."""
    return [Route("/language", choose, methods=["POST"])]


async def choose(request: Request) -> Response:
    """Set the cookie; raises `InvalidRequest` for a language that no page speaks."""
    form = await read_form(request)
    tag = form.get("language", "")
    if language_named(tag) is None:
        raise InvalidRequest(
            f"language is {tag[:20]!r}; it must be one of {', '.join(one.tag for one in LANGUAGES)}",
            param="language",
        )
    response = RedirectResponse(_back(request.headers.get("referer", "")), status_code=303)
    response.set_cookie(
        LANGUAGE_COOKIE,
        tag,
        max_age=COOKIE_AGE_S,
        path="/",
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return response


def _back(referer: str) -> str:
    try:
        page = urlsplit(referer)
    except ValueError:
        return "/"
    place = f"{page.path}?{page.query}" if page.query else page.path
    return place if _OUR_PATH.fullmatch(place) else "/"

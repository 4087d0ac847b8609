"""Who may look at releases and order them: a key with the scope `release`, shown once by a person or with each request by a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tiltyard.errors import TiltyardError
from tiltyard.web.visitor import read_form

COOKIE: Final = "tiltyard_operator"
PATHS: Final = ("/releases", "/api/releases")
REFUSED: Final = (401, 403)
SESSION_S: Final = 8 * 3600
SIGN_IN, SIGN_OUT = "/releases/sign-in", "/releases/sign-out"


class Session(NamedTuple):
    """What a browser keeps instead of the key: it names the key, ends by itself, and ends with the key."""

    value: str
    lives_s: int


class Operators(Protocol):
    """The check of keys; every look asks whether the key still stands."""

    async def sign_in(self, secret: str) -> Session:
        """Begin a session; raises a `TiltyardError` for a key that may not order releases."""

    async def who(self, headers: Mapping[str, str], session: str | None) -> str:
        """Who asks, for the log; raises a `TiltyardError` for nobody, or somebody who may not order releases."""

    async def is_open(self) -> bool:
        """Whether anybody may look: where the API needs no key either."""


async def operator_of(operators: Operators, request: Request) -> str:
    """Who orders; raises a `TiltyardError`."""
    return await operators.who(request.headers, request.cookies.get(COOKIE))


async def signed_in(operators: Operators, request: Request) -> str | None:
    """Who is signed in, if somebody is."""
    try:
        return await operator_of(operators, request)
    except TiltyardError as error:
        if error.status not in REFUSED:
            raise
        return None


async def begin(operators: Operators, request: Request, paths: Sequence[str] = PATHS) -> Response:
    """Answer the form in which a key is shown; the session is for the pages below `paths`, the first of which is shown then."""
    session = await operators.sign_in((await read_form(request)).get("key", "").strip())
    response = RedirectResponse(paths[0], status_code=303)
    for path in paths:
        response.set_cookie(
            COOKIE,
            session.value,
            max_age=session.lives_s,
            path=path,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
    return response


def end(paths: Sequence[str] = PATHS) -> Response:
    """Forget the session."""
    response = RedirectResponse(paths[0], status_code=303)
    for path in paths:
        response.delete_cookie(COOKIE, path=path, httponly=True, samesite="strict")
    return response

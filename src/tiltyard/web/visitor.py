"""Who is asking: the voter's cookie, the vote token of a program, and request bodies within a bound."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from tiltyard.arena.voter import Voter
from tiltyard.errors import InvalidRequest, UnknownField

VOTER_COOKIE = "tiltyard_voter"
COOKIE_AGE_S = 365 * 24 * 3600
BODY_BYTES = 256 * 1024
FORM_FIELDS = 16


class Body(BaseModel):
    """A JSON request body; a field that we do not know is refused by name."""

    model_config = ConfigDict(extra="forbid", strict=True)


BodyT = TypeVar("BodyT", bound=Body)


def voter_of(request: Request) -> Voter | None:
    """The voter whose cookie came along, if one did."""
    return Voter.from_secret(request.cookies.get(VOTER_COOKIE))


def token_of(request: Request) -> str | None:
    """The vote token that a program sent as `Authorization: Bearer …`, if it did."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token else None


def address_of(request: Request) -> str | None:
    """Where the request came from; a proxy's word counts only if `server.trusted_proxies` names the proxy."""
    return request.client.host if request.client is not None else None


def keep_voter(request: Request, response: Response, voter: Voter) -> None:
    """Give the voter's secret to the browser, out of reach of scripts and of other sites' requests."""
    response.set_cookie(
        VOTER_COOKIE,
        voter.secret,
        max_age=COOKIE_AGE_S,
        path="/",
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )


async def read_body(request: Request) -> bytes:
    """Read the request body; raises `InvalidRequest` past `BODY_BYTES`."""
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > BODY_BYTES:
            raise InvalidRequest(
                f"the request body is longer than {BODY_BYTES:,} bytes. Shorten the message.",
                code="body_too_long",
            )
    return bytes(parts)


async def read_json(request: Request, shape: type[BodyT]) -> BodyT:
    """Read a JSON body of that shape; raises `InvalidRequest` or `UnknownField` that names the field."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequest("send the body as JSON, with content-type: application/json", code="not_json")
    try:
        return shape.model_validate_json(await read_body(request))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or None
        if first["type"] == "extra_forbidden":
            raise UnknownField(f"{name} is not a field of this request", param=name) from error
        raise InvalidRequest(f"{name or 'the body'}: {first['msg']}", param=name) from error


async def read_form(request: Request) -> dict[str, str]:
    """Read a form that a browser posted (URL-encoded); the last of a repeated field counts."""
    try:
        pairs = parse_qsl(
            (await read_body(request)).decode("ascii"),
            keep_blank_values=True,
            errors="replace",
            max_num_fields=FORM_FIELDS,
        )
    except ValueError as error:  # not ASCII, or too many fields
        raise InvalidRequest("the form could not be read; send it URL-encoded", code="not_a_form") from error
    return dict(pairs)

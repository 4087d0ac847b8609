"""`/v1/admin`: API keys and tenants over HTTP, for a key with the scope `admin`."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, TypeVar

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from tiltyard.events.schema import Credential
from tiltyard.gateway.body import read_body
from tiltyard.gateway.door import Door
from tiltyard.gateway.keyring import TRUSTED_S, NewKey, public
from tiltyard.gateway.openapi import body_schema
from tiltyard.identity.canonical import Json
from tiltyard.router.tenants import NANO
from tiltyard.wire.problems import parse_object, problem

T = TypeVar("T", bound=BaseModel)
Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86_400)]


class NewKeyRequest(BaseModel):
    """Body of `POST /v1/admin/keys`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tenant: str
    scopes: list[str] = Field(default_factory=lambda: ["inference"], max_length=10)
    label: str = ""
    credential: Credential = "production"
    expires_in_s: Seconds | None = None


class RotateRequest(BaseModel):
    """Body of `POST /v1/admin/keys/{key}/rotate`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    overlap_s: Annotated[float, Field(ge=0, le=365 * 86_400)] = 86_400.0


def admin_routes(door: Door) -> APIRouter:
    """The routes for administrators; the gate lets nobody else in."""
    routes = APIRouter(tags=["administrate"])
    keys = door.gate.keys

    @routes.get("/v1/admin/keys", summary="List API keys")
    async def list_keys() -> dict[str, object]:
        """Every key that was ever made, without the keys themselves."""
        now_us = time.time_ns() // 1000
        return {
            "object": "list",
            "data": [public(row, now_us) for row in await asyncio.to_thread(keys.listed)],
        }

    @routes.post(
        "/v1/admin/keys",
        summary="Make an API key",
        openapi_extra=body_schema(NewKeyRequest),
        response_class=Response,
    )
    async def create_key(request: Request) -> Response:
        """The answer has the key itself; it is shown this once."""
        asked = _parsed(NewKeyRequest, await read_body(request, door.max_body_bytes))

        def issue() -> NewKey:
            return keys.issue(
                asked.tenant,
                asked.scopes,
                label=asked.label,
                credential=asked.credential,
                lifetime_s=asked.expires_in_s,
            )

        return _shown(await asyncio.to_thread(issue))

    @routes.post(
        "/v1/admin/keys/{key}/rotate",
        summary="Rotate an API key",
        openapi_extra=body_schema(RotateRequest),
        response_class=Response,
    )
    async def rotate_key(key: str, request: Request) -> Response:
        """A successor with the same rights; the old key goes on for `overlap_s`."""
        asked = _parsed(RotateRequest, await read_body(request, door.max_body_bytes) or b"{}")
        return _shown(await asyncio.to_thread(keys.rotate, key, overlap_s=asked.overlap_s))

    @routes.delete("/v1/admin/keys/{key}", summary="Revoke an API key")
    async def revoke_key(key: str) -> dict[str, object]:
        """When the answer comes, every gateway refuses the key."""
        row = await asyncio.to_thread(keys.revoke, key)
        await asyncio.sleep(2 * TRUSTED_S)
        return dict(public(row, time.time_ns() // 1000))

    @routes.get("/v1/admin/tenants", summary="Show tenants and their accounts")
    async def list_tenants() -> dict[str, object]:
        """Terms, and what is used and held now; of tenants with a table, a key, or a request since the start."""
        rows = await asyncio.to_thread(keys.listed)
        names = {*door.gate.tenants, *keys.terms, *(row.tenant for row in rows), *door.metrics.tenants}
        return {"object": "list", "data": [await tenant(name) for name in sorted(names)]}

    async def tenant(name: str) -> dict[str, Json]:
        account = await door.ledger.account(name)
        return {
            "tenant": name,
            "terms": door.gate.terms_of(name).model_dump(mode="json"),
            "in_flight": account.in_flight,
            "reserved": account.reserved_nano / NANO,
            "spent_today": account.day_nano / NANO,
            "spent_this_month": account.month_nano / NANO,
        }

    return routes


def _parsed(shape: type[T], body: bytes) -> T:
    try:
        return shape.model_validate(parse_object(body))
    except ValidationError as error:
        raise problem(error, shape.model_fields) from error


def _shown(made: NewKey) -> Response:
    body = {**public(made.row, time.time_ns() // 1000), "secret": made.secret}
    return Response(orjson.dumps(body), 201, {"cache-control": "no-store"}, media_type="application/json")

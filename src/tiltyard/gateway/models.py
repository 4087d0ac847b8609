"""`GET /v1/models`: every name that may be asked for, and exactly which model it means now."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.requests import Request

from tiltyard.errors import NotFound
from tiltyard.gateway.caller import current_caller
from tiltyard.gateway.door import Door
from tiltyard.identity.canonical import Json
from tiltyard.wire.worker import IdentityStatus


def model_routes(door: Door) -> APIRouter:
    """The routes that list models."""
    routes = APIRouter(tags=["models"])
    created = int(time.time())

    def entry(name: str) -> dict[str, Json]:
        identity = door.router.resolve(name)
        workers = [
            w for w in door.router.registry.workers if identity in w.expected or identity in w.identities
        ]
        known: IdentityStatus | None = next(
            (w.identities[identity] for w in workers if identity in w.identities), None
        )
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": (known.declaration.organization if known else "") or "tiltyard",
            "tiltyard": {
                "identity": identity,
                "behaviour": known.behaviour if known else None,
                "deployment": known.deployment if known else None,
                "quantization": _quantization(known) if known else None,
                "max_context_tokens": known.max_context_tokens if known else None,
                "description": known.declaration.description if known else "",
                "license": known.declaration.license if known else "",
                "available": any(worker.alive for worker in workers),
            },
        }

    def names() -> list[str]:
        terms = current_caller().terms
        return [name for name in door.router.model_names if terms.may_ask(name)]

    @routes.get("/v1/models", summary="List models")
    async def list_models() -> dict[str, object]:
        """Aliases first, then identities; `tiltyard` says which manifest a name means."""
        return {"object": "list", "data": [entry(name) for name in names()]}

    @routes.get("/v1/models/{model:path}", summary="Show a model")
    async def show_model(model: str, request: Request) -> dict[str, object]:
        """One entry of the list."""
        if not model:
            raise NotFound(f"{request.url.path} names no model", code="unknown_url")
        current_caller().terms.check_model(model)
        return dict(entry(model))

    return routes


def _quantization(status: IdentityStatus) -> str:
    """As which types the weights are computed: what the declaration asks for, or what the file has."""
    declared = status.declaration.quantization
    if declared != "as-stored":
        return declared
    return ", ".join(status.behaviour_manifest.weights.stored_as)

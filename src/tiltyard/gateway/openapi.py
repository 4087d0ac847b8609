"""Describes bodies that we read ourselves to `/openapi.json`."""

from __future__ import annotations

from typing import cast, get_args

from fastapi import FastAPI
from pydantic import BaseModel

from tiltyard.identity.canonical import Json
from tiltyard.wire.terms import (
    HEADER_CLASS,
    HEADER_DEADLINE,
    HEADER_QUEUE_DEADLINE,
    MAX_DEADLINE_MS,
    ServiceClass,
)

COMPONENTS = "#/components/schemas/"


def request_schema(model: type[BaseModel]) -> dict[str, object]:
    """The `requestBody` of a route that parses its body itself, for errors in OpenAI's shape, and its headers."""
    schema = {"$ref": COMPONENTS + model.__name__}
    milliseconds = {"type": "integer", "minimum": 1, "maximum": MAX_DEADLINE_MS}
    headers: tuple[tuple[str, object], ...] = (
        (HEADER_CLASS, {"type": "string", "enum": list(get_args(ServiceClass)), "default": "interactive"}),
        (HEADER_QUEUE_DEADLINE, milliseconds),
        (HEADER_DEADLINE, milliseconds),
    )
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "parameters": [{"name": name, "in": "header", "schema": kind} for name, kind in headers],
    }


def body_schema(model: type[BaseModel]) -> dict[str, object]:
    """The `requestBody` of a route that has no headers of its own."""
    return {"requestBody": request_schema(model)["requestBody"]}


def describe(app: FastAPI, models: tuple[type[BaseModel], ...]) -> None:
    """Put the schemas that `request_schema` refers to into the app's description."""
    made = app.openapi

    def openapi() -> dict[str, object]:
        description: dict[str, object] = made()
        components = cast(dict[str, dict[str, Json]], description.setdefault("components", {}))
        schemas = components.setdefault("schemas", {})
        for model in models:
            schema = cast(dict[str, Json], model.model_json_schema(ref_template=COMPONENTS + "{model}"))
            schemas |= cast(dict[str, Json], schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        return description

    app.openapi = openapi  # type: ignore[method-assign]  # the way that FastAPI documents

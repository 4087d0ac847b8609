"""Describes bodies that we read ourselves, headers, answers and every error status to `/openapi.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast, get_args

from fastapi import FastAPI
from pydantic import BaseModel

from tiltyard.gateway.errors import MESSAGES_PATH
from tiltyard.gateway.openapi_shapes import SHAPES
from tiltyard.gateway.resuming import HEADER_KEY, HEADER_LAST, HEADER_RESUME, MAX_RESUME_MS
from tiltyard.identity.canonical import Json
from tiltyard.wire.leniency import HEADER_UNKNOWN_FIELDS, UnknownFields
from tiltyard.wire.terms import (
    HEADER_CHANNEL,
    HEADER_CLASS,
    HEADER_DEADLINE,
    HEADER_GROUP,
    HEADER_QUEUE_DEADLINE,
    HEADER_SESSION,
    HEADER_SPECULATION,
    MAX_DEADLINE_MS,
    MAX_GROUP_CHARACTERS,
    ServiceClass,
)

COMPONENTS = "#/components/schemas/"
JSON = "application/json"
_MILLISECONDS: Json = {"type": "integer", "minimum": 1, "maximum": MAX_DEADLINE_MS}
_UNKNOWN_FIELDS: tuple[str, Json] = (
    HEADER_UNKNOWN_FIELDS,
    {"type": "string", "enum": list(get_args(UnknownFields))},
)
_TERMS: tuple[tuple[str, Json], ...] = (
    (HEADER_CLASS, {"type": "string", "enum": list(get_args(ServiceClass)), "default": "interactive"}),
    (HEADER_QUEUE_DEADLINE, _MILLISECONDS),
    (HEADER_DEADLINE, _MILLISECONDS),
)
_TELLING: tuple[tuple[str, Json], ...] = (
    (HEADER_SPECULATION, {"type": "string", "enum": ["on", "off"], "default": "on"}),
    (HEADER_GROUP, {"type": "string", "pattern": "^[!-~]*$", "maxLength": MAX_GROUP_CHARACTERS}),
    (HEADER_SESSION, {"type": "string", "pattern": "^[!-~]*$", "maxLength": MAX_GROUP_CHARACTERS}),
    (HEADER_CHANNEL, {"type": "string", "pattern": "^[!-~]*$", "maxLength": MAX_GROUP_CHARACTERS}),
    (HEADER_KEY, {"type": "string", "pattern": "^[!-~]+$", "maxLength": 255}),
    (HEADER_RESUME, {"type": "integer", "minimum": 1, "maximum": MAX_RESUME_MS}),
    (HEADER_LAST, {"type": "string", "pattern": "^gen_[0-9a-f]{32}:[0-9]{1,9}$"}),
)
_ANSWERS: Mapping[str, tuple[str, str | None]] = {
    "/v1/chat/completions": ("ChatCompletion", "chunks, then `[DONE]`"),
    "/v1/completions": ("Completion", "chunks, then `[DONE]`"),
    "/v1/responses": ("ResponseObject", "OpenAI's events"),
    "/v1/responses/input_tokens": ("TokenCount", None),
    "/v1/responses/{response}": ("ResponseObject", None),
    "/v1/messages": ("MessageObject", "Anthropic's events"),
    "/v1/messages/count_tokens": ("TokenCount", None),
    "/tokenize": ("Tokenized", None),
    "/detokenize": ("Detokenized", None),
    "/render": ("Rendered", None),
}
"""The schema of a route's answer, and what its stream is made of."""
_WHY: Mapping[int, str] = {
    400: "the request is wrong; `param` names the field",
    401: "an API key is needed, or this one is not good",
    403: "a foreign host or origin, or a key that may not do this",
    404: "no such model, response, stream or thing",
    408: "the body came too slowly",
    409: "the state has moved on",
    410: "the words, or the events, are no longer kept",
    413: "the body is too large",
    422: "the idempotency key came with another request",
    431: "the headers are too large",
    429: "too much at once; `retry-after` says when to come back",
    500: "our own mistake",
    502: "a worker broke its promise",
    503: "no worker can take it now",
    504: "the request's own deadline passed",
    507: "the log could not record the answer",
}
_ALWAYS = (401, 403, 431, 500)
_WITH_BODY = (400, 408, 413)
_OF_A_WORKER = (404, 429, 502, 503)
_OF_AN_ANSWER = (409, 410, 422, 504, 507)


def request_schema(model: type[BaseModel]) -> dict[str, object]:
    """The `requestBody` of a route that parses its body itself, for errors in its protocol's shape."""
    schema = {"$ref": COMPONENTS + model.__name__}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


def body_schema(model: type[BaseModel]) -> dict[str, object]:
    """The `requestBody` of a route that has no headers of its own."""
    return request_schema(model)


def describe(app: FastAPI, models: tuple[type[BaseModel], ...]) -> None:
    """Put the schemas that `request_schema` refers to into the app's description, and answers and errors."""
    made = app.openapi

    def openapi() -> dict[str, object]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        description: dict[str, object] = made()
        components = cast(dict[str, dict[str, Json]], description.setdefault("components", {}))
        schemas = components.setdefault("schemas", {})
        for name, schema in _models(models):
            schemas |= cast(dict[str, Json], schema.pop("$defs", {}))
            schemas[name] = schema
        schemas |= SHAPES
        paths = cast(dict[str, dict[str, dict[str, object]]], description["paths"])
        for path, methods in paths.items():
            for method, operation in methods.items():
                _complete(path, method, operation)
        return description

    app.openapi = openapi  # type: ignore[method-assign]  # the way that FastAPI documents


def _models(models: tuple[type[BaseModel], ...]) -> Iterator[tuple[str, dict[str, Json]]]:
    for model in models:
        yield (
            model.__name__,
            cast(dict[str, Json], model.model_json_schema(ref_template=COMPONENTS + "{model}")),
        )


def _complete(path: str, method: str, operation: dict[str, object]) -> None:
    """Headers, the shape of the answer, and every status that it may have."""
    responses = cast(dict[str, Json], operation.setdefault("responses", {}))
    responses.pop("422", None)  # the framework's own, for parameters that any text is good for
    headers: list[tuple[str, Json]] = []
    statuses = list(_ALWAYS)
    if method == "post" and "requestBody" in operation:
        statuses += _WITH_BODY
    if "{" in path or path.startswith("/v1/admin"):
        statuses += (400, 404, 409)
    if method == "get" and path in _ANSWERS:
        schema, _ = _ANSWERS[path]
        responses["200"] = {
            "description": "the answer",
            "content": {JSON: {"schema": {"$ref": COMPONENTS + schema}}},
        }
        statuses += (404, 410)
    elif path in _ANSWERS or path == "/v1/embeddings":
        headers.append(_UNKNOWN_FIELDS)
        statuses += _OF_A_WORKER
        content: dict[str, Json] = {}
        if path in _ANSWERS:
            schema, stream = _ANSWERS[path]
            content[JSON] = {"schema": {"$ref": COMPONENTS + schema}}
            if stream is not None:
                content["text/event-stream"] = {"schema": {"type": "string", "description": stream}}
                headers += (*_TERMS, *_TELLING)
                statuses += _OF_AN_ANSWER
        else:
            headers += _TERMS
            statuses.append(504)
            content[JSON] = {"schema": {"type": "object", "required": ["object", "data", "model", "usage"]}}
        responses["200"] = {"description": "the answer", "content": content}
    if path == "/ready":
        responses["503"] = {"description": "some model has no worker", "content": {JSON: {}}}
    if path == "/metrics":
        responses["200"] = {"description": "Prometheus text format", "content": {"text/plain": {}}}
    shape = "MessageError" if path.startswith(MESSAGES_PATH) else "Error"
    for status in sorted(statuses):
        error = {"schema": {"$ref": COMPONENTS + shape}}
        responses.setdefault(str(status), {"description": _WHY[status], "content": {JSON: error}})
    if headers:
        given = cast(list[Json], operation.setdefault("parameters", []))
        given += [{"name": name, "in": "header", "required": False, "schema": kind} for name, kind in headers]

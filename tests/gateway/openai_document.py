"""Schemas of OpenAI's own description of its API, from the folder of public data."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator


@cache
def openai_schemas(shared_data: Path) -> dict[str, Any]:
    """Every schema by name; what of OpenAPI 3.0 is left (`nullable`) is rewritten as JSON Schema."""
    path = shared_data / "serving" / "openai_api" / "openapi" / "openapi.yaml"
    with path.open() as stream:
        schemas = yaml.load(stream, Loader=yaml.CSafeLoader)["components"]["schemas"]

    def rewritten(node: object) -> object:
        if isinstance(node, list):
            return [rewritten(item) for item in node]
        if not isinstance(node, dict):
            return node
        new = {
            key: rewritten(value) for key, value in node.items() if key not in ("nullable", "discriminator")
        }
        return {"anyOf": [new, {"type": "null"}]} if node.get("nullable") is True else new

    return {name: rewritten(schema) for name, schema in schemas.items()}


@cache
def openai_validator(shared_data: Path, name: str) -> Draft202012Validator:
    """Validates what OpenAI calls by this name."""
    schemas = openai_schemas(shared_data)
    assert name in schemas
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}})


@cache
def event_validator(shared_data: Path, kind: str) -> Draft202012Validator:
    """Validates the event of a response's stream that has this `type`."""
    names = {
        option["$ref"].rpartition("/")[2]
        for option in openai_schemas(shared_data)["ResponseStreamEvent"]["anyOf"]
    }
    (name,) = (
        name
        for name in names
        if openai_schemas(shared_data)[name]["properties"]["type"].get("enum") == [kind]
    )
    return openai_validator(shared_data, name)

"""Describes bodies that we read ourselves to `/openapi.json`."""

from __future__ import annotations

from pydantic import BaseModel


def request_schema(model: type[BaseModel]) -> dict[str, object]:
    """The `requestBody` of a route that parses its body itself, for errors in OpenAI's shape."""
    schema = model.model_json_schema(ref_template=f"#/components/schemas/{model.__name__}.{{model}}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

"""What an error of another engine means for a client of ours."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from tiltyard.client.failures import error_from_response
from tiltyard.errors import ContextTooLong, NotFound, TiltyardError, Unavailable, UpstreamFailed

TOO_LONG = ("exceed_context_size_error", "maximum context length", "longer than the model's context length")
"""llama.cpp's type of it, and how vLLM and SGLang word it."""


def trouble_of(
    worker: str, key_env: str, status: int, headers: Mapping[str, str], content: bytes
) -> TiltyardError:
    """The error to raise; a key or a model that *we* got wrong is not the client's fault."""
    error = error_from_response(status, headers, _in_openais_shape(content))
    if status in (401, 403):
        return UpstreamFailed(
            f"worker {worker} refuses our key ({'none is set' if not key_env else 'from ' + key_env}); "
            "add it again with --key-env",
            code="worker_refused_key",
        )
    if isinstance(error, NotFound):
        return Unavailable(f"worker {worker} no longer serves this model; try again soon")
    if 400 <= status < 500 and any(mark in content.decode("utf-8", "replace") for mark in TOO_LONG):
        return ContextTooLong(error.message, param="messages")
    return error


def _in_openais_shape(content: bytes) -> bytes:
    """The same with a text for a code: vLLM and llama.cpp put the status there."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content
    if not isinstance(body, dict):
        return content
    inner = body.get("error", body)
    if isinstance(inner, dict) and isinstance(inner.get("code"), int):
        inner["code"] = inner.get("type") if isinstance(inner.get("type"), str) else None
    return orjson.dumps(body)

"""What one generation says of the objectives of serving; its event is read as plain JSON, for there are millions of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import orjson

from tiltyard.events.envelope import StoredEvent
from tiltyard.objectives.declaration import Kind, ObjectiveSettings, ObjectiveSlice

FAILED: Final = frozenset({"failed", "deadline"})
ARENA: Final = "arena"
"""Tenant of the battles. They count in no slice by alias or identity: such a figure, watched, would tell who is fighting."""


@dataclass(frozen=True, slots=True)
class Request:
    """A generation, as far as objectives go."""

    time_us: int
    tenant: str
    alias: str
    identity: str
    service_class: str
    prompt_tokens: int
    ends: frozenset[str]
    """Finish reasons of its answers."""
    longest: int
    """Tokens of its longest answer."""
    first_token_ms: float | None
    decode_ms: float | None
    total_ms: float


def request_of(event: StoredEvent) -> Request | None:
    """Read a `GenerationFinished`; `None` for a shadow copy, whose answer nobody waited for."""
    data = orjson.loads(event.data_json)
    if data.get("shadow_of") is not None:
        return None
    choices = data["choices"]
    return Request(
        event.time_us,
        event.tenant,
        data["alias"],
        data["identity"],
        data.get("service_class", "interactive"),
        data["prompt_tokens"],
        frozenset(choice["finish_reason"] for choice in choices),
        max((choice["completion_tokens"] for choice in choices), default=0),
        data.get("time_to_first_token_ms"),
        data.get("decode_ms"),
        data["total_ms"],
    )


def is_in(part: ObjectiveSlice, request: Request) -> bool:
    """Whether a request belongs to a slice."""
    if request.tenant == ARENA and (part.alias is not None or part.identity is not None):
        return False
    return (
        part.alias in (None, request.alias)
        and part.identity in (None, request.identity)
        and part.tenant in (None, request.tenant)
        and part.service_class in (None, request.service_class)
        and (part.prompt_tokens_at_least is None or request.prompt_tokens >= part.prompt_tokens_at_least)
        and (part.prompt_tokens_below is None or request.prompt_tokens < part.prompt_tokens_below)
    )


def _slow_start(request: Request, threshold_ms: float) -> bool | None:
    """Whether the first token came late; who waited longer than that and got none waited too long as well."""
    if request.first_token_ms is not None:
        return request.first_token_ms > threshold_ms
    return True if request.total_ms > threshold_ms else None


def _slow_tokens(request: Request, threshold_ms: float) -> bool | None:
    """Time after the first token over the tokens that came in it, of the longest answer: vLLM's time per output token."""
    if request.decode_ms is None or request.longest < 2:
        return None
    return request.decode_ms / (request.longest - 1) > threshold_ms


def _failed(request: Request, _threshold_ms: float) -> bool | None:
    """Whether no whole answer came, through no fault of the asker; who hung up says nothing."""
    if "cancelled" in request.ends:
        return None
    return bool(request.ends & FAILED) or not request.ends


JUDGED_BY: Final[Mapping[Kind, Callable[[Request, float], bool | None]]] = MappingProxyType(
    {"time_to_first_token": _slow_start, "time_per_output_token": _slow_tokens, "error_rate": _failed}
)
"""Whether a request is bad; `None`: it says nothing of it."""


def badness(settings: ObjectiveSettings, request: Request) -> bool | None:
    """Whether a request is bad under an objective; `None` where it is outside of its slice or says nothing."""
    if not is_in(settings.slice, request):
        return None
    return JUDGED_BY[settings.kind](request, settings.threshold_ms or 0.0)

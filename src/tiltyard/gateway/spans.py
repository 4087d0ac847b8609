"""What the gateway's spans say: of a request, of the choice of its worker, of its answer. Words only where two settings allow it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final, cast
from urllib.parse import urlsplit

from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.caller import Caller
from tiltyard.gateway.collect import Endpoint, Kind
from tiltyard.identity.canonical import Json
from tiltyard.router.router import Route, Router
from tiltyard.telemetry import genai
from tiltyard.telemetry.logs import fields
from tiltyard.telemetry.tracing import Attribute, Attributes, Span, Tracing
from tiltyard.wire.openai import ChatCompletionRequest, CompletionRequest

_logger = logging.getLogger(__name__)

OPERATIONS: Final[Mapping[Kind, str]] = {"chat": "chat", "completion": "text_completion"}


def request_facts(
    request: ChatCompletionRequest | CompletionRequest, generation: str, endpoint: Endpoint, kind: Kind
) -> Attributes:
    """What was asked, without a word of it."""
    return {
        genai.OPERATION: OPERATIONS[kind],
        genai.PROVIDER: genai.OUR_NAME,
        genai.REQUEST_MODEL: request.model,
        genai.STREAM: request.stream,
        genai.CHOICES: request.n,
        genai.OUTPUT_TYPE: _output_type(request),
        genai.RESPONSE_ID: generation,
        "tiltyard.endpoint": endpoint,
    }


def _output_type(request: ChatCompletionRequest | CompletionRequest) -> str:
    structure = request.structure
    return "json" if structure is not None and structure.is_json else "text"


def choice_facts(router: Router, route: Route, prompt_tokens: int) -> Attributes:
    """Whom the router chose, and what it knew then."""
    identity = route.identity.name
    return {
        "tiltyard.worker": route.worker.name,
        "tiltyard.identity": identity,
        "tiltyard.router.candidates": len(router.registry.serving(identity)),
        "tiltyard.router.unfinished_tokens": router.loads.unfinished(route.worker.name),
        "tiltyard.router.estimated_prompt_tokens": prompt_tokens,
        "tiltyard.router.expected_cached_tokens": route.cached_tokens,
    }


def worker_facts(route: Route) -> Attributes:
    """Who is asked, and where."""
    at = urlsplit(route.url)
    facts: dict[str, Attribute] = {
        "tiltyard.worker": route.worker.name,
        "tiltyard.engine": "tiltyard" if route.worker.engine is None else route.worker.engine.kind,
        genai.SERVER_ADDRESS: at.hostname or "",
    }
    if at.port is not None:
        facts[genai.SERVER_PORT] = at.port
    return facts


def answer_facts(event: GenerationFinished) -> Attributes:
    """What the log keeps of an answer, under the names that others read."""
    sampling = event.sampling
    facts: dict[str, Attribute | None] = {
        genai.RESPONSE_MODEL: event.identity,
        genai.FINISH_REASONS: [choice.finish_reason for choice in event.choices],
        genai.INPUT_TOKENS: event.prompt_tokens,
        genai.OUTPUT_TOKENS: event.completion_tokens,
        genai.CACHED_TOKENS: event.cached_tokens,
        genai.SEED: event.seed,
        genai.TEMPERATURE: sampling.temperature,
        genai.TOP_P: sampling.top_p,
        genai.TOP_K: sampling.top_k or None,
        genai.MAX_TOKENS: sampling.max_tokens,
        genai.FREQUENCY_PENALTY: sampling.frequency_penalty,
        genai.PRESENCE_PENALTY: sampling.presence_penalty,
        genai.FIRST_CHUNK: None
        if event.time_to_first_token_ms is None
        else event.time_to_first_token_ms / 1e3,
        "tiltyard.behaviour": event.behaviour,
        "tiltyard.deployment": event.deployment,
        "tiltyard.worker": event.worker,
        "tiltyard.class": event.service_class,
        "tiltyard.release": event.release,
        "tiltyard.arm": event.arm,
        "tiltyard.shadow_of": event.shadow_of,
    }
    return {name: value for name, value in facts.items() if value is not None}


def log_end(event: GenerationFinished) -> None:
    """One line of the log for a generation, where the log's level wants it."""
    if not _logger.isEnabledFor(logging.INFO):
        return
    ends = "/".join(choice.finish_reason for choice in event.choices)
    facts = {
        "generation": event.generation,
        "identity": event.identity,
        "worker": event.worker,
        "finish": ends,
        "code": event.error,
        "prompt_tokens": event.prompt_tokens,
        "completion_tokens": event.completion_tokens,
        "total_ms": round(event.total_ms, 3),
    }
    said = "%s by %s: %s in %.0f ms"
    _logger.info(said, event.generation, event.identity, ends, event.total_ms, extra=fields(facts))


def tell_words(
    span: Span,
    tracing: Tracing,
    caller: Caller,
    event: GenerationFinished,
    *,
    blind: bool,
    words: tuple[Json, Json],
) -> None:
    """Put request and answer, as served, on a span where the settings and the tenant's terms both allow that.

    Never a voter's (`blind`), whose consent names no such place; never where the tenant keeps no words; and not where personal
    data was found and left in its place (`tag`). Under `redact` they are the words after redaction.
    """
    if not tracing.content or blind or not caller.terms.keep_content:
        return
    if event.policy == "tag" and event.found:
        return
    asked, said = (cast(Mapping[str, Json], one) for one in words)
    span.set(
        {
            genai.INPUT_MESSAGES: json.dumps(_input(asked), ensure_ascii=False),
            genai.OUTPUT_MESSAGES: json.dumps(_output(said), ensure_ascii=False),
        }
    )


def _input(asked: Mapping[str, Json]) -> Json:
    messages = asked.get("messages")
    if messages is None:
        return [{"role": "user", "parts": [{"type": "text", "content": asked.get("prompt")}]}]
    return [_message(cast(Mapping[str, Json], message)) for message in cast(list[Json], messages)]


def _message(message: Mapping[str, Json]) -> Json:
    parts: list[Json] = []
    if (content := message.get("content")) is not None:
        parts.append({"type": "text", "content": content})
    for call in cast(list[Mapping[str, Json]], message.get("tool_calls") or []):
        function = cast(Mapping[str, Json], call["function"])
        parts.append({"type": "tool_call", "id": call.get("id"), **function})
    return {"role": message["role"], "parts": parts}


def _output(said: Mapping[str, Json]) -> Json:
    return [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": choice["text"]}],
            "finish_reason": choice["finish_reason"],
        }
        for choice in cast(list[Mapping[str, Json]], said["choices"])
    ]

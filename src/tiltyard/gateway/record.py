"""What the event log and the vault keep of a request: from the worker's own facts, or from what had come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import NamedTuple

from tiltyard.events.schema import (
    ChoiceOutcome,
    DataPolicy,
    FinishReason,
    GenerationFinished,
    StructureRef,
    ToolRef,
    ToolsRef,
)
from tiltyard.gateway.attempt import PromptFacts
from tiltyard.gateway.collect import Collected, Endpoint
from tiltyard.identity.canonical import Json
from tiltyard.router.router import Route
from tiltyard.router.split import Drawn
from tiltyard.wire.openai import ChatCompletionRequest, CompletionRequest
from tiltyard.wire.terms import ServiceClass
from tiltyard.wire.worker import FinishedAnswer

WORKERS_OWN = frozenset(
    {
        "behaviour", "deployment", "sampling", "seed", "prompt_tokens", "cached_tokens", "completion_tokens",
        "prompt_token_digest", "queue_ms", "prefill_ms", "decode_ms", "time_to_first_token_ms",
        "prefill_work", "decode_work", "peak_kv_blocks", "drafted_tokens", "accepted_tokens",
    }
)  # fmt: skip
"""Fields that an event takes over from `FinishedAnswer` as they are."""


class Ending(NamedTuple):
    """How a request ended, as the gateway saw it; times count from its arrival here."""

    finish: FinishReason
    error: str | None
    total_ms: float
    first_token_ms: float | None


class Asked(NamedTuple):
    """What was asked, and of whom."""

    generation: str
    endpoint: Endpoint
    request: ChatCompletionRequest | CompletionRequest
    seed: int
    route: Route
    prompt: PromptFacts
    service_class: ServiceClass
    api_key: str | None = None
    drawn: Drawn = Drawn("")
    shadow_of: str | None = None
    policy: DataPolicy = "keep"
    found: Mapping[str, int] = MappingProxyType({})


def said(collected: Collected, ending: Ending) -> Json:
    """The answers for the vault, token by token as far as they are known."""
    if (finished := collected.finished) is not None:
        choices = [_choice(c.index, c.text, list(c.token_ids), c.finish_reason) for c in finished.choices]
    else:
        choices = [
            _choice(c.index, c.written, c.token_ids, c.finish_reason or ending.finish)
            for c in collected.choices
        ]
    for choice, came in zip(choices, collected.choices, strict=True):
        if came.calls:  # read from the text, with ids that a conversation goes on from
            choice["message"] = came.message
    return {"choices": choices}


def _choice(index: int, text: str, token_ids: list[int], finish_reason: str) -> dict[str, Json]:
    return {"index": index, "text": text, "token_ids": token_ids, "finish_reason": finish_reason}


def event_of(asked: Asked, collected: Collected, ending: Ending) -> GenerationFinished:
    """The event, still without its references into the vault."""
    request, identity, finished = asked.request, asked.route.identity, collected.finished
    facts = (
        _facts_so_far(asked, collected, ending)
        if finished is None
        else _worker_facts(finished, collected, ending)
    )
    return GenerationFinished.model_validate(
        {
            "generation": asked.generation,
            "endpoint": asked.endpoint,
            "alias": request.model,
            "identity": identity.name,
            "worker": asked.route.worker.name,
            "service_class": asked.service_class,
            "api_key": asked.api_key,
            "arm": asked.drawn.arm,
            "release": asked.drawn.release,
            "diverted_from": asked.drawn.diverted_from,
            "shadow_of": asked.shadow_of,
            "policy": asked.policy,
            "found": dict(asked.found),
            "prompt": None,
            "response": None,
            **_decoding(request, None if finished is None else finished.structure_engine),
            "tools": _tools(request, None if finished is None else finished.structure_engine),
            "n": request.n,
            "stream": request.stream,
            "error": ending.error,
            "total_ms": ending.total_ms,
            **facts,
        }
    )


def _decoding(
    request: ChatCompletionRequest | CompletionRequest, structure_engine: str | None
) -> dict[str, object]:
    """Every member of `Decoding` under its own name, but the words of a structure: they are in the vault."""
    decoding = request.decoding
    members: dict[str, object] = {item.name: getattr(decoding, item.name) for item in fields(decoding)}
    members["logit_bias"] = request.logit_bias
    if (structure := decoding.structure) is not None:
        members["structure"] = StructureRef(
            kind=structure.kind, digest=structure.digest, engine=structure_engine
        )
    return members


def _tools(request: ChatCompletionRequest | CompletionRequest, engine: str | None) -> ToolsRef | None:
    use = request.tool_use if isinstance(request, ChatCompletionRequest) else None
    if use is None:
        return None
    return ToolsRef(
        functions=tuple(ToolRef(name=t.function.name, side_effects=t.side_effects) for t in use.tools),
        choice=use.choice,
        name=use.name,
        only=use.only,
        parallel=use.parallel,
        digest=use.digest,
        engine=engine,
    )


def _worker_facts(finished: FinishedAnswer, collected: Collected, ending: Ending) -> Mapping[str, object]:
    choices = tuple(
        ChoiceOutcome(
            index=c.index,
            finish_reason=c.finish_reason,
            stop_match=c.stop_match,
            completion_tokens=len(c.token_ids) if c.completion_tokens is None else c.completion_tokens,
            called=collected.choices[c.index].called,
        )
        for c in finished.choices
    )
    facts = {**finished.model_dump(include=set(WORKERS_OWN)), "choices": choices}
    if finished.time_to_first_token_ms is None:
        facts["time_to_first_token_ms"] = ending.first_token_ms  # an engine of another kind: as we saw it
    return facts


def _facts_so_far(asked: Asked, collected: Collected, ending: Ending) -> Mapping[str, object]:
    """What is known of an answer whose last frame never came."""
    identity = asked.route.identity
    choices = tuple(
        ChoiceOutcome(
            index=c.index,
            finish_reason=c.finish_reason or ending.finish,
            completion_tokens=c.tokens,
            called=c.called,
        )
        for c in collected.choices
    )
    return {
        "behaviour": identity.behaviour,
        "deployment": identity.deployment,
        "sampling": asked.request.effective_sampling(identity.declaration.sampling),
        "seed": asked.seed,
        "choices": choices,
        "prompt_tokens": asked.prompt.tokens,
        "cached_tokens": asked.prompt.cached_tokens,
        "prompt_token_digest": asked.prompt.token_digest,
        "completion_tokens": sum(choice.completion_tokens for choice in choices),
        "time_to_first_token_ms": ending.first_token_ms,
    }

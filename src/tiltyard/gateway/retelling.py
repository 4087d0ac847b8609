"""Idempotency keys in the event log: which generation a key stands for, and its answer as it was given."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import orjson

from tiltyard.errors import Conflict, ContentMissing
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.telling import Asking, KeyReused
from tiltyard.identity.canonical import Json
from tiltyard.wire.answers import usage_json
from tiltyard.wire.openai import ChatCompletionRequest, CompletionRequest
from tiltyard.wire.phrasing import AnswerEnd, Chunk

KEEP_US = 24 * 3600 * 1_000_000
"""How long a key stands for its answer."""
MOST_ATTEMPTS = 64
KEPT = "idempotency"
"""The member of a vaulted prompt that tells which request a key came with."""


@dataclass(frozen=True)
class Given:
    """An answer that the log has."""

    answer: Chunk
    end: AnswerEnd


def generation_of(log_id: str, tenant: str, key: str, attempt: int) -> str:
    """The generation that a key stands for: derived, so that the log itself refuses a second one."""
    name = orjson.dumps([log_id, tenant, key, attempt])
    return "gen_" + hashlib.sha256(name).hexdigest()[:32]


def look_up(
    log: EventLog, asking: Asking, asked: ChatCompletionRequest | CompletionRequest
) -> tuple[str, Given | None]:
    """The generation of a key, and its answer if it was given in the last day. Blocks.

    Attempts that were cancelled or failed do not count. Raises `KeyReused`, and `Conflict` when the answer
    cannot be given again as it was.
    """
    for attempt in range(MOST_ATTEMPTS):
        generation = generation_of(log.id, asking.tenant, asking.key or "", attempt)
        stored = log.find(GenerationFinished, subject=generation)
        if stored is None:
            return generation, None
        event = stored.data
        if (
            not isinstance(event, GenerationFinished)
            or event.error is not None
            or any(choice.finish_reason == "cancelled" for choice in event.choices)
            or stored.time_us < time.time_ns() // 1000 - KEEP_US
        ):
            continue
        if event.prompt is None or event.response is None:
            raise Conflict(
                f"the Idempotency-Key was answered by {generation}, whose words were not to be kept; send a new key",
                param="idempotency-key",
                code="answer_not_kept",
            )
        words = orjson.loads(log.own_words("gateway/retelling").read(event.prompt))
        kept = cast(Mapping[str, Json], words.get(KEPT) or {})
        if kept.get("digest") != asking.digest:
            raise KeyReused(
                "the Idempotency-Key was used with another request in the last 24 hours; send a new key",
                param="idempotency-key",
            )
        return generation, _given(log, event, kept, asked)
    raise Conflict("this Idempotency-Key has failed too often; send a new one", param="idempotency-key")


def _given(
    log: EventLog,
    event: GenerationFinished,
    kept: Mapping[str, Json],
    asked: ChatCompletionRequest | CompletionRequest,
) -> Given:
    if asked.logprobs or asked.prompt_logprobs is not None or getattr(asked, "echo", False):
        raise Conflict(
            f"the Idempotency-Key was answered by {event.generation}; its log-probabilities and its echo were not "
            "kept, so it cannot be given again. Send a new key.",
            param="idempotency-key",
            code="answer_not_kept",
        )
    return given_again(log, event, created=kept.get("created"), chat=isinstance(asked, ChatCompletionRequest))


def given_again(log: EventLog, event: GenerationFinished, *, created: Json, chat: bool) -> Given:
    """A recorded answer in the shape of a whole one; raises `ContentMissing` when its words are gone. Blocks."""
    if event.response is None:
        raise ContentMissing(f"the words of {event.generation} were not to be kept")
    said = orjson.loads(log.own_words("gateway/retelling").read(event.response))["choices"]
    choices: list[Json] = []
    for choice in said:
        body: dict[str, Json] = {"text": choice["text"]}
        if chat:
            words: Json = {"role": "assistant", "content": choice["text"], "refusal": None}
            body = {"message": choice.get("message") or words}
        choices.append(
            {"index": choice["index"], **body, "logprobs": None, "finish_reason": choice["finish_reason"]}
        )
    usage = usage_json(event.prompt_tokens, event.completion_tokens, event.cached_tokens)
    answer: Chunk = {
        "id": event.generation,
        "created": created,
        "model": event.identity,
        "system_fingerprint": event.behaviour,
        "object": "chat.completion" if chat else "text_completion",
        "choices": choices,
        "usage": cast(Json, usage),
    }
    first = event.choices[0]
    return Given(answer, AnswerEnd(first.finish_reason, first.stop_match, usage))


def as_chunks(answer: Chunk, *, include_usage: bool, continuous_usage: bool = False) -> list[Chunk]:
    """A whole answer as the frames of a stream: all of it, then its usage."""
    choices: list[Json] = []
    for choice in cast(Sequence[Mapping[str, Json]], answer["choices"]):
        rest = {name: member for name, member in choice.items() if name != "message"}
        if (message := choice.get("message")) is not None:
            said = cast(Mapping[str, Json], message)
            delta = {**said}
            if calls := cast(Sequence[Mapping[str, Json]], said.get("tool_calls") or ()):
                delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
            rest["delta"] = delta
        choices.append(rest)
    kind = "chat.completion.chunk" if answer["object"] == "chat.completion" else "text_completion"
    head: Chunk = {name: member for name, member in answer.items() if name != "usage"} | {"object": kind}
    told: Chunk = {"usage": answer["usage"] if continuous_usage else None} if include_usage else {}
    return [{**head, "choices": choices, **told}, {**head, "choices": [], "usage": answer["usage"]}]

"""What an answer looks like on the wire: OpenAI's shapes, as bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import orjson

from tiltyard.wire.answers import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenLogprob,
    UsageJson,
    usage_json,
)
from tiltyard.wire.sse import frame
from tiltyard.worker.answer import Answer, ScoredToken, Update


class Framing(ABC):
    """One endpoint's shapes for one answer; `created_s` is Unix time."""

    chunk_object: str
    whole_object: str

    def __init__(self, answer: Answer, created_s: int) -> None:
        self._answer = answer
        self._head = {
            "id": answer.plan.generation,
            "created": created_s,
            "model": answer.plan.identity,
            "system_fingerprint": answer.plan.behaviour,
        }
        self._scored: list[list[ScoredToken]] = [[] for _ in answer.choices]

    @abstractmethod
    def _chunk_choice(self, update: Update) -> dict[str, object]: ...

    @abstractmethod
    def _whole_choice(self, index: int, text: str) -> dict[str, object]: ...

    def update(self, update: Update) -> bytes:
        """One frame of the stream.

        The gateway takes `token_ids` out: an answer that is cancelled never gets its last frame, and what
        came of it must still be known token by token to be replayed.
        """
        return self._frame({"choices": [self._chunk_choice(update)], "usage": None})

    def last(self) -> bytes:
        """The last frame: usage, and the facts that the gateway keeps."""
        facts = self._answer.outcome().model_dump(mode="json")
        return self._frame({"choices": [], "usage": self._usage(), "tiltyard": facts})

    def remember(self, update: Update) -> None:
        """Keep what the whole answer will need."""
        self._scored[update.index].extend(update.scored)

    def whole(self) -> bytes:
        """The whole answer, for a request that did not ask for a stream."""
        choices = [
            {**self._whole_choice(c.index, c.text), "index": c.index, "finish_reason": c.finish_reason}
            for c in self._answer.choices
        ]
        facts = self._answer.outcome().model_dump(mode="json")
        return orjson.dumps(
            {
                **self._head,
                "object": self.whole_object,
                "choices": choices,
                "usage": self._usage(),
                "tiltyard": facts,
            }
        )

    @property
    def _wants_scores(self) -> bool:
        return self._answer.plan.top_logprobs is not None

    def _frame(self, body: dict[str, object]) -> bytes:
        return frame(orjson.dumps({**self._head, "object": self.chunk_object, **body}))

    def _usage(self) -> UsageJson:
        answer = self._answer
        return usage_json(len(answer.plan.prompt), answer.completion_tokens, answer.cached_tokens or 0)


class ChatFraming(Framing):
    """`/v1/chat/completions`."""

    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def _chunk_choice(self, update: Update) -> dict[str, object]:
        delta: dict[str, object] = {"content": update.text} if update.text or update.first else {}
        if update.first:
            delta = {"role": "assistant", **delta}
        return {
            "index": update.index,
            "delta": delta,
            "logprobs": chat_logprobs(update.scored) if self._wants_scores else None,
            "finish_reason": update.finish_reason,
            "token_ids": update.token_ids,
        }

    def _whole_choice(self, index: int, text: str) -> dict[str, object]:
        return {
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": chat_logprobs(self._scored[index]) if self._wants_scores else None,
        }


class CompletionFraming(Framing):
    """`/v1/completions`."""

    chunk_object = "text_completion"
    whole_object = "text_completion"

    def _chunk_choice(self, update: Update) -> dict[str, object]:
        return {
            "index": update.index,
            "text": update.text,
            "logprobs": completion_logprobs(update.scored) if self._wants_scores else None,
            "finish_reason": update.finish_reason,
            "token_ids": update.token_ids,
        }

    def _whole_choice(self, index: int, text: str) -> dict[str, object]:
        return {
            "text": text,
            "logprobs": completion_logprobs(self._scored[index]) if self._wants_scores else None,
        }


def chat_logprobs(scored: Sequence[ScoredToken]) -> ChatLogprobs:
    """`logprobs` of a chat choice; `token` is readable, `bytes` exact."""
    content: list[TokenLogprob] = [
        {
            "token": _readable(s.spelling),
            "logprob": s.logprob,
            "bytes": list(s.spelling),
            "top_logprobs": [
                {"token": _readable(spelling), "logprob": value, "bytes": list(spelling)}
                for spelling, value in s.top
            ],
        }
        for s in scored
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(scored: Sequence[ScoredToken]) -> CompletionLogprobs:
    """`logprobs` of a plain completion; offsets count characters of the completion."""
    return {
        "tokens": [_readable(s.spelling) for s in scored],
        "token_logprobs": [s.logprob for s in scored],
        "top_logprobs": [{_readable(spelling): value for spelling, value in s.top} for s in scored],
        "text_offset": [s.text_offset for s in scored],
    }


def _readable(spelling: bytes) -> str:
    return spelling.decode("utf-8", errors="replace")

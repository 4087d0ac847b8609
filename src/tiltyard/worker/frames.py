"""What an answer looks like on the wire: OpenAI's shapes, as bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import orjson

from tiltyard.engine.request import PromptScores
from tiltyard.models.tool_parser import CallDelta
from tiltyard.wire.answers import (
    ChatLogprobs,
    CompletionLogprobs,
    Delta,
    Message,
    PromptLogprob,
    TokenLogprob,
    ToolCallDelta,
    UsageJson,
    WholeFunction,
    WholeToolCall,
    usage_json,
)
from tiltyard.wire.sse import frame
from tiltyard.worker.answer import Answer, ScoredToken, Update
from tiltyard.worker.prompt_frames import echoed, echoed_logprobs, prompt_logprobs


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
        self._prompt_scores: dict[int, PromptScores] = {}

    @abstractmethod
    def _chunk_choice(self, update: Update) -> dict[str, object]: ...

    @abstractmethod
    def _whole_choice(self, index: int, text: str) -> dict[str, object]: ...

    def update(self, update: Update) -> bytes:
        """One frame of the stream.

        The gateway takes `token_ids` out: an answer that is cancelled never gets its last frame, and what
        came of it must still be known token by token to be replayed.
        """
        head: dict[str, object] = {}
        if update.prompt_scores is not None:
            self._prompt_scores[update.index] = update.prompt_scores
            head = self._chunk_head(update.index)
        return self._frame({**head, "choices": [self._chunk_choice(update)], "usage": None})

    def last(self) -> bytes:
        """The last frame: usage, and the facts that the gateway keeps."""
        facts = self._answer.outcome().model_dump(mode="json")
        return self._frame({"choices": [], "usage": self._usage(), "tiltyard": facts})

    def remember(self, update: Update) -> None:
        """Keep what the whole answer will need."""
        self._scored[update.index].extend(update.scored)
        if update.prompt_scores is not None:
            self._prompt_scores[update.index] = update.prompt_scores

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
                **self._chunk_head(0),
                "object": self.whole_object,
                "choices": choices,
                "usage": self._usage(),
                "tiltyard": facts,
            }
        )

    def _chunk_head(self, index: int) -> dict[str, object]:
        """What stands beside the choices."""
        return {}

    def _prompt_logprobs(self, index: int) -> list[PromptLogprob | None] | None:
        plan, scores = self._answer.plan, self._prompt_scores.get(index)
        if plan.shown_prompt_logprobs is None or scores is None:
            return None
        return prompt_logprobs(
            plan.prompt, scores, plan.shown_prompt_logprobs, self._spell, start=plan.prompt_logprobs_from
        )

    def _spell(self, token: int) -> bytes:
        return self._answer.spelling.token_bytes(token)

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

    def __init__(self, answer: Answer, created_s: int) -> None:
        super().__init__(answer, created_s)
        self._content: list[list[str]] = [[] for _ in answer.choices]
        self._calls: list[list[WholeToolCall]] = [[] for _ in answer.choices]

    def _chunk_head(self, index: int) -> dict[str, object]:
        # vLLM's place for it; the same for all choices.
        scores = self._prompt_logprobs(index) if index == 0 else None
        return {} if scores is None else {"prompt_logprobs": scores}

    def _chunk_choice(self, update: Update) -> dict[str, object]:
        delta: Delta = {}
        if update.first:
            delta["role"] = "assistant"
            # Where there are tools, nothing said may stay nothing said.
            delta["content"] = update.text or ("" if update.raw is None else None)
            delta["refusal"] = None  # as OpenAI's first delta has it
        elif update.text:
            delta["content"] = update.text
        if update.calls:
            delta["tool_calls"] = [self._call_delta(update.index, call) for call in update.calls]
        choice: dict[str, object] = {
            "index": update.index,
            "delta": delta,
            "logprobs": chat_logprobs(update.scored) if self._wants_scores else None,
            "finish_reason": update.finish_reason,
            "token_ids": update.token_ids,
        }
        if update.raw is not None:
            choice["raw"] = update.raw  # for the gateway, as `token_ids`
        return choice

    def _call_delta(self, choice: int, call: CallDelta) -> ToolCallDelta:
        if call.name is None:
            return {"index": call.number, "function": {"arguments": call.arguments}}
        return {
            "index": call.number,
            "id": self._call_id(choice, call.number),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }

    def _call_id(self, choice: int, number: int) -> str:
        plan = self._answer.plan
        return "" if plan.calls is None else plan.calls.format.call_id(plan.generation, choice, number)

    def remember(self, update: Update) -> None:
        """Keep what the whole answer will need."""
        super().remember(update)
        self._content[update.index].append(update.text)
        for number, name, arguments in update.calls:
            calls = self._calls[update.index]
            if name is None:
                calls[number]["function"]["arguments"] += arguments
            else:
                function: WholeFunction = {"name": name, "arguments": arguments}
                calls.append(
                    {"id": self._call_id(update.index, number), "type": "function", "function": function}
                )

    def _whole_choice(self, index: int, text: str) -> dict[str, object]:
        content, calls = "".join(self._content[index]), self._calls[index]
        message: Message = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message["content"] = content or None
            message["tool_calls"] = calls
        return {
            "message": message,
            "logprobs": chat_logprobs(self._scored[index]) if self._wants_scores else None,
        }


class CompletionFraming(Framing):
    """`/v1/completions`."""

    chunk_object = "text_completion"
    whole_object = "text_completion"

    def __init__(self, answer: Answer, created_s: int) -> None:
        super().__init__(answer, created_s)
        plan = answer.plan
        self._echo = echoed(plan.prompt, self._spell) if plan.echo else None

    def _chunk_choice(self, update: Update) -> dict[str, object]:
        choice = {
            "index": update.index,
            "text": update.text,
            "logprobs": self._logprobs(update.index, update.scored, begins=update.first),
            "finish_reason": update.finish_reason,
            "token_ids": update.token_ids,
        }
        if update.first and self._echo is not None:
            choice["text"] = self._echo.text + update.text
            choice["echoed_characters"] = len(self._echo.text)  # for the gateway, as `token_ids`
        if update.prompt_scores is not None and (scores := self._prompt_logprobs(update.index)) is not None:
            choice["prompt_logprobs"] = scores
        return choice

    def _whole_choice(self, index: int, text: str) -> dict[str, object]:
        choice: dict[str, object] = {
            "text": text if self._echo is None else self._echo.text + text,
            "logprobs": self._logprobs(index, self._scored[index], begins=True),
        }
        if (scores := self._prompt_logprobs(index)) is not None:
            choice["prompt_logprobs"] = scores
        return choice

    def _logprobs(
        self, index: int, scored: Sequence[ScoredToken], *, begins: bool
    ) -> CompletionLogprobs | None:
        if not self._wants_scores:
            return None
        if self._echo is None:
            return completion_logprobs(scored)
        answer = completion_logprobs(scored, offset=len(self._echo.text))
        if not begins or (scores := self._prompt_scores.get(index)) is None:
            return answer
        top = self._answer.plan.top_logprobs or 0
        prompt = echoed_logprobs(self._answer.plan.prompt, scores, top, self._echo, self._spell)
        return {
            "tokens": prompt["tokens"] + answer["tokens"],
            "token_logprobs": prompt["token_logprobs"] + answer["token_logprobs"],
            "top_logprobs": prompt["top_logprobs"] + answer["top_logprobs"],
            "text_offset": prompt["text_offset"] + answer["text_offset"],
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


def completion_logprobs(scored: Sequence[ScoredToken], offset: int = 0) -> CompletionLogprobs:
    """`logprobs` of a plain completion; offsets count characters of the text, of which `offset` came before."""
    return {
        "tokens": [_readable(s.spelling) for s in scored],
        "token_logprobs": [s.logprob for s in scored],
        "top_logprobs": [
            _with_own({_readable(spelling): value for spelling, value in s.top}, s.spelling, s.logprob)
            for s in scored
        ],
        "text_offset": [offset + s.text_offset for s in scored],
    }


def _with_own(top: dict[str, float], own: bytes, logprob: float) -> dict[str, float]:
    """The chosen token is always among the likeliest, as OpenAI has it."""
    top.setdefault(_readable(own), logprob)
    return top


def _readable(spelling: bytes) -> str:
    return spelling.decode("utf-8", errors="replace")

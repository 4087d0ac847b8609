"""What another engine answers, frame by frame, made what a worker of ours would have sent.

Servers place usage differently (a frame of its own, the last one with choices, or none: LiteLLM #36168, LiteLLM #28735), end
aborted answers as if they were whole (vLLM #57082, vLLM #52852), and leave members out or null. Here all of that becomes one
shape: frames of choices without usage, then one last frame with the usage and the facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from tiltyard.errors import UpstreamFailed
from tiltyard.identity.canonical import Json, digest_of_json
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.wire.answers import usage_json
from tiltyard.wire.worker import FinishedAnswer, FinishedChoice, IdentityStatus
from tiltyard.worker.adapters.facts import whole

Chunk = dict[str, Json]
Finish = Literal["stop", "length", "tool_calls", "cancelled", "failed"]
FINISHES: Mapping[str, Finish] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "cancelled",
}
"""What an end is called; what is not here is no good end."""
LONGEST_TOKEN_CHARACTERS = 16
"""Text of which an engine says no token ids is surely longer than n tokens with n frames and n times as many characters."""


@dataclass
class _Choice:
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    frames: int = 0
    characters: int = 0
    overrun: bool = False
    """Whether it was ended here, because it went on beyond its limit."""
    finish: Finish | None = None
    stop_match: str | None = None


class ForeignAnswer:
    """One answer of another engine as it comes."""

    def __init__(
        self,
        worker: str,
        identity: IdentityStatus,
        *,
        choices: int,
        sampling: DefaultSampling,
        seed: int,
        prompt_tokens: int,
    ) -> None:
        """`prompt_tokens` is our own estimate, for a server that says no usage."""
        self._worker = worker
        self._identity = identity
        self._sampling = sampling
        self._seed = seed
        self._choices = [_Choice() for _ in range(choices)]
        self.prompt_tokens = prompt_tokens
        """The estimate."""
        self._most_tokens = sampling.max_tokens
        self._usages: list[Mapping[str, Json]] = []
        self._prompt_ids: list[int] = []
        self._timings: Mapping[str, Json] = {}

    @property
    def whole(self) -> bool:
        """Whether every answer has ended, by itself or because it went on beyond its limit."""
        return all(choice.finish is not None for choice in self._choices)

    @property
    def overrun(self) -> bool:
        """Whether all there is to come was cut off here: the engine does not stop by itself."""
        return self.whole and any(choice.overrun for choice in self._choices)

    def take(self, chunk: Mapping[str, Json]) -> Chunk | None:
        """One frame of theirs as one of ours; `None` where nothing of it is for the client.

        What comes after an answer's end is not part of it, and one that goes on beyond `max_tokens` ends there: not every
        server honours it, and the client asked for no more and pays for no more.

        Raises `UpstreamFailed` for an answer that was aborted or breaks the protocol.
        """
        if isinstance(usage := chunk.get("usage"), Mapping):
            self._usages.append(usage)
        if (prompt := chunk.get("prompt_token_ids")) is not None:
            self._prompt_ids = self._ids(prompt)
        if isinstance(timings := chunk.get("timings"), Mapping):
            self._timings = timings
        entries = chunk.get("choices")
        if not isinstance(entries, list):
            raise self._unreadable("has no choices")
        choices: list[Json] = [ours for entry in entries if (ours := self._choice(entry)) is not None]
        if not choices:
            return None
        kept: Chunk = {name: value for name, value in chunk.items() if name in ("object", "prompt_logprobs")}
        return {**kept, "choices": choices}

    def last(self) -> Chunk:
        """The last frame; raises `UpstreamFailed` if an answer came to no end."""
        if not self.whole:
            raise UpstreamFailed(
                f"worker {self._worker} ended the stream without saying how the answer ended; it may not be whole",
                code="stream_unreadable",
            )
        usage = self._usages[-1] if self._usages else {}
        prompt = whole(usage.get("prompt_tokens"))
        completion = whole(usage.get("completion_tokens"))
        if len(self._usages) == len(self._choices) and completion is not None:  # llama.cpp: one a choice
            completion = sum(whole(one.get("completion_tokens")) or 0 for one in self._usages)
        counted = [self._counted(choice) for choice in self._choices]
        prompt = self.prompt_tokens if prompt is None else prompt
        if completion is None or any(choice.overrun for choice in self._choices):
            completion = sum(counted)
        if len(counted) == 1:
            counted = [completion]
        cached = self._cached(usage)
        finished = FinishedAnswer(
            identity=self._identity.name,
            behaviour=self._identity.behaviour,
            deployment=self._identity.deployment,
            sampling=self._sampling,
            seed=self._seed,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            prompt_token_digest=digest_of_json(self._prompt_ids) if self._prompt_ids else None,
            choices=tuple(
                FinishedChoice(
                    index=index,
                    text="".join(choice.text),
                    token_ids=tuple(choice.token_ids),
                    finish_reason=choice.finish or "stop",
                    stop_match=choice.stop_match,
                    completion_tokens=tokens,
                )
                for index, (choice, tokens) in enumerate(zip(self._choices, counted, strict=True))
            ),
            queue_ms=None,
            prefill_ms=_milliseconds(self._timings.get("prompt_ms")),
            decode_ms=_milliseconds(self._timings.get("predicted_ms")),
            time_to_first_token_ms=None,
            peak_kv_blocks=None,
        )
        told = cast(Json, usage_json(prompt, completion, cached))
        return {"choices": [], "usage": told, "tiltyard": finished.model_dump(mode="json")}

    def _counted(self, choice: _Choice) -> int:
        tokens = len(choice.token_ids) or choice.frames
        return min(tokens, self._most_tokens or tokens) if choice.overrun else tokens

    def _choice(self, entry: Json) -> Json:
        if not isinstance(entry, dict):
            raise self._unreadable("has a choice that is no object")
        index = entry.get("index", 0)
        if not isinstance(index, int) or not 0 <= index < len(self._choices):
            raise self._unreadable(f"has a choice {index!r:.20} that nobody asked for")
        choice = self._choices[index]
        if choice.finish is not None:
            return None
        if self._is_full(choice) and _says_more(entry):
            choice.overrun, choice.finish = True, "length"
            nothing: Chunk = {"delta": {}} if "delta" in entry else {"text": ""}
            return {"index": index, "logprobs": None, "finish_reason": "length", **nothing}
        ours: Chunk = {"index": index, "logprobs": entry.get("logprobs"), "finish_reason": None}
        if isinstance(delta := entry.get("delta"), dict):
            ours["delta"] = self._delta(choice, delta)
        elif "delta" not in entry:
            text = entry.get("text") or ""
            ours["text"] = text
            self._said(choice, text)
        else:
            ours["delta"] = {}
        for name in ("prompt_logprobs",):
            if entry.get(name) is not None:
                ours[name] = entry[name]
        if (said := entry.get("token_ids")) is not None:
            choice.token_ids += (token_ids := self._ids(said))
            ours["token_ids"] = token_ids
        if (reason := entry.get("finish_reason")) is not None:
            choice.finish = FINISHES.get(str(reason))
            if choice.finish is None:
                raise UpstreamFailed(
                    f"worker {self._worker} gave the answer up: it ended with {reason!r:.40}",
                    code="worker_aborted",
                )
            ours["finish_reason"] = choice.finish
            match = entry.get("stop_reason", entry.get("matched_stop"))
            choice.stop_match = match if isinstance(match, str) else None
        return ours

    def _is_full(self, choice: _Choice) -> bool:
        most = self._most_tokens
        if most is None:
            return False
        if choice.token_ids:
            return len(choice.token_ids) >= most
        return choice.frames >= most and choice.characters >= most * LONGEST_TOKEN_CHARACTERS

    def _delta(self, choice: _Choice, delta: Mapping[str, Json]) -> Chunk:
        ours: Chunk = {name: value for name, value in delta.items() if value is not None}
        self._said(choice, ours.get("content"))
        if isinstance(calls := ours.pop("tool_calls", None), list) and calls:
            choice.frames += 1
            ours["tool_calls"] = [self._call(call) for call in calls]
        return ours

    def _call(self, call: Json) -> Json:
        """A piece of a call in OpenAI's shape: its first has id, type and name, every one has arguments."""
        if not isinstance(call, dict):
            raise self._unreadable("has a call that is no object")
        said = {name: value for name, value in call.items() if value is not None}
        function = said.get("function")
        parts: Mapping[str, Json] = function if isinstance(function, dict) else {}
        words = (said.get("id", ""), parts.get("name") or "", parts.get("arguments") or "")
        if not all(isinstance(word, str) for word in words) or not isinstance(said.get("index", 0), int):
            raise self._unreadable("has a call of no known shape")
        ours: Chunk = {"index": said.get("index", 0)}
        if "id" in said:
            ours |= {"id": said["id"], "type": "function"}
            ours["function"] = {"name": parts.get("name") or "", "arguments": parts.get("arguments") or ""}
        else:
            ours["function"] = {"arguments": parts.get("arguments") or ""}
        return ours

    def _ids(self, value: Json) -> list[int]:
        if not isinstance(value, list) or not all(type(i) is int and 0 <= i < 2**31 for i in value):
            raise self._unreadable("has token ids that are none")
        return cast(list[int], value)

    def _said(self, choice: _Choice, text: Json) -> None:
        if not text:
            return
        if not isinstance(text, str):
            raise self._unreadable("has content that is no text")
        choice.text.append(text)
        choice.characters += len(text)
        choice.frames += 1

    def _cached(self, usage: Mapping[str, Json]) -> int:
        details = usage.get("prompt_tokens_details")
        if isinstance(details, Mapping) and (cached := whole(details.get("cached_tokens"))) is not None:
            return cached
        return whole(self._timings.get("cache_n")) or 0

    def _unreadable(self, what: str) -> UpstreamFailed:
        return UpstreamFailed(f"worker {self._worker} sent a frame that {what}", code="stream_unreadable")


def _says_more(entry: Mapping[str, Json]) -> bool:
    delta = entry.get("delta")
    said = delta if isinstance(delta, dict) else entry
    return any(said.get(name) for name in ("content", "text", "tool_calls"))


def _milliseconds(value: Json) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value >= 0 else None

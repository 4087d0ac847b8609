"""Keeps what a stream has said so far, for the event log and for answers that are not streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from tiltyard.events.schema import FinishReason
from tiltyard.identity.canonical import Json
from tiltyard.wire.phrasing import Chunk
from tiltyard.wire.worker import FinishedAnswer

Endpoint: TypeAlias = Literal["chat.completions", "completions", "responses", "messages"]
"""By which door a request came."""
Kind: TypeAlias = Literal["chat", "completion"]
"""What a worker is asked for; every protocol's request is one of the two."""
ENDPOINT_OF: Mapping[Kind, Endpoint] = {"chat": "chat.completions", "completion": "completions"}


@dataclass
class CollectedChoice:
    """One of the `n` answers, as far as it has come."""

    index: int
    parts: list[str] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    """What the model wrote, where calls of tools are read from it."""
    calls: list[dict[str, Json]] = field(default_factory=list)
    """Calls as a whole answer shows them."""
    token_ids: list[int] = field(default_factory=list)
    frames: int = 0
    """Frames with text: about the tokens, when the worker does not tell their ids on the way."""
    finish_reason: FinishReason | None = None
    logprobs: list[Mapping[str, Json]] = field(default_factory=list)
    echo: str = ""
    """The prompt, if the client wants it in front of the text."""
    prompt_logprobs: Json = None

    @property
    def text(self) -> str:
        """The content so far."""
        return "".join(self.parts)

    @property
    def written(self) -> str:
        """The text as the model wrote it so far, calls of tools and all."""
        return "".join(self.raw or self.parts)

    @property
    def message(self) -> dict[str, Json]:
        """The assistant's message so far."""
        message: dict[str, Json] = {"role": "assistant", "content": self.text, "refusal": None}
        if self.calls:
            message |= {"content": self.text or None, "tool_calls": [*self.calls]}
        return message

    @property
    def called(self) -> tuple[str, ...]:
        """The functions called so far."""
        return tuple(cast(Mapping[str, str], call["function"])["name"] for call in self.calls)

    def take_call(self, delta: Mapping[str, Json]) -> None:
        """Put a piece of a call to what came of it before."""
        function = cast(Mapping[str, str], delta["function"])
        if "id" in delta:
            called: dict[str, Json] = {"name": function["name"], "arguments": function["arguments"]}
            self.calls.append({"id": delta["id"], "type": "function", "function": called})
        else:
            known = cast(dict[str, str], self.calls[cast(int, delta["index"])]["function"])
            known["arguments"] += function["arguments"]

    @property
    def tokens(self) -> int:
        """Tokens so far; at least the frames when their ids are not known."""
        return len(self.token_ids) or self.frames


class Collected:
    """All answers of one request."""

    def __init__(self, n: int) -> None:
        self.choices = [CollectedChoice(index) for index in range(n)]
        self.finished: FinishedAnswer | None = None
        self.usage: Mapping[str, Json] | None = None
        self.prompt_logprobs: Json = None

    def take(self, chunk: Chunk) -> int:
        """Note one frame and take our own members out of it; returns how many tokens it brought.

        Raises `KeyError`, `TypeError`, `IndexError` or `ValidationError` when it has the wrong shape.
        """
        if (member := chunk.pop("tiltyard", None)) is not None:
            self.finished = FinishedAnswer.model_validate(member, strict=False)
        if usage := chunk.get("usage"):
            self.usage = cast(Mapping[str, Json], usage)
        if (scores := chunk.get("prompt_logprobs")) is not None:
            self.prompt_logprobs = scores
        tokens = 0
        for choice in cast(Sequence[dict[str, Json]], chunk["choices"]):
            tokens += self._take_choice(choice)
        return tokens

    def _take_choice(self, choice: dict[str, Json]) -> int:
        collected = self.choices[cast(int, choice["index"])]
        delta = choice.get("delta")
        text = cast(str | None, choice.get("text") if delta is None else cast(Chunk, delta).get("content"))
        for call in cast(Sequence[Chunk], (cast(Chunk, delta).get("tool_calls") if delta else None) or ()):
            collected.take_call(call)
        if raw := cast(str | None, choice.pop("raw", None)):
            collected.raw.append(raw)
        token_ids = cast(Sequence[int], choice.pop("token_ids", None) or ())
        collected.token_ids += token_ids
        if text and (echoed := cast(int, choice.pop("echoed_characters", 0))):
            collected.echo, text = text[:echoed], text[echoed:]
        if (scores := choice.get("prompt_logprobs")) is not None:
            collected.prompt_logprobs = scores
        if text:
            collected.parts.append(text)
            collected.frames += 1
        if reason := choice.get("finish_reason"):
            collected.finish_reason = cast(FinishReason, reason)
        if logprobs := choice.get("logprobs"):
            collected.logprobs.append(cast(Mapping[str, Json], logprobs))
        return len(token_ids) or (1 if text else 0)


def whole_answer(
    collected: Collected, kind: Kind, head: Mapping[str, Json], usage: Mapping[str, Json]
) -> Chunk:
    """Put the frames together to the answer of a request that is not streamed."""
    choices: list[Json] = []
    for choice in collected.choices:
        if kind == "chat":
            body: Chunk = {"message": choice.message}
            logprobs = _joined(choice.logprobs, ("content",)) and {
                **_joined(choice.logprobs, ("content",)), "refusal": None,
            }  # fmt: skip
        else:
            body = {"text": choice.echo + choice.text}
            if choice.prompt_logprobs is not None:
                body["prompt_logprobs"] = choice.prompt_logprobs
            logprobs = _joined(choice.logprobs, ("tokens", "token_logprobs", "top_logprobs", "text_offset"))
        choices.append(
            {
                "index": choice.index,
                **body,
                "logprobs": logprobs or None,
                "finish_reason": choice.finish_reason,
            }
        )
    name = "chat.completion" if kind == "chat" else "text_completion"
    whole: Chunk = {**head, "object": name, "choices": choices, "usage": usage}
    if collected.prompt_logprobs is not None:
        whole["prompt_logprobs"] = collected.prompt_logprobs
    return whole


def _joined(pieces: Sequence[Mapping[str, Json]], names: Sequence[str]) -> dict[str, Json]:
    """Concatenate the lists of each name; a name that no piece has a list for stays null."""
    if not pieces:
        return {}
    joined: dict[str, Json] = {}
    for name in names:
        lists = [cast(Sequence[Json], value) for piece in pieces if (value := piece.get(name)) is not None]
        joined[name] = [item for items in lists for item in items] if lists else None
    return joined

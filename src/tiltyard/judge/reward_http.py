"""Reward models behind HTTP, in the shapes that vLLM and SGLang answer in.

| shape | request | the score |
| --- | --- | --- |
| `vllm-classify` | `POST /classify` with `messages` | the probability of class `label` (the last unless told); of one class, its value |
| `vllm-pooling` | `POST /pooling` with `messages` | the last number of the pooled data |
| `vllm-score` | `POST /score` with `text_1`, `text_2` | `score`: how well the answer goes with the question |
| `vllm-rerank` | `POST /rerank` with `query`, `documents` | `relevance_score` of the only document |
| `sglang` | `POST /classify` with `text` | the first number of `embedding` |
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal, get_args
from urllib.parse import urlsplit

from pydantic import JsonValue

from tiltyard.client import ModelClient, Retries
from tiltyard.errors import InvalidRequest, TiltyardError, UpstreamFailed
from tiltyard.events.schema import Side
from tiltyard.identity.canonical import Json
from tiltyard.judge.items import Item
from tiltyard.judge.reward import Kind

Shape = Literal["vllm-classify", "vllm-pooling", "vllm-score", "vllm-rerank", "sglang"]
SHAPES: tuple[Shape, ...] = get_args(Shape)
TEMPLATE = "User: {question}\n\nAssistant: {answer}"
"""How a conversation is written for a server that takes only text; a reward model wants its own chat template here."""


class HttpReward:
    """One reward model at one server."""

    kind: Kind = "http"

    def __init__(
        self,
        client: ModelClient,
        model: str,
        shape: Shape,
        *,
        label: int = -1,
        template: str = TEMPLATE,
        pin: str = "",
        retries: Retries | None = None,
    ) -> None:
        if "{question}" not in template or "{answer}" not in template:
            raise InvalidRequest(
                f"template is {template[:60]!r}; it must have {{question}} and {{answer}}", param="template"
            )
        self.name = model
        self._client = client
        self._shape = shape
        self._label = label
        self._template = template
        self._pin = pin
        self._retries = retries or Retries()

    def specification(self) -> Mapping[str, JsonValue]:
        """Server, model and how it is asked."""
        return {
            "kind": self.kind,
            "server": urlsplit(self._client.base_url).netloc.rpartition("@")[2],
            "model": self.name,
            "shape": self._shape,
            "label": self._label,
            "template": self._template if self._shape == "sglang" else "",
            "pin": self._pin,
        }

    async def score(self, item: Item, side: Side) -> float:
        """Ask for one answer's reward; raises `UpstreamFailed` (`answer_unreadable`) for a reply of another shape."""
        path, body = self._request(item, side)
        tries, waited_s = 0, 0.0
        while True:
            try:
                reply = await self._client.post(path, body)
                break
            except TiltyardError as error:
                wait_s = self._retries.wait_s(error, tries, waited_s)
                if wait_s is None:
                    raise
                tries, waited_s = tries + 1, waited_s + wait_s
                await asyncio.sleep(wait_s)
        try:
            return self._read(reply)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UpstreamFailed(
                f"{self.name} at {self._client.base_url} answered {path} in another shape than {self._shape}: "
                f"{str(reply)[:120]}",
                code="answer_unreadable",
            ) from error

    def _request(self, item: Item, side: Side) -> tuple[str, dict[str, Json]]:
        answers = item.sides[side].texts
        head: dict[str, Json] = {"model": self.name}
        if self._shape in {"vllm-classify", "vllm-pooling"}:
            messages: list[Json] = []
            for said, answer in zip(item.turns, answers, strict=True):
                messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
            return f"/{self._shape.removeprefix('vllm-')}", {**head, "messages": messages}
        *before, last = zip(item.turns, answers, strict=True)
        question = "\n\n".join([*(f"{said}\n\n{answer}" for said, answer in before), last[0]])
        if self._shape == "vllm-score":
            return "/score", {**head, "text_1": question, "text_2": last[1]}
        if self._shape == "vllm-rerank":
            return "/rerank", {**head, "query": question, "documents": [last[1]]}
        # one pass: an answer that says {question} says just that
        parts = {"{question}": question, "{answer}": last[1]}
        text = self._template
        at = sorted((text.index(mark), mark) for mark in parts)
        (first, one), (second, two) = at
        text = (
            text[:first]
            + parts[one]
            + text[first + len(one) : second]
            + parts[two]
            + text[second + len(two) :]
        )
        return "/classify", {**head, "text": [text]}

    def _read(self, reply: Json) -> float:
        if self._shape == "sglang":
            rows = reply
            if not isinstance(rows, list) or len(rows) != 1:
                raise ValueError("not one row")
            return _number(_member(_member(rows, 0), "embedding"), 0)
        if self._shape == "vllm-rerank":
            return _number([_member(_member(_member(reply, "results"), 0), "relevance_score")], 0)
        data = _member(_member(_member(reply, "data"), 0), _MEMBERS[self._shape])
        if self._shape == "vllm-score":
            return _number([data], 0)
        if self._shape == "vllm-pooling":
            while isinstance(data, list) and data and isinstance(data[-1], list):
                data = data[-1]  # a row a token: the last one is about the whole
            return _number(data, -1)
        return _number(data, self._label)


_MEMBERS: Mapping[str, str] = {"vllm-classify": "probs", "vllm-pooling": "data", "vllm-score": "score"}


def _member(of: Json, name: str | int) -> Json:
    if isinstance(name, str) and isinstance(of, Mapping):
        return of[name]
    if isinstance(name, int) and isinstance(of, list):
        one: Json = of[name]
        return one
    raise TypeError(name)


def _number(of: Json, place: int) -> float:
    value = _member(of, place)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return float(value)

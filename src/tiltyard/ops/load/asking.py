"""One streamed request to any server that speaks the OpenAI protocol, with the time of every piece of its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import httpx2
import orjson

from tiltyard.errors import TiltyardError
from tiltyard.identity.canonical import Json
from tiltyard.ops.load.samples import Sample
from tiltyard.wire.sse import SseParser
from tiltyard.wire.terms import HEADER_CLASS, ServiceClass

Clock = Callable[[], float]
Endpoint = Literal["chat", "completions"]
PATHS: Final[Mapping[Endpoint, str]] = {"chat": "/chat/completions", "completions": "/completions"}
TEXTS: Final = ("content", "reasoning_content", "reasoning", "tool_calls")
"""Fields of a chat's delta that hold tokens, as vLLM, SGLang, llama.cpp and OpenAI name them."""


@dataclass(frozen=True)
class Target:
    """A server and what is asked of it."""

    url: str
    """Up to `/v1`, with it."""
    model: str
    endpoint: Endpoint = "chat"
    exact: bool = True
    """Whether answers have exactly the length that is asked for: `ignore_eos`, which OpenAI itself refuses."""
    api_key: str | None = None
    fields: Mapping[str, Json] = field(default_factory=dict)
    """More fields of every request."""
    timeout_s: float = 600.0


@dataclass
class Answered:
    """One request's times and its text."""

    sample: Sample
    text: str


class Asking:
    """An open connection pool to one server."""

    def __init__(self, target: Target, clock: Clock = time.monotonic) -> None:
        self.target = target
        self._clock = clock
        headers = {"accept-encoding": "identity", "content-type": "application/json"}
        if target.api_key is not None:
            headers["authorization"] = f"Bearer {target.api_key}"
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(target.timeout_s, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            headers=headers,
            trust_env=False,  # a proxy would be measured too
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def body(self, messages: list[dict[str, str]], answer_tokens: int) -> bytes:
        """What is sent for a conversation, the last message of which is the user's."""
        body: dict[str, object] = {
            "model": self.target.model,
            "max_tokens": answer_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.target.exact else {}),
            **self.target.fields,
        }
        if self.target.endpoint == "chat":
            body["messages"] = messages
        else:
            body["prompt"] = "\n".join(message["content"] for message in messages)
        return orjson.dumps(body)

    async def ask(
        self,
        body: bytes,
        *,
        began: float,
        intended_s: float,
        prompt_tokens: int,
        session: str = "",
        turn: int = 0,
        service_class: ServiceClass | None = None,
    ) -> Answered:
        """Send one; never raises for what the server does: a failure is a sample with the kind of its error.

        `began` is the clock's value at second 0. Kinds are `http 503 <code>`, `connect`, `timeout`, `cut` (the answer ended
        without an end), `empty` (it has no token) and `unreadable`.
        """
        reading = _Reading()
        sent, error = self._clock() - began, ""
        try:
            async with self._http.stream(
                "POST",
                self.target.url + PATHS[self.target.endpoint],
                content=body,
                headers=None if service_class is None else {HEADER_CLASS: service_class},
            ) as response:
                if response.status_code != 200:
                    error = _refusal(response.status_code, await response.aread())
                else:
                    parser = SseParser()
                    async for chunk in response.aiter_raw():
                        now = self._clock() - began
                        for event in parser.feed(chunk):
                            reading.take(event.data, now)
                    error = reading.error or ("" if reading.ended else "cut")
        except httpx2.TimeoutException:
            error = "timeout"
        except httpx2.ConnectError:
            error = "connect"
        except httpx2.HTTPError as failure:
            error = f"cut ({type(failure).__name__})"
        except (TiltyardError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            error = "unreadable"
        pieces, usage = reading.pieces, reading.usage
        return Answered(
            Sample(
                intended_s=intended_s,
                sent_s=sent,
                first_s=pieces[0] if pieces else None,
                last_s=pieces[-1] if pieces else self._clock() - began,
                prompt_tokens=usage.get("prompt_tokens", prompt_tokens),
                answer_tokens=usage.get("completion_tokens", len(pieces)),
                cached_tokens=usage.get("cached_tokens"),
                error=error or ("" if pieces else "empty"),
                session=session,
                turn=turn,
                answer_id=reading.answer_id,
                pieces=tuple(pieces),
            ),
            "".join(reading.texts),
        )


class _Reading:
    """What has come of one answer."""

    def __init__(self) -> None:
        self.pieces: list[float] = []
        self.texts: list[str] = []
        self.usage: dict[str, int] = {}
        self.ended = False
        self.error = ""
        self.answer_id = ""

    def take(self, data: bytes | str, now: float) -> None:
        """One event of the stream."""
        if data in {b"[DONE]", "[DONE]"}:
            self.ended = True
            return
        chunk = orjson.loads(data)
        if told := chunk.get("error"):
            self.error = f"stream {told.get('code') or told.get('type') or 'error'}"
            return
        if isinstance(name := chunk.get("id"), str):
            self.answer_id = name
        if usage := chunk.get("usage"):
            self.usage = {
                name: usage[name] for name in ("prompt_tokens", "completion_tokens") if name in usage
            }
            if (details := usage.get("prompt_tokens_details")) and details.get("cached_tokens") is not None:
                self.usage["cached_tokens"] = details["cached_tokens"]
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            text = choice.get("text") or next((v for name in TEXTS if (v := delta.get(name))), None)
            if text:
                self.pieces.append(now)
                if isinstance(text, str):
                    self.texts.append(text)
            self.ended = self.ended or choice.get("finish_reason") is not None


def _refusal(status: int, content: bytes) -> str:
    try:
        told = orjson.loads(content)["error"]
        code = told.get("code") or told.get("type") or ""
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        code = ""
    return f"http {status} {code}".strip()

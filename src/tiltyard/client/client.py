"""The one way to ask a model: stream an answer, or wait for it, and keep who made it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self

import httpx2
import orjson

from tiltyard.client.failures import error_from_body, error_from_response, error_from_transport
from tiltyard.errors import InvalidRequest, UpstreamFailed
from tiltyard.identity.canonical import Json
from tiltyard.wire.sse import DONE, SseParser
from tiltyard.wire.worker import HEADER_BLIND, HEADER_GENERATION, HEADER_IDENTITY

DEFAULT_URL = "http://127.0.0.1:8000"
KEEP_IDLE_S = 2.0
"""Shorter than the 5 s after which the server closes an idle connection: no request may meet that closing."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one request, as the server counted them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    text: str
    identity: str
    generation: str
    finish_reason: str | None
    usage: Usage | None


@dataclass(frozen=True)
class ModelEntry:
    """One line of `/v1/models`."""

    id: str
    owned_by: str
    identity: str | None
    """Behaviour digest; `None` when the server is not a tiltyard."""


class AnswerStream:
    """One streamed answer; an async context manager that yields the text as it comes.

    Leaving the block early closes the connection, which cancels the answer on the server. `finish_reason`
    and `usage` are known once the iteration has ended; `identity` and `generation` once the block is entered.
    """

    def __init__(
        self, http: httpx2.AsyncClient, url: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        self._http = http
        self._url = url
        self._body = body
        self._headers = {"content-type": "application/json", **(headers or {})}
        self._response: httpx2.Response | None = None
        self._parts: list[str] = []
        self.identity = ""
        self.generation = ""
        self.model = ""
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.tries = 0
        """Requests for this answer that were refused before it; counted by who asks again."""
        self.calls: list[dict[str, str]] = []
        """Functions that the model called, `name` and `arguments` (its text), once the iteration has ended."""
        self.prompt_logprobs: Json = None
        """What a server that was asked for them sent, in vLLM's shape; read by `likelihood.py`."""

    @property
    def text(self) -> str:
        """What has come so far."""
        return "".join(self._parts)

    async def __aenter__(self) -> Self:
        """Send the request; raises a `TiltyardError` when it is refused or nobody answers."""
        request = self._http.build_request("POST", self._url, content=self._body, headers=self._headers)
        try:
            response = await self._http.send(request, stream=True)
        except httpx2.HTTPError as error:
            raise error_from_transport(error, self._url) from error
        if response.status_code != 200:
            try:
                content = await response.aread()
            except httpx2.HTTPError as error:
                raise error_from_transport(error, self._url) from error
            finally:
                await response.aclose()
            raise error_from_response(response.status_code, response.headers, content)
        self._response = response
        self.identity = response.headers.get(HEADER_IDENTITY, "")
        self.generation = response.headers.get(HEADER_GENERATION, "")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._response is not None:
            await self._response.aclose()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield pieces of text; raises `UpstreamFailed` when the stream is cut or carries an error."""
        if self._response is None:
            raise RuntimeError("enter the stream with `async with` before iterating over it")
        parser = SseParser()
        done = False
        try:
            async for chunk in self._response.aiter_bytes():
                for event in parser.feed(chunk):
                    if event.data == DONE:
                        done = True  # read on to the end, so that the connection can be used again
                    elif text := self._take(event.data):
                        self._parts.append(text)
                        yield text
        except httpx2.HTTPError as error:
            raise error_from_transport(error, self._url) from error
        if not done:
            raise UpstreamFailed(
                f"{self._url} ended the stream without its last frame; the answer is cut. Ask again.",
                code="stream_cut",
            )

    def _take(self, data: bytes) -> str:
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise self._unreadable("is not JSON") from error
        if not isinstance(chunk, dict):
            raise self._unreadable("is not an object")
        if "error" in chunk:
            raise error_from_body(502, chunk)
        try:
            return self._take_chunk(chunk)
        except (KeyError, TypeError, AttributeError) as error:
            raise self._unreadable("has an unknown shape") from error

    def _unreadable(self, what: str) -> UpstreamFailed:
        return UpstreamFailed(f"{self._url} sent a frame that {what}", code="stream_unreadable")

    def _take_chunk(self, chunk: dict[str, Any]) -> str:
        self.model = chunk.get("model") or self.model
        self.generation = self.generation or chunk.get("id", "")
        self.identity = self.identity or chunk.get("system_fingerprint") or ""
        if usage := chunk.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            self.usage = Usage(
                usage["prompt_tokens"], usage["completion_tokens"], details.get("cached_tokens", 0)
            )
        self.prompt_logprobs = chunk.get("prompt_logprobs") or self.prompt_logprobs
        text = ""
        for choice in chunk.get("choices", ()):
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or ():
                self._take_call(call)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        return text

    def _take_call(self, delta: dict[str, Any]) -> None:
        place, said = delta.get("index", len(self.calls)), delta.get("function") or {}
        if place == len(self.calls):
            self.calls.append({"name": "", "arguments": ""})
        elif not 0 <= place < len(self.calls):
            raise KeyError("index")
        self.calls[place]["name"] += said.get("name") or ""
        self.calls[place]["arguments"] += said.get("arguments") or ""


class ModelClient:
    """Asks an OpenAI-compatible server; every failure is a `TiltyardError` that says what happened.

    ::

        async with ModelClient("http://127.0.0.1:8000") as client:
            async with client.stream_chat("chat", [{"role": "user", "content": "Hello"}]) as stream:
                async for text in stream:
                    print(text, end="")
            print(stream.identity, stream.finish_reason)

    A `blind` one, as the arena has, keeps out of the server's metrics who answered it.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        blind: bool = False,
        verify: ssl.SSLContext | None = None,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 5.0,
    ) -> None:
        root = base_url.rstrip("/")
        self.base_url = root if root.endswith("/v1") else root + "/v1"
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        if blind:
            headers[HEADER_BLIND] = "1"
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout_s, connect=connect_timeout_s, pool=None),
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEP_IDLE_S
            ),
            headers=headers,
            verify=True if verify is None else verify,
            trust_env=not _is_loopback(root),  # a proxy of the environment cannot reach our own loopback
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def stream_chat(
        self,
        model: str,
        messages: Sequence[Mapping[str, Json]],
        *,
        headers: Mapping[str, str] | None = None,
        **settings: Json,
    ) -> AnswerStream:
        """Ask for one streamed answer; `settings` are OpenAI fields such as `temperature` and `max_tokens`.

        Raises `InvalidRequest` for `n` other than 1: a stream here is one answer.
        """
        if settings.get("n", 1) != 1:
            raise InvalidRequest("stream_chat reads one answer; ask again instead of n > 1", param="n")
        body = {
            "model": model,
            "messages": list(messages),
            **settings,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return AnswerStream(self._http, self.base_url + "/chat/completions", orjson.dumps(body), headers)

    async def chat(
        self,
        model: str,
        messages: Sequence[Mapping[str, Json]],
        *,
        headers: Mapping[str, str] | None = None,
        **settings: Json,
    ) -> Answer:
        """Ask and wait for the whole answer; cancelling the call cancels the answer on the server."""
        async with self.stream_chat(model, messages, headers=headers, **settings) as stream:
            async for _ in stream:
                pass
        return Answer(stream.text, stream.identity, stream.generation, stream.finish_reason, stream.usage)

    async def post(self, path: str, body: Mapping[str, Json]) -> Json:
        """Send JSON to a path of the server's root (`/classify`, `/v1/score`) and return the JSON that comes back.

        For what is no chat: reward and scoring endpoints. Raises as `chat` does.
        """
        url = self.base_url.removesuffix("/v1") + path
        headers = {"content-type": "application/json"}
        return await _json_of(url, self._http.post(url, content=orjson.dumps(body), headers=headers))

    async def get(self, path: str) -> Json:
        """Return the JSON at a path of the server's root, such as `/v1/fleet`. Raises as `chat` does."""
        url = self.base_url.removesuffix("/v1") + path
        return await _json_of(url, self._http.get(url))

    async def models(self) -> list[ModelEntry]:
        """List what the server offers."""
        url = self.base_url + "/models"
        try:
            response = await self._http.get(url)
        except httpx2.HTTPError as error:
            raise error_from_transport(error, url) from error
        if response.status_code != 200:
            raise error_from_response(response.status_code, response.headers, response.content)
        try:
            entries = orjson.loads(response.content)["data"]
            return [
                ModelEntry(
                    entry["id"], entry.get("owned_by", ""), (entry.get("tiltyard") or {}).get("behaviour")
                )
                for entry in entries
            ]
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise UpstreamFailed(
                f"{url} did not answer with a list of models", code="answer_unreadable"
            ) from error


async def _json_of(url: str, asking: Awaitable[httpx2.Response]) -> Json:
    try:
        response = await asking
    except httpx2.HTTPError as error:
        raise error_from_transport(error, url) from error
    if response.status_code != 200:
        raise error_from_response(response.status_code, response.headers, response.content)
    try:
        answer: Json = orjson.loads(response.content)
    except orjson.JSONDecodeError as error:
        raise UpstreamFailed(f"{url} did not answer with JSON", code="answer_unreadable") from error
    return answer


def _is_loopback(url: str) -> bool:
    host = httpx2.URL(url).host
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False

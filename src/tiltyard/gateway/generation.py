"""One request's life in the gateway: ask a worker, pass its frames on, record the end, whatever it is."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import httpx2
import orjson
from pydantic import ValidationError

from tiltyard.client.failures import error_from_body, error_from_response, error_from_transport
from tiltyard.errors import Overloaded, TiltyardError, Unavailable, UpstreamFailed
from tiltyard.events.ids import new_generation_id
from tiltyard.events.schema import ChoiceOutcome, FinishReason, GenerationFinished
from tiltyard.events.vault import NewContent
from tiltyard.gateway.collect import Chunk, Collected, Endpoint, whole_answer
from tiltyard.gateway.door import DEFAULT_TENANT, Door
from tiltyard.identity.canonical import Json, canonical_json
from tiltyard.router.router import Lease, Route
from tiltyard.wire.openai import ChatCompletionRequest, CompletionRequest
from tiltyard.wire.sse import DONE, SseParser
from tiltyard.wire.worker import HEADER_GENERATION, HEADER_IDENTITY, HEADER_TENANT, FinishedAnswer

SOURCE = "tiltyard/gateway"
GUESSED_ANSWER_TOKENS = 256
"""What a request without `max_tokens` is taken to cost when a worker is chosen."""
CHARACTERS_A_TOKEN = 4


class WorkerLost(UpstreamFailed):
    """The worker was not there, or went away before the answer was whole."""

    default_code = "worker_lost"


def draw_seed() -> int:
    """A seed for a request that brings none: 53 random bits, exact in every JSON reader."""
    return int.from_bytes(os.urandom(8)) >> 11


class Generation:
    """One request and its answer; raises `NotFound` at once when the model does not exist."""

    def __init__(
        self,
        door: Door,
        request: ChatCompletionRequest | CompletionRequest,
        *,
        tenant: str = DEFAULT_TENANT,
        traceparent: str | None = None,
    ) -> None:
        self.id = new_generation_id()
        self.request = request
        self.endpoint: Endpoint = (
            "chat.completions" if isinstance(request, ChatCompletionRequest) else "completions"
        )
        self._door = door
        self._tenant = tenant
        self._traceparent = traceparent
        self.identity_name = door.router.resolve(request.model)
        self._route = door.router.choose(self.identity_name)
        self.seed = draw_seed() if request.seed is None else request.seed
        self.collected = Collected(request.n)
        self._created = int(time.time())
        self._began = time.perf_counter()
        self._first_token_ms: float | None = None
        self._reached_worker = False
        self._recording: asyncio.Future[None] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer; the identity is that of the worker which answers."""
        return {HEADER_IDENTITY: self._route.identity.behaviour, HEADER_GENERATION: self.id}

    @property
    def behaviour(self) -> str:
        """The behaviour digest of the identity that answers."""
        return self._route.identity.behaviour

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield the frames for the client; the last one has the usage, and the event is durable before it.

        Closing the generator, or cancelling the task that iterates, cancels the answer at the worker and
        records it as cancelled with what has come. Raises a `TiltyardError` when the answer fails, after
        the failure is recorded.
        """
        door = self._door
        end: FinishReason = "failed"
        error: str | None = "internal_error"
        with door.metrics.in_flight.labels(self.identity_name).track_inprogress():
            try:
                async with aclosing(self._relay()) as frames:
                    async for chunk in frames:
                        if self.collected.finished is not None:
                            await self._record("stop", None)
                        yield chunk
                if self.collected.finished is None:
                    raise UpstreamFailed(
                        f"worker {self._route.worker.name} ended the answer without its facts",
                        code="stream_unreadable",
                    )
            except TiltyardError as failure:
                error = failure.code
                raise
            except (asyncio.CancelledError, GeneratorExit):
                end, error = "cancelled", None
                raise
            finally:
                if self._reached_worker:
                    await self._record(end, error)

    async def whole(self) -> Chunk:
        """Wait for the end and return the answer of a request that is not streamed."""
        async with aclosing(self.chunks()) as chunks:
            async for _ in chunks:
                pass
        return whole_answer(self.collected, self.endpoint, self._head, self.collected.usage or {})

    @property
    def _head(self) -> Chunk:
        return {
            "id": self.id,
            "created": self._created,
            "model": self.identity_name,
            "system_fingerprint": self.behaviour,
        }

    async def _relay(self) -> AsyncGenerator[Chunk, None]:
        """Frames of the first worker that answers; a second one is tried if the first died without a word."""
        tried: set[str] = set()
        while True:
            begun = False
            name = self._route.worker.name
            try:
                with self._door.router.lease(name, self._estimated_tokens()) as lease:
                    async with aclosing(self._ask(self._route)) as frames:
                        async for chunk in frames:
                            begun = True
                            yield self._dressed(chunk, lease)
                return
            except WorkerLost as lost:
                self._door.router.registry.suspect(name, lost.message)
                if begun or tried:
                    raise
            except (Unavailable, Overloaded):  # it lives and takes nothing more: draining, or full
                others = (w for w in self._door.router.registry.serving(self.identity_name) if w.name != name)
                if tried or next(others, None) is None:
                    raise
            tried.add(name)
            self._route = self._door.router.choose(self.identity_name, without=tried)
            self._door.metrics.retries.inc()

    async def _ask(self, route: Route) -> AsyncGenerator[Chunk, None]:
        """Send the request to one worker and yield its frames as they come."""
        url = f"{route.url}/v1/{'chat/completions' if self.endpoint == 'chat.completions' else 'completions'}"
        http = self._door.http
        request = http.build_request(
            "POST",
            url,
            content=orjson.dumps(self.request.to_worker(identity=route.identity.name, seed=self.seed)),
            headers={
                "content-type": "application/json",
                HEADER_GENERATION: self.id,
                HEADER_TENANT: self._tenant,
            },
        )
        self._reached_worker = True
        try:
            response = await http.send(request, stream=True)
        except httpx2.ConnectError as error:
            self._reached_worker = False
            raise WorkerLost(f"worker {route.worker.name} does not accept connections") from error
        except httpx2.HTTPError as error:
            raise self._lost(route, error) from error
        try:
            if response.status_code != 200:
                raise error_from_response(response.status_code, response.headers, await response.aread())
            parser, done = SseParser(), False
            async for piece in response.aiter_raw():
                for event in parser.feed(piece):
                    if event.data == DONE:
                        done = True
                    else:
                        yield _parsed(event.data, route)
            if not done:
                raise WorkerLost(f"worker {route.worker.name} ended the stream in the middle of the answer")
        except httpx2.HTTPError as error:
            raise self._lost(route, error) from error
        finally:
            await response.aclose()

    def _lost(self, route: Route, error: httpx2.HTTPError) -> UpstreamFailed:
        if isinstance(error, httpx2.TimeoutException):
            slow = error_from_transport(error, f"worker {route.worker.name}")
            return UpstreamFailed(slow.message, code=slow.code)
        return WorkerLost(f"worker {route.worker.name} went away in the middle of the request")

    def _dressed(self, chunk: Chunk, lease: Lease) -> Chunk:
        """Note the frame, and make it the client's: our ids, the usage as OpenAI places it."""
        try:
            tokens = self.collected.take(chunk)
        except (KeyError, TypeError, IndexError, AttributeError, ValidationError) as error:
            raise UpstreamFailed(
                f"worker {self._route.worker.name} sent a frame of an unknown shape", code="stream_unreadable"
            ) from error
        if tokens:
            lease.progress(tokens)
            if self._first_token_ms is None:
                self._first_token_ms = self._elapsed_ms()
        usage = chunk.pop("usage", None)
        chunk.update(self._head)
        if self.request.include_usage:
            chunk["usage"] = usage
        return chunk

    async def _record(self, end: FinishReason, error: str | None) -> None:
        """Append the one event of this request; returns when it is durable."""
        if self._recording is None:
            self._recording = asyncio.ensure_future(self._append(end, error))
        # Shielded: a client that hangs up just now must not leave half an append behind.
        await asyncio.shield(self._recording)

    async def _append(self, end: FinishReason, error: str | None) -> None:
        finished = self.collected.finished
        log = self._door.log
        # In a thread: the first words of a subject make its key, which waits for the disk.
        prompt, response = await asyncio.to_thread(self._encrypted, self._said(end, finished))
        event = self._event(end, error, finished).model_copy(
            update={"prompt": prompt.ref, "response": response.ref}
        )
        self._measure(event)
        await log.append(
            event,
            subject=self.id,
            tenant=self._tenant,
            source=SOURCE,
            traceparent=self._traceparent,
            contents=[prompt, response],
        )

    def _encrypted(self, said: list[Json]) -> tuple[NewContent, NewContent]:
        log, subject = self._door.log, self.request.user or self._tenant
        prompt = log.content(subject, canonical_json(self.request.served_prompt))
        return prompt, log.content(subject, canonical_json({"choices": said}))

    def _said(self, end: FinishReason, finished: FinishedAnswer | None) -> list[Json]:
        """The answers for the vault, in tokens as far as they are known."""
        if finished is not None:
            return [
                {
                    "index": c.index,
                    "text": c.text,
                    "token_ids": list(c.token_ids),
                    "finish_reason": c.finish_reason,
                }
                for c in finished.choices
            ]
        return [
            {
                "index": c.index,
                "text": c.text,
                "token_ids": c.token_ids,
                "finish_reason": c.finish_reason or end,
            }
            for c in self.collected.choices
        ]

    def _event(
        self, end: FinishReason, error: str | None, finished: FinishedAnswer | None
    ) -> GenerationFinished:
        request, identity = self.request, self._route.identity
        common: Mapping[str, object] = {
            "generation": self.id,
            "endpoint": self.endpoint,
            "alias": request.model,
            "identity": identity.name,
            "worker": self._route.worker.name,
            "prompt": None,
            "response": None,
            "stop": tuple(request.stop),
            "logit_bias": request.logit_bias,
            "n": request.n,
            "ignore_eos": request.ignore_eos,
            "stream": request.stream,
            "error": error,
            "total_ms": self._elapsed_ms(),
        }
        if finished is None:
            choices = tuple(
                ChoiceOutcome(index=c.index, finish_reason=c.finish_reason or end, completion_tokens=c.tokens)
                for c in self.collected.choices
            )
            facts: Mapping[str, object] = {
                "behaviour": identity.behaviour,
                "deployment": identity.deployment,
                "prompt_token_digest": None,
                "sampling": request.effective_sampling(identity.declaration.sampling),
                "seed": self.seed,
                "choices": choices,
                "prompt_tokens": 0,
                "cached_tokens": 0,
                "completion_tokens": sum(c.completion_tokens for c in choices),
                "time_to_first_token_ms": self._first_token_ms,
            }
        else:
            facts = {
                **finished.model_dump(
                    include={
                        "behaviour", "deployment", "sampling", "seed", "prompt_tokens", "cached_tokens",
                        "completion_tokens", "prompt_token_digest", "queue_ms", "prefill_ms", "decode_ms",
                        "time_to_first_token_ms", "peak_kv_blocks",
                    }
                ),
                "choices": tuple(
                    ChoiceOutcome(
                        index=c.index, finish_reason=c.finish_reason, stop_match=c.stop_match,
                        completion_tokens=len(c.token_ids),
                    )
                    for c in finished.choices
                ),
            }  # fmt: skip
        return GenerationFinished.model_validate({**common, **facts})

    def _measure(self, event: GenerationFinished) -> None:
        metrics, name = self._door.metrics, event.identity
        outcome = event.choices[0].finish_reason if event.error is None else "failed"
        metrics.requests.labels(event.endpoint, name, outcome).inc()
        metrics.duration_s.labels(event.endpoint, name).observe(event.total_ms / 1000)
        if self._first_token_ms is not None:
            metrics.first_token_s.labels(event.endpoint, name).observe(self._first_token_ms / 1000)
        metrics.prompt_tokens.labels(name).inc(event.prompt_tokens)
        metrics.cached_tokens.labels(name).inc(event.cached_tokens)
        metrics.completion_tokens.labels(name).inc(event.completion_tokens)

    def _elapsed_ms(self) -> float:
        return (time.perf_counter() - self._began) * 1000

    def _estimated_tokens(self) -> int:
        request = self.request
        if isinstance(request, ChatCompletionRequest):
            prompt = sum(len(message.content) for message in request.messages) // CHARACTERS_A_TOKEN
        else:
            text = isinstance(request.prompt, str)
            prompt = len(request.prompt) // CHARACTERS_A_TOKEN if text else len(request.prompt)
        return prompt + request.n * (request.answer_tokens or GUESSED_ANSWER_TOKENS)


def _parsed(data: bytes, route: Route) -> Chunk:
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise UpstreamFailed(
            f"worker {route.worker.name} sent a frame that is not JSON", code="stream_unreadable"
        ) from error
    if not isinstance(chunk, dict):
        raise UpstreamFailed(
            f"worker {route.worker.name} sent a frame that is not an object", code="stream_unreadable"
        )
    if "error" in chunk:
        raise error_from_body(502, chunk)
    return chunk

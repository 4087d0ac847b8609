"""`POST /v1/embeddings` of a worker: texts to the engine's thread in waves, vectors back in their order."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Literal
from uuid import uuid4

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.types import Receive

from tiltyard.engine.request import EmbeddedText, EngineRequest, SamplingSettings
from tiltyard.errors import ContextTooLong, InvalidRequest, TiltyardError
from tiltyard.wire.embeddings import EmbeddingsRequest
from tiltyard.wire.worker import HEADER_TENANT
from tiltyard.worker.answer import Terms
from tiltyard.worker.host import ModelHost, ServedIdentity
from tiltyard.worker.loop import EngineLoop

Vectors = list[NDArray[np.float32]]


class EmbeddingDesk:
    """Hands texts to the engine, so many at a time, and waits for their vectors; lives on the event loop."""

    def __init__(self, engine: EngineLoop, *, at_once: int) -> None:
        self.open_requests = 0
        """Requests whose vectors are not all there."""
        self._engine = engine
        self._gate = asyncio.Semaphore(at_once)  # the other texts wait here, outside the engine's queue
        self._waiting: dict[str, asyncio.Future[NDArray[np.float32]]] = {}

    async def embed(self, requests: Sequence[EngineRequest]) -> Vectors:
        """The vectors of the requests, in order; cancelling the task cancels what still runs."""
        self.open_requests += 1
        tasks = [asyncio.ensure_future(self._one(request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            self.open_requests -= 1
            for task in tasks:
                task.cancel()

    async def _one(self, request: EngineRequest) -> NDArray[np.float32]:
        async with self._gate:
            future = asyncio.get_running_loop().create_future()
            self._waiting[request.request_id] = future
            self._engine.submit([request])
            try:
                vector: NDArray[np.float32] = await future
            except asyncio.CancelledError:
                self._engine.cancel([request.request_id])
                raise
            finally:
                del self._waiting[request.request_id]
            return vector

    def take(self, embedded: Sequence[EmbeddedText]) -> None:
        """A step has made vectors."""
        for text in embedded:
            if (future := self._waiting.get(text.request_id)) is not None and not future.done():
                future.set_result(text.vector)

    def drop(self, request_id: str, error: TiltyardError) -> None:
        """The engine gave a text up."""
        if (future := self._waiting.get(request_id)) is not None and not future.done():
            future.set_exception(error)

    def fail(self, error: TiltyardError) -> None:
        """No vector will come any more."""
        for request_id in list(self._waiting):
            self.drop(request_id, error)


def engine_requests(
    host: ModelHost,
    identity: ServedIdentity,
    asked: EmbeddingsRequest,
    terms: Terms,
    headers: Mapping[str, str],
) -> list[EngineRequest]:
    """Tokenize and check every text; raises `InvalidRequest` or `ContextTooLong` naming the one that cannot run."""
    architecture = identity.resolved.architecture
    if asked.dimensions is not None and asked.dimensions != architecture.dim:
        raise InvalidRequest(
            f"dimensions is {asked.dimensions}; {identity.name} gives {architecture.dim} and was not trained to be "
            "cut shorter. Leave it out.",
            param="dimensions",
        )
    name, tenant = f"emb_{uuid4().hex}", headers.get(HEADER_TENANT) or "default"
    requests = []
    for index, text in enumerate(asked.input):
        param = f"input.{index}" if len(asked.input) > 1 else "input"
        try:
            request = EngineRequest(
                request_id=f"{name}/{index}",
                prompt=tuple(host.encode_plain(text)),
                sampling=SamplingSettings(),
                max_tokens=1,
                stop_ids=frozenset(),
                namespace=f"{identity.behaviour_digest}/{tenant}",
                tenant=tenant,
                priority=terms.priority,
                queue_deadline_s=terms.queue_deadline_s,
                deadline_s=terms.deadline_s,
                adapter=identity.adapter,
                embed=architecture.pooling,
            )
            if len(request.prompt) > (most := host.max_context_tokens - 1):
                raise ContextTooLong(
                    f"{param} has {len(request.prompt):,} tokens; {identity.name} accepts {most:,}. Shorten it."
                )
            host.engine.check(request)
        except InvalidRequest as error:
            error.param = param
            raise
        requests.append(request)
    return requests


async def while_connected(work: asyncio.Task[Vectors], receive: Receive) -> Vectors | None:
    """Wait for the vectors; `None`, with the work cancelled, if the reader leaves first."""
    watcher = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({work, watcher}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        watcher.cancel()
        work.cancel()
        await asyncio.gather(work, watcher, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def embeddings_json(
    model: str,
    vectors: Vectors,
    encoding: Literal["float", "base64"],
    *,
    prompt_tokens: int,
) -> bytes:
    """The answer; floats are written as the shortest decimals that read back to the same float32."""
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode()
            if encoding == "base64"
            else np.ascontiguousarray(vector),
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    answer = {"object": "list", "data": data, "model": model, "usage": usage}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)

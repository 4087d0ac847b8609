"""Asks an engine of another kind how it is, and says so in the words of `GET /worker`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx2

from tiltyard.errors import ConfigurationError
from tiltyard.wire.worker import WorkerKind, WorkerStatus
from tiltyard.worker.adapters.asking import refuse_door
from tiltyard.worker.adapters.declared import status_of
from tiltyard.worker.adapters.facts import NOTHING, EngineFacts, Reply
from tiltyard.worker.adapters.kinds import ENGINES, detect, observe
from tiltyard.worker.adapters.readings import MAX_BYTES

PROBE_TIMEOUT_S = 10.0


class NotAnswering(Exception):
    """The server does not say what it serves."""


@dataclass
class ForeignEngine:
    """One server of another kind, and what it serves for us."""

    kind: WorkerKind
    names: Mapping[str, str]
    """Identity names, and what the server calls each."""
    key_env: str = ""
    """Environment variable that holds the key to show it; empty: none."""
    _progress: float | None = field(default=None, repr=False)
    _moved_s: float = field(default=0.0, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """What every request to it carries."""
        key = os.environ.get(self.key_env) if self.key_env else None
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def door(self, identity: str, path: str) -> str:
        """What the server calls an identity, for a door beside those for answers; raises `InvalidRequest`."""
        refuse_door(self.kind, identity, path)
        return self.names[identity]

    async def ask(self, http: httpx2.AsyncClient, worker: str, url: str, now_s: float) -> WorkerStatus:
        """Read what it says of itself; raises `httpx2.HTTPError`, or `NotAnswering` where it lists no models."""
        facts = await observe(self._getter(http, url), ENGINES[self.kind])
        if not facts.models:
            raise NotAnswering(f"{url} lists no models")
        status = status_of(facts, worker, self.names, url)
        return status.model_copy(update={"last_step_age_ms": self._stood_still_ms(facts, now_s)})

    def _getter(self, http: httpx2.AsyncClient, url: str) -> _Getter:
        return _Getter(http, url, self.headers)

    def _stood_still_ms(self, facts: EngineFacts, now_s: float) -> float | None:
        """How long its count of tokens has not moved: a server can say 200 to /health and hang (vLLM #39863)."""
        progress = facts.load.progress
        if progress is None:
            return None
        if progress != self._progress or not facts.load.running:
            self._progress, self._moved_s = progress, now_s
        return (now_s - self._moved_s) * 1e3


@dataclass(frozen=True)
class _Getter:
    """Asks one server for paths; only the list of models has to answer."""

    http: httpx2.AsyncClient
    url: str
    headers: Mapping[str, str]

    async def __call__(self, path: str) -> Reply:
        try:
            async with self.http.stream("GET", self.url + path, headers=self.headers) as response:
                body = b""
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > MAX_BYTES:
                        return NOTHING
                return Reply(response.status_code, body)
        except httpx2.HTTPError:
            if path == "/v1/models":
                raise
            return NOTHING


async def probe(url: str, *, kind: WorkerKind | None = None, key_env: str = "") -> EngineFacts:
    """Ask a server who it is, once; raises `ConfigurationError` naming what is wrong and what to do."""
    if key_env and key_env not in os.environ:
        raise ConfigurationError(
            f"--key-env: there is no environment variable {key_env}; set it here and where the server runs"
        )
    engine = ForeignEngine(kind or "openai", {}, key_env)
    async with httpx2.AsyncClient(timeout=PROBE_TIMEOUT_S, trust_env=False) as http:
        try:
            return await detect(_Getter(http, url, engine.headers), url, kind)
        except httpx2.HTTPError as error:
            raise ConfigurationError(
                f"nobody answers at {url}: {error or type(error).__name__}. Start the server first, or check the address."
            ) from error


def probe_blocking(url: str, *, kind: WorkerKind | None = None, key_env: str = "") -> EngineFacts:
    """`probe`, for who has no event loop."""
    return asyncio.run(probe(url, kind=kind, key_env=key_env))

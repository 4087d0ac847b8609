"""Asks an engine of another kind how it is, and says so in the words of `GET /worker`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx2

from tiltyard.wire.worker import WorkerKind, WorkerStatus
from tiltyard.worker.adapters.asking import refuse_door
from tiltyard.worker.adapters.declared import status_of
from tiltyard.worker.adapters.facts import NOTHING, EngineFacts, Reply
from tiltyard.worker.adapters.kinds import ENGINES, observe
from tiltyard.worker.adapters.readings import MAX_BYTES

FRESH = frozenset({"/metrics", "/health"})
"""What is asked each time; what a server is and serves is asked again every `SETTLED_S`, and after every silence."""
SETTLED_S = 10.0
NEEDED = frozenset({"/v1/models", "/health"})
"""A server that does not answer these is not there."""


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
    _settled: dict[str, Reply] = field(default_factory=dict, repr=False)
    _settled_s: float = field(default=0.0, repr=False)

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
        if now_s - self._settled_s > SETTLED_S or self.kind == "openai":
            self._settled, self._settled_s = {}, now_s
        get, asked = Getter(http, url, self.headers), self._settled
        self._settled = {}  # until all of it has been answered again

        async def get_and_keep(path: str) -> Reply:
            reply = await get(path)
            if path not in FRESH:
                asked[path] = reply
            return reply

        facts = await observe(get_and_keep, ENGINES[self.kind], asked)
        if not facts.models:
            raise NotAnswering(f"{url} lists no models")
        if facts.healthy:
            self._settled = asked
        status = status_of(facts, worker, self.names, url)
        return status.model_copy(update={"last_step_age_ms": self._stood_still_ms(facts, now_s)})

    def _stood_still_ms(self, facts: EngineFacts, now_s: float) -> float | None:
        """How long its count of tokens has not moved: a server can say 200 to /health and hang (vLLM #39863)."""
        progress = facts.load.progress
        if progress is None:
            return None
        if progress != self._progress or not facts.load.running:
            self._progress, self._moved_s = progress, now_s
        return (now_s - self._moved_s) * 1e3


@dataclass(frozen=True)
class Getter:
    """Asks one server for paths; those that are needed raise `httpx2.HTTPError` where nobody answers."""

    http: httpx2.AsyncClient
    url: str
    headers: Mapping[str, str]

    async def __call__(self, path: str) -> Reply:
        """The reply; `NOTHING` where there is none, or one too long to be any."""
        try:
            async with self.http.stream("GET", self.url + path, headers=self.headers) as response:
                body = b""
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > MAX_BYTES:
                        return NOTHING
                return Reply(response.status_code, body)
        except httpx2.HTTPError:
            if path in NEEDED:
                raise
            return NOTHING

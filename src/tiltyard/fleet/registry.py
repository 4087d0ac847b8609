"""Which workers there are, what they serve, and which of them are alive."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx2
from pydantic import ValidationError

from tiltyard.errors import ConfigurationError
from tiltyard.wire.hosts import LOOPBACK_NAMES
from tiltyard.wire.worker import IdentityStatus, WorkerStatus

ASK_EVERY_S = 1.0
ASK_TIMEOUT_S = 2.0
MISSES_ALLOWED = 2
"""Unanswered questions in a row before a worker takes no new work."""
STUCK_AFTER_MS = 60_000.0
"""A worker that has running answers and has not stepped for so long is taken for hung."""


@dataclass
class Worker:
    """One worker as the fleet sees it."""

    name: str
    expected: frozenset[str]
    """Identity names that it was started for."""
    url: str | None = None
    """`None` while it is starting or being restarted."""
    status: WorkerStatus | None = None
    misses: int = 0
    note: str = "starting"
    """Why it takes no work, for people."""
    identities: Mapping[str, IdentityStatus] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether it may be given new work."""
        return (
            self.url is not None
            and self.status is not None
            and self.status.state == "ready"
            and self.misses < MISSES_ALLOWED
            and not self.stuck
        )

    @property
    def stuck(self) -> bool:
        """Whether it holds running answers and has made no step for a minute."""
        status = self.status
        return (
            status is not None
            and status.running > 0
            and status.last_step_age_ms is not None
            and status.last_step_age_ms > STUCK_AFTER_MS
        )


def check_worker_url(url: str, hosts: Collection[str]) -> None:
    """Raise `ConfigurationError` unless `url` is plain `http(s)://<one of hosts>[:port]`.

    Names are compared as they stand, and no redirect is followed: nobody can point a name elsewhere later on.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if (
        host is None
        or parts.scheme not in ("http", "https")
        or parts.username is not None
        or parts.path.strip("/")
        or parts.query
        or parts.fragment
        or host not in hosts
    ):
        raise ConfigurationError(
            f"{url[:200]!r} is no place for a worker; it must be http://HOST:PORT with one of {', '.join(sorted(hosts))}"
        )


class Registry:
    """The one list of workers; the launcher announces, the router chooses, `watch` keeps it true."""

    def __init__(self, *, hosts: Collection[str] = LOOPBACK_NAMES) -> None:
        self._workers: dict[str, Worker] = {}
        self._hosts = frozenset(hosts)
        """Where workers may be: what announces itself must not make us ask anything else on the network."""
        self._http = httpx2.AsyncClient(timeout=ASK_TIMEOUT_S, trust_env=False)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All workers, in the order in which they were first expected."""
        return tuple(self._workers.values())

    @property
    def identity_names(self) -> tuple[str, ...]:
        """Every identity that a worker serves or was started for."""
        names: dict[str, None] = {}
        for worker in self._workers.values():
            names.update(dict.fromkeys(worker.identities or sorted(worker.expected)))
        return tuple(names)

    def expect(self, name: str, identities: Iterable[str]) -> Worker:
        """Say that a worker is being started: its identities are known from now on, served or not."""
        worker = self._workers.setdefault(name, Worker(name, frozenset()))
        worker.expected = frozenset(identities)
        worker.note = "starting"
        return worker

    def announce(self, name: str, url: str, status: WorkerStatus) -> None:
        """A worker answers at `url`; raises `ConfigurationError` for an address where none may be."""
        check_worker_url(url, self._hosts)
        worker = self._workers.setdefault(name, Worker(name, frozenset()))
        worker.url = url.rstrip("/")
        self._observe(worker, status)

    def withdraw(self, name: str, reason: str) -> None:
        """A worker has ended; its identities stay known."""
        worker = self._workers[name]
        worker.url = None
        worker.status = None
        worker.note = reason

    def suspect(self, name: str, reason: str) -> None:
        """A request to the worker failed: give it nothing until it answers again."""
        worker = self._workers[name]
        worker.misses = max(worker.misses, MISSES_ALLOWED)
        worker.note = reason

    def serving(self, identity: str) -> list[Worker]:
        """The living workers of an identity."""
        return [worker for worker in self._workers.values() if worker.alive and identity in worker.identities]

    async def ask(self, url: str) -> WorkerStatus:
        """Read `GET /worker`; raises `httpx2.HTTPError` or `pydantic.ValidationError`."""
        response = await self._http.get(url + "/worker")
        response.raise_for_status()
        return WorkerStatus.model_validate_json(response.content)

    async def refresh(self) -> None:
        """Ask every worker that has an address, all at once."""
        await asyncio.gather(*(self._refresh(worker) for worker in self.workers if worker.url is not None))

    async def watch(self, every_s: float = ASK_EVERY_S) -> None:
        """Refresh for ever; cancel the task to stop."""
        while True:
            await self.refresh()
            await asyncio.sleep(every_s)

    async def aclose(self) -> None:
        """Close the connections to the workers."""
        await self._http.aclose()

    async def _refresh(self, worker: Worker) -> None:
        url = worker.url
        if url is None:
            return
        try:
            status = await self.ask(url)
        except (httpx2.HTTPError, ValidationError) as error:
            if worker.url == url:
                worker.misses += 1
                worker.note = f"does not answer: {type(error).__name__}"
            return
        if worker.url == url:
            self._observe(worker, status)

    def _observe(self, worker: Worker, status: WorkerStatus) -> None:
        worker.status = status
        worker.misses = 0
        worker.identities = {identity.name: identity for identity in status.identities}
        worker.note = "has made no step for a minute" if worker.stuck else status.state

"""Which workers there are, what they serve, and which of them may be given work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx2
from pydantic import ValidationError

from tiltyard.errors import ConfigurationError, TiltyardError
from tiltyard.fleet.breaker import Breaker
from tiltyard.fleet.foreign import ForeignEngine, NotAnswering
from tiltyard.fleet.lease import Lease
from tiltyard.wire.hosts import LOOPBACK_NAMES
from tiltyard.wire.worker import IdentityStatus, WorkerStatus

ASK_EVERY_S = 1.0
ASK_TIMEOUT_S = 2.0
ASK_WHOLE_S = 3.0
"""From a question to the end of its answer: a server that drips must not keep everybody else from being asked."""
STUCK_AFTER_MS = 60_000.0
"""A worker that has running answers and has not stepped for so long is taken for hung."""

Clock = Callable[[], float]


@dataclass
class Worker:
    """One worker as the fleet sees it."""

    name: str
    expected: frozenset[str]
    """Identity names that it was started or added for."""
    clock: Clock = time.monotonic
    url: str | None = None
    """`None` while it is starting or being restarted."""
    status: WorkerStatus | None = None
    lease: Lease = field(default_factory=Lease)
    breaker: Breaker = field(default_factory=Breaker)
    draining: bool = False
    """Whether somebody has told it to take nothing new (`tiltyard fleet drain`)."""
    added: bool = False
    """Whether somebody told us of it, and no launcher of ours started it."""
    engine: ForeignEngine | None = None
    """Who answers, where that is no engine of ours."""
    starts: int = 0
    """How often it was announced: a new process has an empty cache."""
    note: str = "starting"
    """Why it takes no work, for people."""
    identities: Mapping[str, IdentityStatus] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        """Whether it may be given new work; its circuit aside."""
        return (
            self.url is not None
            and self.status is not None
            and self.status.state == "ready"
            and not self.draining
            and self.lease.holds(self.clock())
            and not self.stuck
        )

    @property
    def alive(self) -> bool:
        """Whether a request may be sent to it now."""
        return self.well and self.breaker.allows(self.clock())

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

    @property
    def silent_s(self) -> float:
        """For how long its lease has lapsed, or it has hung; 0 for a worker that may still answer."""
        if self.stuck and self.status is not None and self.status.last_step_age_ms is not None:
            return (self.status.last_step_age_ms - STUCK_AFTER_MS) / 1e3
        return self.lease.lapsed_s(self.clock())

    @property
    def why(self) -> str:
        """What it is, or why it takes no work, for people."""
        if self.well and not self.breaker.allows(self.clock()):
            state = self.breaker.state(self.clock())
            return f"its circuit is {state}: {self.breaker.reason}"
        if self.draining and self.url is not None:
            return "draining, as it was told"
        return self.note


def check_worker_url(url: str, hosts: Collection[str] | None) -> None:
    """Raise `ConfigurationError` unless `url` is plain `http(s)://<one of hosts>[:port]`; `None`: any host.

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
        or (hosts is not None and host not in hosts)
    ):
        where = "HOST" if hosts is None else f"HOST:PORT with one of {', '.join(sorted(hosts))}"
        raise ConfigurationError(
            f"{url[:200]!r} is no place for a worker; it must be http://{where}"
            + (":PORT, without a path (leave out /v1), user or password" if hosts is None else "")
        )


class Registry:
    """The one list of workers; the launcher announces, the router chooses, `watch` keeps it true."""

    def __init__(self, *, hosts: Collection[str] = LOOPBACK_NAMES, clock: Clock = time.monotonic) -> None:
        self._workers: dict[str, Worker] = {}
        self._hosts = frozenset(hosts)
        """Where workers may be: what announces itself must not make us ask anything else on the network."""
        self._clock = clock
        self._http = httpx2.AsyncClient(timeout=ASK_TIMEOUT_S, trust_env=False)
        self.after_asking: list[Callable[[Worker], None]] = []
        """Told of each worker after each question to it, answered or not."""
        self.before_serving: Callable[[WorkerStatus], Awaitable[None]] | None = None
        """Told of a status whose identities are new for an added worker, before it gets any work."""
        self._draining: set[str] = set()

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

    def worker(self, name: str) -> Worker | None:
        """The worker of a name; `None` where there is none, or no longer."""
        return self._workers.get(name)

    def expect(self, name: str, identities: Iterable[str]) -> Worker:
        """Say that a worker is being started: its identities are known from now on, served or not."""
        worker = self._known(name)
        worker.expected = frozenset(identities)
        worker.note = "starting"
        return worker

    def announce(self, name: str, url: str, status: WorkerStatus) -> None:
        """A worker answers at `url`, as new; raises `ConfigurationError` for an address where none may be."""
        check_worker_url(url, self._hosts)
        worker = self._known(name)
        worker.url = url.rstrip("/")
        worker.breaker = Breaker()
        worker.starts += 1
        self._observe(worker, status)

    def allow(self, host: str) -> None:
        """A launcher of ours puts workers on that host too."""
        self._hosts |= {host}

    def add(self, name: str, url: str, identities: Iterable[str], engine: ForeignEngine | None) -> Worker:
        """A worker that somebody told us of, `engine` if it is of another kind; it gets work when it has answered."""
        check_worker_url(url, None)
        worker = self.expect(name, identities)
        worker.added, worker.engine = True, engine
        worker.url, worker.status, worker.identities = url.rstrip("/"), None, {}
        worker.lease, worker.breaker = Lease(), Breaker()
        worker.note = "has not answered yet"
        return worker

    def remove(self, name: str) -> None:
        """Forget a worker; requests under way with it go on."""
        self._workers.pop(name, None)

    def drain(self, name: str, draining: bool) -> None:
        """Give a worker, there or to come, nothing new; or work again."""
        (self._draining.add if draining else self._draining.discard)(name)
        if (worker := self._workers.get(name)) is not None:
            worker.draining = draining

    def withdraw(self, name: str, reason: str) -> None:
        """A worker has ended; its identities stay known."""
        worker = self._workers[name]
        worker.url = None
        worker.status = None
        worker.note = reason

    def failed(self, name: str, reason: str, *, gone: bool = False) -> None:
        """A request to a worker failed; one that is `gone` gets no work until it was tried again."""
        if (worker := self._workers.get(name)) is not None:
            worker.breaker.failed(self._clock(), reason, gone=gone)

    def succeeded(self, name: str) -> None:
        """A worker began to answer a request."""
        if (worker := self._workers.get(name)) is not None:
            worker.breaker.succeeded()

    def serving(self, identity: str) -> list[Worker]:
        """The workers of an identity that may be given work."""
        return [worker for worker in self._workers.values() if worker.alive and identity in worker.identities]

    async def ask(self, url: str) -> WorkerStatus:
        """Read `GET /worker` of one of ours; raises `httpx2.HTTPError` or `pydantic.ValidationError`."""
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

    def _known(self, name: str) -> Worker:
        new = Worker(name, frozenset(), self._clock, draining=name in self._draining)
        return self._workers.setdefault(name, new)

    async def _refresh(self, worker: Worker) -> None:
        url, engine = worker.url, worker.engine
        if url is None:
            return
        try:
            async with asyncio.timeout(ASK_WHOLE_S):
                status = (
                    await self.ask(url)
                    if engine is None
                    else await engine.ask(self._http, worker.name, url, self._clock())
                )
        except (httpx2.HTTPError, ValidationError, NotAnswering, TimeoutError) as error:
            if worker.url == url:
                worker.lease.missed()
                worker.note = f"does not answer: {type(error).__name__}"
        else:
            try:
                await self._take(worker, url, status)
            except TiltyardError as error:  # what cannot be recorded is not served
                worker.note = error.message
        for tell in self.after_asking:
            tell(worker)

    async def _take(self, worker: Worker, url: str, status: WorkerStatus) -> None:
        """Take what a worker answered at `url`, of an added one only what may be served under its names."""
        if worker.added and self.before_serving is not None:
            known = {identity.deployment for identity in worker.identities.values()}
            new = [i for i in status.identities if i.deployment not in known and not self._other(worker, i)]
            if new:
                await self.before_serving(status.model_copy(update={"identities": tuple(new)}))
        if worker.url != url or self._workers.get(worker.name) is not worker:
            return  # it was withdrawn, removed or started again meanwhile
        # From here on nothing is awaited: of two that answer at once, the second one sees the first.
        others = {identity.name: self._other(worker, identity) for identity in status.identities}
        self._observe(worker, status)
        if not worker.added:
            return
        worker.identities = {i.name: i for i in status.identities if others[i.name] is None}
        for name, other in others.items():
            if other is not None:
                worker.note = (
                    f"would serve another model as {name} than {other.name} does; "
                    "remove it and add it with --as ANOTHER-NAME"
                )

    def _other(self, worker: Worker, identity: IdentityStatus) -> Worker | None:
        """Who serves something else under the same name: one name is one behaviour."""
        for other in self._workers.values():
            same = other.identities.get(identity.name)
            differs = same is not None and same.behaviour != identity.behaviour
            if other is not worker and other.url is not None and differs:
                return other
        return None

    def _observe(self, worker: Worker, status: WorkerStatus) -> None:
        worker.status = status
        worker.lease.renew(self._clock())
        worker.identities = {identity.name: identity for identity in status.identities}
        worker.note = "has made no step for a minute" if worker.stuck else status.state

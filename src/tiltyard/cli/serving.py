"""The life of the public process: take the address, start the workers, serve, drain, end with 0."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import ssl
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.types import ASGIApp

from tiltyard import __version__
from tiltyard.cli.address import OneAddress, is_loopback, is_wildcard, listen, refuse_strangers
from tiltyard.cli.forgetting import forget_erased
from tiltyard.cli.launching import (
    Rolls,
    add_static,
    autoscaler_of,
    launcher_of,
    replicas_at_start,
    waiting_room,
)
from tiltyard.cli.progress import progress_on
from tiltyard.cli.screening import screens
from tiltyard.cli.settings import Settings
from tiltyard.cli.workers import (
    check_machine,
    fetch_models,
    prepare_data_directory,
    sole_server_of,
    starts_workers,
    worker_specs,
)
from tiltyard.client import ModelClient
from tiltyard.errors import ConfigurationError
from tiltyard.events.log import EventLog
from tiltyard.events.places import is_there
from tiltyard.fleet.membership import Membership
from tiltyard.fleet.place import LaunchProgress
from tiltyard.fleet.records import FleetRecorder
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.app import create_gateway
from tiltyard.gateway.connection import CarefulConnection, CarefulSocket
from tiltyard.governance.retention import retain_regularly
from tiltyard.governance.terms import record_terms
from tiltyard.identity.store import IdentityStore
from tiltyard.objectives.declaration import in_force
from tiltyard.objectives.figures import Figures
from tiltyard.objectives.look import Objectives
from tiltyard.router.ledger import Ledger, MemoryLedger
from tiltyard.router.redis_ledger import RedisLedger
from tiltyard.router.router import Router
from tiltyard.router.tenants import UNLIMITED, TenantTerms
from tiltyard.telemetry.objective_metrics import ObjectiveMetrics
from tiltyard.wire.hosts import LOOPBACK_NAMES
from tiltyard.wire.worker import WorkerSpec

SAY_EVERY_S = 2.0
HANG_UP_EVERY_S = 0.1
"""A connection that was being accepted when we hung up shows up a moment later."""


@dataclass(frozen=True)
class Running:
    """What the pages may use of what runs."""

    settings: Settings
    log: EventLog
    registry: Registry
    client: ModelClient
    """Asks the gateway of this very process, as a user would; blind, since the arena asks with it."""
    objectives: Objectives
    hosts: frozenset[str] = LOOPBACK_NAMES
    """Names under which this server is served."""


MakePages = Callable[[Running], Starlette]
"""The app of the pages; `app.state.collectors` are metrics of theirs, for `/metrics`."""


def serve(settings: Settings, *, host: str | None, port: int | None, make_pages: MakePages | None) -> None:
    """Serve until Ctrl-C or SIGTERM; raises a `TiltyardError` when something keeps it from starting."""
    signal.signal(
        signal.SIGUSR1, signal.SIG_IGN
    )  # a restart that is asked for too early; `Rolls` obeys later
    check_machine(settings)
    check_exposure(
        settings,
        host or settings.file.server.host,
        said_by="--host" if host else f"{settings.shown}: server.host",
    )
    listener = listen(
        host or settings.file.server.host,
        settings.file.server.port if port is None else port,
    )
    with listener:
        say(f"tiltyard {__version__}  settings {settings.path or 'as shipped'}")
        prepare_data_directory(settings)
        with sole_server_of(settings.data_dir):
            specs = (
                worker_specs(settings, fetch_models(settings, progress_on()))
                if starts_workers(settings)
                else []
            )
            with (
                EventLog.open(settings.log_place, keys=settings.keys_place) as log,
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                runner.run(serve_until_told(settings, log, listener, specs, make_pages))
    say("ended; nothing is lost")


def check_exposure(settings: Settings, host: str, *, said_by: str) -> None:
    """Raise `ConfigurationError` where strangers could reach a server that asks for no key."""
    server = settings.file.server
    if is_loopback(host) or server.require_keys or server.serve_without_keys:
        return
    if is_there(settings.log_place):
        with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
            if log.api_keys():
                return
    raise refuse_strangers(host, said_by=said_by)


async def serve_until_told(
    settings: Settings,
    log: EventLog,
    listener: socket.socket,
    specs: Sequence[WorkerSpec],
    make_pages: MakePages | None,
) -> None:
    """Start the workers, serve, and drain when told to end."""
    server_settings = settings.file.server
    host, port = listener.getsockname()[:2]
    tls = server_settings.tls_cert is not None
    own = host if not is_wildcard(host) else "::1" if ":" in host else "127.0.0.1"
    url = f"http{'s' * tls}://[{own}]:{port}" if ":" in own else f"http{'s' * tls}://{own}:{port}"
    hosts = (*server_settings.hosts, *(() if is_wildcard(host) else (host,)))
    house_key = secrets.token_urlsafe(32)
    told = asyncio.Event()
    keeping: list[asyncio.Task[None]] = []
    with told_by_signals(told) as again, Rolls() as rolls:
        registry = Registry()
        recorder = FleetRecorder(log, IdentityStore(settings.identity_dir))
        registry.before_serving = recorder.joined
        membership = Membership(registry)
        client = ModelClient(
            url,
            api_key=house_key,
            blind=True,
            verify=trust_only(settings.base_dir / server_settings.tls_cert)
            if server_settings.tls_cert
            else None,
        )
        launcher = launcher_of(settings, registry, recorder=recorder, report=StartReport().show)
        start = asyncio.create_task(launcher.start(specs, replicas_at_start(settings)))
        stop = asyncio.create_task(told.wait())
        await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not start.done():
                start.cancel()
                await asyncio.gather(start, return_exceptions=True)
                return
            start.result()
            membership.look(log)
            add_static(settings, registry)
            await registry.refresh()
            keeping.append(asyncio.create_task(membership.watch(log)))
            show_workers(registry)
            record_terms(log, settings.file.data.terms)
            router = Router(
                registry,
                settings.file.aliases,
                sticky=settings.file.router.sticky_sessions,
                gate_tokens=settings.file.router.gate_tokens,
            )
            waiting = waiting_room(settings, registry, launcher)
            objectives = Objectives(log, in_force(settings.file.objectives), lives=True, held_back=True)
            pages = (
                make_pages(Running(settings, log, registry, client, objectives, LOOPBACK_NAMES | set(hosts)))
                if make_pages
                else None
            )
            gateway = create_gateway(
                router=router,
                log=log,
                hosts=hosts,
                unknown_fields=server_settings.unknown_fields,
                tenants=settings.file.tenants,
                ledger=open_ledger(settings, log),
                require_keys=server_settings.require_keys,
                house_key=house_key,
                collectors=(
                    ObjectiveMetrics(Figures(objectives)),
                    *(() if pages is None else pages.state.collectors),
                ),
                screens=screens(settings),
                waiting=waiting,
            )
            app = OneAddress(gateway, pages)
            server = Server(
                server_config(app, settings),
                gateway.state.answering,
            )
            housekeeping = [
                asyncio.create_task(
                    forget_erased(
                        log, log.last_sequence(), secrets.token_hex(4), gateway=gateway, pages=pages
                    )
                )
            ]
            if (hours := settings.file.data.retain_hours) > 0:
                housekeeping.append(asyncio.create_task(retain_regularly(log, hours * 3600.0)))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            scaler = autoscaler_of(settings, launcher, router, waiting, membership.members)
            keeping.append(asyncio.create_task(scaler.watch()))
            rolls.begin(launcher, settings.file.server.drain_seconds, say)
            closed = server_settings.require_keys or bool(log.api_keys())
            show_doors(settings, url, arena=pages is not None, closed=closed)
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
            say("draining: answers in flight may end (Ctrl-C again ends them now)")
            server.should_exit = True
            hurry = asyncio.create_task(again.wait())
            await asyncio.wait(
                {serving, hurry},
                timeout=settings.file.server.drain_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            hurry.cancel()
            while not serving.done():
                server.hang_up()
                await asyncio.wait({serving}, timeout=HANG_UP_EVERY_S)
            await serving
            for task in housekeeping:
                task.cancel()
            await asyncio.gather(*housekeeping, return_exceptions=True)
        finally:
            for task in keeping:
                task.cancel()
            await rolls.aclose()
            await launcher.stop(drain_s=5.0)
            await client.aclose()
            await registry.aclose()
            stop.cancel()


def open_ledger(settings: Settings, log: EventLog) -> Ledger:
    """The accounts of the tenants; those in memory begin with what the log says of this month."""
    if settings.limits_url is not None:
        return RedisLedger(settings.limits_url)
    ledger = MemoryLedger()
    tenants = settings.file.tenants | {
        name: TenantTerms.model_validate(table) for name, table in log.tenant_terms().items()
    }
    for row in log.token_usage(since_us=ledger.month_began_us()):
        terms = tenants.get(row.tenant) or tenants.get("default", UNLIMITED)
        ledger.restore(row.tenant, row.day, terms.cost_nano(row.prompt_tokens, row.completion_tokens))
    return ledger


def server_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """How connections are served: our limits, TLS where there is a certificate, and which proxies are believed."""
    server = settings.file.server
    return uvicorn.Config(
        app,
        http=CarefulConnection,
        ws=CarefulSocket,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(server.trusted_proxies),
        forwarded_allow_ips=list(server.trusted_proxies),
        ssl_certfile=settings.base_dir / server.tls_cert if server.tls_cert else None,
        ssl_keyfile=settings.base_dir / server.tls_key if server.tls_key else None,
    )


def trust_only(certificate: Path) -> ssl.SSLContext:
    """A context that trusts our own certificate, whatever name it was made for: we ask ourselves by address."""
    try:
        context = ssl.create_default_context(cafile=certificate)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"server.tls_cert: {certificate} cannot be read: {error}") from None
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is the anchor
    return context


class Server(uvicorn.Server):
    """Uvicorn, with the signals left to us: it would raise them again after a clean end."""

    def __init__(self, config: uvicorn.Config, answering: Collection[asyncio.Task[None]]) -> None:
        super().__init__(config)
        self._answering = answering

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new connections, let answers on WebSockets end, which uvicorn closes at once; then the rest."""
        for server in self.servers:
            server.close()
        while self._answering:
            await asyncio.wait(set(self._answering))
        await super().shutdown(sockets)

    def hang_up(self) -> None:
        """Cut every connection; each answer ends and is recorded as when its client leaves.

        Uvicorn's own ways (`force_exit`, a timeout of the shutdown) skip the end of the apps, or cancel their
        tasks: a battle's end goes unrecorded, and each task leaves a traceback in the output.
        """
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


@contextmanager
def told_by_signals(told: asyncio.Event) -> Iterator[asyncio.Event]:
    """Set `told` at the first SIGINT or SIGTERM, and the event that is yielded at the second."""
    again, loop = asyncio.Event(), asyncio.get_running_loop()

    def take() -> None:
        (again if told.is_set() else told).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, take)
    try:
        yield again
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class StartReport:
    """Says that a worker is still loading, every few seconds."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def show(self, progress: LaunchProgress) -> None:
        """Show one line if the last one is old enough."""
        if progress.seconds - self._said.get(progress.worker, 0.0) >= SAY_EVERY_S:
            self._said[progress.worker] = progress.seconds
            line = progress.line.removeprefix(f"{progress.worker}: ")
            say(f"  starting {progress.worker}: {progress.seconds:.0f} s  {line}")


def show_workers(registry: Registry) -> None:
    """Say what each worker serves."""
    for worker in registry.workers:
        served = ", ".join(worker.identities)
        say(f"  worker   {worker.name}: {served or f'nothing yet ({worker.why})'}")


def show_doors(settings: Settings, url: str, *, arena: bool, closed: bool) -> None:
    """Say where everything is, and whether a key is needed."""
    names = (*settings.file.aliases, *settings.identities, *settings.file.router.added_identities)
    model = next(iter(names))
    if arena:
        say(f"  arena    {url}/")
        say(f"  board    {url}/leaderboard")
        say(f"  releases {url}/releases")
    key = "a key of `tiltyard keys create`" if closed else "any key"
    say(f'  OpenAI   {url}/v1  (model "{model}", {key})')
    say(f"  data     {settings.data_dir}")
    say("ready; Ctrl-C drains and ends")


def say(text: str) -> None:
    """One line for the person who started us."""
    click.echo(text)

"""What keeps the fleet of a server: its launcher, who scales it, the room for those who wait, and the rolling restart."""

from __future__ import annotations

import asyncio
import importlib
import signal
from collections.abc import Callable, Collection
from typing import Self
from urllib.parse import urlsplit

from tiltyard.cli.settings import RaySettings, Settings
from tiltyard.errors import ConfigurationError, TiltyardError
from tiltyard.fleet.autoscaler import Autoscaler, Demand
from tiltyard.fleet.launcher import Launcher, LocalLauncher
from tiltyard.fleet.membership import Members
from tiltyard.fleet.place import LaunchProgress, Place
from tiltyard.fleet.records import FleetRecorder
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.waiting import WaitingRoom
from tiltyard.router.router import Router


def launcher_of(
    settings: Settings,
    registry: Registry,
    *,
    recorder: FleetRecorder,
    report: Callable[[LaunchProgress], None],
) -> Launcher:
    """The launcher that the settings name; raises `ConfigurationError` where its cluster cannot be joined."""
    memory_mb, ray = settings.file.workers.memory_mb, settings.file.workers.ray
    if ray is not None:
        return Launcher(
            registry,
            ray_place(ray),
            recorder=recorder,
            report=report,
            memory_limit_bytes=memory_mb << 20 or None,
        )
    return LocalLauncher(
        registry,
        run_directory=settings.data_dir / "run",
        recorder=recorder,
        report=report,
        memory_limit_bytes=memory_mb << 20 or None,
    )


def ray_place(ray: RaySettings) -> Place:
    """Join a Ray cluster; the package is large, so that only who names one needs it."""
    try:
        module = importlib.import_module("tiltyard.fleet.ray_place")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"[workers.ray] needs the package {error.name}; install tiltyard[ray]"
        ) from None
    place: Place = module.RayPlace(ray.address, cpus=ray.cpus, resources=ray.resources)
    return place


def add_static(settings: Settings, registry: Registry) -> None:
    """Ask the workers that the settings name by URL, again and again until they are there; raises `ConfigurationError`."""
    for url in settings.file.workers.at:
        registry.add(urlsplit(url).netloc.replace(":", "-"), url, (), None)


def replicas_at_start(settings: Settings) -> int:
    """How many workers of each kind there are at first."""
    workers = settings.file.workers
    if workers.scaling is None:
        return workers.replicas
    return max(workers.scaling.minimum, min(workers.replicas, workers.scaling.maximum))


def waiting_room(settings: Settings, registry: Registry, launcher: Launcher) -> WaitingRoom:
    """Where requests wait for a first replica; nobody waits where none is ever started."""
    scaling = settings.file.workers.scaling
    if scaling is None:
        return WaitingRoom(registry)

    def may_come(identity: str) -> bool:
        return any(identity in launcher.identities(group) for group in launcher.groups)

    return WaitingRoom(registry, may_come, scaling.waiting_s, scaling.waiting_requests)


def autoscaler_of(
    settings: Settings, launcher: Launcher, router: Router, waiting: WaitingRoom, members: Members
) -> Autoscaler:
    """Who sets the size of each group: `tiltyard fleet scale`, or else the load."""
    scaling = settings.file.workers.scaling
    policies = {} if scaling is None else dict.fromkeys(launcher.groups, scaling.policy)
    demand = Demand(router.loads.unfinished, waiting.waiting_tokens)

    def fixed(identities: Collection[str]) -> int | None:
        said = [members.replicas[name] for name in identities if name in members.replicas]
        return max(said) if said else None

    return Autoscaler(
        launcher,
        router.registry,
        policies,
        demand,
        fixed=fixed,
        drain_s=settings.file.server.drain_seconds,
    )


class Rolls:
    """SIGUSR1 restarts every worker, one after the other, under whatever load there is."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def begin(self, launcher: Launcher, drain_s: float, say: Callable[[str], None]) -> None:
        """Obey the signal from now on."""

        async def roll() -> None:
            try:
                count = await launcher.roll(drain_s=drain_s, told=lambda worker: say(f"restarting {worker}"))
            except TiltyardError as error:
                say(f"the rolling restart has ended early: {error.message}")
            else:
                say(f"{count} workers were restarted, one after the other")

        def take() -> None:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(roll())

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, take)

    async def aclose(self) -> None:
        """Give up a roll that is under way: the server ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)

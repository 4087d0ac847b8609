"""Groups of workers on a place: so many replicas each, restarted one after the other, drained at the end.

::

    launcher = LocalLauncher(registry, run_directory=Path("run"))
    await launcher.start([spec])               # one replica each; returns when all serve
    await launcher.scale("smollm2", 3)         # returns at once: two more are on their way
    await launcher.roll(drain_s=30)            # every worker anew, and never one fewer than there are
    await launcher.stop()
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tiltyard.errors import Conflict, InvalidRequest, NotFound
from tiltyard.fleet.autoscale import MOST_REPLICAS
from tiltyard.fleet.keeper import Keeper, Patience
from tiltyard.fleet.place import LaunchProgress, Place
from tiltyard.fleet.process import COMMAND, ThisMachine
from tiltyard.fleet.records import FleetRecorder
from tiltyard.fleet.registry import Registry
from tiltyard.wire.worker import WorkerSpec

END_S = 15.0
"""How long workers may take to end beyond their drain: to be told, killed, and recorded."""


def _report_nothing(_progress: LaunchProgress) -> None:
    """The default: nobody watches the start."""


class Replicas(NamedTuple):
    """How many workers of a group there are."""

    ready: int
    starting: int

    @property
    def ordered(self) -> int:
        """Those that serve and those that will."""
        return self.ready + self.starting


class Launcher:
    """Keeps the groups at their size and the registry true; `start`, then `stop`."""

    def __init__(
        self,
        registry: Registry,
        place: Place,
        *,
        recorder: FleetRecorder | None = None,
        report: Callable[[LaunchProgress], None] = _report_nothing,
        patience: Patience | None = None,
        memory_limit_bytes: int | None = None,
    ) -> None:
        self._registry = registry
        self._place = place
        self._recorder = recorder
        self._report = report
        self._patience = patience or Patience()
        self._memory_limit_bytes = memory_limit_bytes
        self._specs: dict[str, WorkerSpec] = {}
        self._keepers: dict[str, list[Keeper]] = {}
        """By group; the first ones stay longest."""
        self._leaving: dict[asyncio.Task[None], Keeper] = {}
        self._watching: asyncio.Task[None] | None = None
        self._rolling = asyncio.Lock()
        self._stopping = False

    @property
    def groups(self) -> Mapping[str, Replicas]:
        """How many replicas each group has."""
        return {
            name: Replicas(serving := sum(keeper.serves for keeper in keepers), len(keepers) - serving)
            for name, keepers in self._keepers.items()
        }

    def workers(self, group: str) -> tuple[str, ...]:
        """The names of a group's workers; raises `NotFound`."""
        return tuple(keeper.name for keeper in self._group(group))

    def identities(self, group: str) -> frozenset[str]:
        """The names of what a group's workers serve; raises `NotFound`."""
        self._group(group)
        return frozenset(self._specs[group].identities)

    async def start(self, specs: Sequence[WorkerSpec], replicas: int = 1) -> None:
        """Start a group of so many replicas for each spec, named as its worker is, and return when all serve.

        Raises `WorkerFailed` with the first worker's last words if one does not come up; the others are
        ended then.
        """
        self._watching = asyncio.create_task(self._registry.watch())
        firsts: list[asyncio.Future[None]] = []
        for spec in specs:
            self.declare(spec)
            await self.scale(spec.worker, replicas)
            firsts += [keeper.first for keeper in self._keepers[spec.worker]]
        try:
            await asyncio.gather(*firsts)
        except BaseException:
            await self.stop(drain_s=0)
            raise

    def declare(self, spec: WorkerSpec) -> None:
        """Make a group that has no replicas yet; its identities are known from now on. Raises `Conflict`."""
        if spec.worker in self._specs:
            raise Conflict(f"there is a group of workers {spec.worker!r} already")
        self._specs[spec.worker] = spec
        self._keepers[spec.worker] = []
        self._registry.expect(spec.worker, spec.identities)
        self._registry.withdraw(spec.worker, "has no replicas now")

    async def scale(self, group: str, replicas: int, *, drain_s: float = 30.0) -> None:
        """Order so many replicas; new ones come when they serve, those too many are drained behind our back.

        While workers are rolled nothing goes: one of them is away already. Whoever wants fewer asks again.
        Raises `NotFound` for a group that is not declared, `InvalidRequest` for a number that cannot be.
        """
        if self._rolling.locked():
            replicas = max(replicas, len(self._group(group)))
        self._resize(group, replicas, drain_s)

    def _resize(self, group: str, replicas: int, drain_s: float) -> None:
        keepers = self._group(group)
        if not 0 <= replicas <= MOST_REPLICAS:
            raise InvalidRequest(
                f"replicas is {replicas}; it must be 0 to {MOST_REPLICAS:,}", param="replicas"
            )
        while len(keepers) < replicas and not self._stopping:
            keepers.append(self._keeper(self._specs[group], self._free_name(group)))
        while len(keepers) > replicas:
            # One that does not serve yet costs nobody anything.
            leaving = next((k for k in reversed(keepers) if not k.serves), keepers[-1])
            keepers.remove(leaving)
            task = asyncio.create_task(self._leave(leaving, drain_s))
            self._leaving[task] = leaving
            task.add_done_callback(self._leaving.pop)

    async def _leave(self, keeper: Keeper, drain_s: float) -> None:
        await keeper.retire(drain_s, "scaled down")
        if keeper.name not in self._specs:  # the name of the group stays, and its identities with it
            self._registry.remove(keeper.name)

    async def restart(self, worker: str, *, drain_s: float = 30.0) -> None:
        """Drain one worker, end it and start it anew; returns when it serves. Raises `NotFound`."""
        for keepers in self._keepers.values():
            for keeper in keepers:
                if keeper.name == worker:
                    await keeper.restart(drain_s)
                    return
        names = ", ".join(keeper.name for keepers in self._keepers.values() for keeper in keepers)
        raise NotFound(f"there is no worker {worker!r} here; there are: {names or 'none'}", param="worker")

    async def roll(self, *, drain_s: float = 30.0, told: Callable[[str], None] = lambda _worker: None) -> int:
        """Restart every worker, one after the other; returns how many. `told` hears of each before it begins.

        A group never has one fewer than it had: where it has a single replica, a second one serves meanwhile.
        """
        done = 0
        async with self._rolling:
            for group in tuple(self._keepers):
                size = len(self._keepers[group])
                alone = size == 1
                if alone:
                    told(f"a second {group}, while the first is away")
                    self._resize(group, 2, drain_s)
                    await self._keepers[group][-1].until_it_serves()
                for keeper in tuple(self._keepers[group][:size]):
                    if keeper in self._keepers[group]:  # the group may have shrunk meanwhile
                        told(keeper.name)
                        await keeper.restart(drain_s)
                        done += 1
                if alone and len(self._keepers[group]) == 2:
                    self._resize(group, 1, drain_s)
        return done

    async def stop(self, *, drain_s: float = 20.0) -> None:
        """Drain every worker, end it, and kill what has not ended `drain_s` later."""
        self._stopping = True
        keepers = [keeper for kept in self._keepers.values() for keeper in kept]
        keepers += self._leaving.values()  # they may have been given more time than there is now
        ends = [asyncio.create_task(keeper.retire(drain_s, "the server ended")) for keeper in keepers]
        ends += self._leaving
        if ends:
            await asyncio.wait(ends, timeout=drain_s + END_S)
        for task in ends:
            task.cancel()
        for keeper in keepers:
            keeper.cancel()
        if self._watching is not None:
            self._watching.cancel()
            ends.append(self._watching)
        await asyncio.gather(*ends, return_exceptions=True)

    def _group(self, group: str) -> list[Keeper]:
        if group not in self._keepers:
            names = ", ".join(self._keepers) or "none"
            raise NotFound(f"there is no group of workers {group!r}; there are: {names}", param="group")
        return self._keepers[group]

    def _free_name(self, group: str) -> str:
        """`NAME`, `NAME-2`, `NAME-3`…: the first that nobody has, those who are leaving included."""
        taken = {
            worker.name
            for worker in self._registry.workers
            if worker.url is not None or worker.note == "starting"
        }
        taken |= {keeper.name for keeper in self._keepers[group]}
        names = (group if place == 1 else f"{group}-{place}" for place in range(1, 2 * MOST_REPLICAS + 2))
        return next(name for name in names if name not in taken)

    def _keeper(self, spec: WorkerSpec, name: str) -> Keeper:
        ready = Path(spec.ready_file)
        own = spec.model_copy(
            update={"worker": name, "ready_file": str(ready.with_name(ready.name.replace(spec.worker, name)))}
        )
        return Keeper(
            own,
            self._place,
            self._registry,
            recorder=self._recorder,
            report=self._report,
            patience=self._patience,
            memory_limit_bytes=self._memory_limit_bytes,
        )


class LocalLauncher(Launcher):
    """Workers as processes of this machine."""

    def __init__(
        self,
        registry: Registry,
        *,
        run_directory: Path,
        recorder: FleetRecorder | None = None,
        report: Callable[[LaunchProgress], None] = _report_nothing,
        command: Sequence[str] = COMMAND,
        patience: Patience | None = None,
        memory_limit_bytes: int | None = None,
    ) -> None:
        super().__init__(
            registry,
            ThisMachine(run_directory, command),
            recorder=recorder,
            report=report,
            patience=patience,
            memory_limit_bytes=memory_limit_bytes,
        )

"""Workers on a Ray cluster: an actor for each, which Ray places by what it needs and which dies with its node.

The actor starts the worker's process on its own node and watches it there; the keeper that started it sees the actor end when its node is
lost, and starts the worker anew, wherever there is room. An actor for which there is no room waits: Ray's autoscaler, where
there is one, adds a node for it. Needs `tiltyard[ray]` here and on every node, and the model's file under the same path on each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import ray
from ray.exceptions import RayActorError, RayError

from tiltyard.errors import ConfigurationError
from tiltyard.fleet.place import LaunchProgress, Ready, WorkerFailed
from tiltyard.fleet.process import COMMAND, WorkerProcess
from tiltyard.wire.worker import WorkerSpec

POLL_S = 0.5
END_S = 10.0
"""How long an actor may take to end its worker beyond the time that the worker was given."""

_logger = logging.getLogger(__name__)


class _Seat:
    """The actor: one worker process beside it, on the node that Ray chose."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._directory = tempfile.TemporaryDirectory(prefix="tiltyard-worker-")
        self._process: WorkerProcess | None = None

    async def start(self, spec_json: str) -> None:
        """Start the process; raises `ConfigurationError`."""
        spec = WorkerSpec.model_validate_json(spec_json)
        there = await asyncio.to_thread(Path(spec.model_path).is_file)
        if self._command == COMMAND and not there:
            raise ConfigurationError(
                f"worker {spec.worker}: there is no {spec.model_path} on the node {ray.util.get_node_ip_address()}; "
                "put the cache directory on a file system that all nodes share, or run `tiltyard models pull` on each"
            )
        run = Path(self._directory.name)
        own = spec.model_copy(
            update={
                "host": ray.util.get_node_ip_address(),
                "ready_file": str(run / "ready.json"),
                "identity_store": str(run / "identities"),
                "spill_dir": str(run),
            }
        )
        self._process = await WorkerProcess.start(own, self._command, run)

    async def until_ready(self, timeout_s: float) -> tuple[str, float]:
        """The address, and how long it took to load; raises `WorkerFailed`."""
        ready = await self._its.until_ready(timeout_s, lambda _progress: None)
        return ready.url, ready.load_ms

    async def last_line(self) -> str:
        """What it said last."""
        return self._its.last_line()

    async def ended(self) -> str:
        """Wait for its end; says how it ended."""
        return await self._its.ended()

    async def end(self, grace_s: float) -> None:
        """Give it `grace_s` to end by itself, then end it."""
        await self._its.end(grace_s)

    async def kill(self) -> None:
        """End it now."""
        await self._its.kill()

    async def memory_bytes(self) -> int | None:
        """Memory of its own."""
        return self._its.memory_bytes()

    @property
    def _its(self) -> WorkerProcess:
        if self._process is None:
            raise AssertionError("nothing was started here")
        return self._process


class RayWorker:
    """A worker in its seat, seen from where the launcher is."""

    def __init__(self, spec: WorkerSpec, seat: ray.actor.ActorHandle) -> None:
        self._spec = spec
        self._seat = seat
        self._began = time.monotonic()
        self._memory_bytes: int | None = None
        self._over = False

    async def until_ready(self, timeout_s: float, report: Callable[[LaunchProgress], None]) -> Ready:
        """Wait for room, for the process, and for its model; raises `WorkerFailed`."""
        name, starting = self._spec.worker, asyncio.ensure_future(self._starts(timeout_s))
        told = ""
        try:
            while not starting.done():
                seconds = time.monotonic() - self._began
                if seconds > timeout_s:
                    raise WorkerFailed(
                        f"worker {name} was not ready after {timeout_s:.0f} s; the Ray cluster may have no room for it "
                        "(`ray status` says what it waits for)"
                    )
                line = "waiting for room on the Ray cluster"
                with contextlib.suppress(RayError, AssertionError, TimeoutError):
                    line = await asyncio.wait_for(
                        asyncio.wrap_future(self._seat.last_line.remote().future()), POLL_S
                    )
                if line != told:
                    told = line
                    report(LaunchProgress(name, seconds, line))
                await asyncio.wait({starting}, timeout=POLL_S)
            url, load_ms = await starting
        except RayActorError as error:
            raise WorkerFailed(f"worker {name} did not start: its node was lost") from error
        except RayError as error:
            cause = getattr(error, "cause", None) or error
            raise WorkerFailed(f"worker {name} did not start: {getattr(cause, 'message', cause)}") from error
        finally:
            starting.cancel()
        return Ready(url, load_ms, trusted_host=urlsplit(url).hostname)

    async def _starts(self, timeout_s: float) -> tuple[str, float]:
        await self._seat.start.remote(self._spec.model_dump_json())
        url, load_ms = await self._seat.until_ready.remote(timeout_s)
        return str(url), float(load_ms)

    async def ended(self) -> str:
        """Wait for the end of the process, or of its node."""
        try:
            ending = asyncio.ensure_future(_told(self._seat.ended))
            while not ending.done():
                with contextlib.suppress(TimeoutError):
                    used = await asyncio.wait_for(_told(self._seat.memory_bytes), 2 * POLL_S)
                    self._memory_bytes = used if isinstance(used, int) else None
                await asyncio.wait({ending}, timeout=2 * POLL_S)
            how = str(await ending)
        except RayActorError:
            how = "its node was lost"
        self._over = True
        return how

    async def end(self, grace_s: float) -> None:
        """Give it `grace_s` to end by itself, then end it and give its seat up."""
        if not self._over:
            with contextlib.suppress(RayError, TimeoutError):
                await asyncio.wait_for(_told(self._seat.end, grace_s), grace_s + END_S)
        ray.kill(self._seat)

    async def kill(self) -> None:
        """End it now, even if it hangs."""
        with contextlib.suppress(RayError, TimeoutError):
            await asyncio.wait_for(_told(self._seat.kill), END_S)
        ray.kill(self._seat)

    def memory_bytes(self) -> int | None:
        """Memory of its own, as it was a moment ago."""
        return self._memory_bytes


async def _told(method: ray.actor.ActorMethod, *arguments: object) -> object:
    return await method.remote(*arguments)


class RayPlace:
    """A Ray cluster as a place of workers; `close` leaves it."""

    def __init__(
        self,
        address: str = "auto",
        *,
        cpus: float | None = None,
        resources: Mapping[str, float] | None = None,
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        """Join the cluster at `address`; raises `ConfigurationError` when it cannot be reached.

        `cpus` of each worker (its threads unless given) and `resources` are what Ray keeps free for it on its node.
        """
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
            except (ConnectionError, RuntimeError, ValueError) as error:
                reason = str(error).strip().splitlines()[0]
                raise ConfigurationError(f"the Ray cluster at {address} cannot be joined: {reason}") from None
        self._cpus = cpus
        self._resources = dict(resources or {})
        self._command = command

    async def start(self, spec: WorkerSpec) -> RayWorker:
        """Ask for a seat; returns at once, `until_ready` waits for room."""
        seat = (
            ray.remote(_Seat)
            .options(
                num_cpus=spec.threads if self._cpus is None else self._cpus,
                resources=self._resources,
                scheduling_strategy="SPREAD",
                max_restarts=0,  # the keeper starts it anew: it knows of back-off, drains and the registry
                max_concurrency=16,
            )
            .remote(self._command)
        )
        return RayWorker(spec, seat)

    def close(self) -> None:
        """Leave the cluster; what was started there ends."""
        ray.shutdown()

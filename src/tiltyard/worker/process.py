"""One worker process, from loading to a clean exit; `__main__.py` starts it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn
import uvloop
from pydantic import ValidationError
from uvicorn.config import LOGGING_CONFIG

from tiltyard.engine.fairness import FairnessConfig
from tiltyard.engine.request import EngineRequest, SamplingSettings
from tiltyard.errors import ConfigurationError, InvalidRequest, TiltyardError
from tiltyard.identity.store import IdentityStore
from tiltyard.telemetry.logs import announce, is_json, open_log
from tiltyard.telemetry.tracing import open_tracing
from tiltyard.wire.worker import WorkerSpec
from tiltyard.worker.app import WorkerDoors
from tiltyard.worker.host import HostSettings, ModelHost, load_host
from tiltyard.worker.load import ExpertsOnDisk
from tiltyard.worker.local import LocalModel
from tiltyard.worker.packed_cache import PackedCache
from tiltyard.worker.service import WorkerService
from tiltyard.worker.speculate import DraftSource
from tiltyard.worker.usage_metrics import WARM_UP_TENANT

PARENT_WATCH_S = 0.5
WARM_UP_WORDS = "A first answer costs more than the next, so this one is nobody's."
WARM_UP_ROWS = 32
"""Enough that the kernels take their ways for many rows."""
EXIT_CONFIGURATION = 2
EXIT_ENGINE_FAILED = 3


class QuietServer(uvicorn.Server):
    """Uvicorn, leaving signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def main(arguments: list[str]) -> int:
    """Run a worker until it is told to stop; returns the exit status."""
    if len(arguments) != 1:
        say("usage: python -m tiltyard.worker SPEC.json")
        return EXIT_CONFIGURATION
    try:
        spec = read_spec(Path(arguments[0]))
        open_log(spec.log, process="worker", instance=spec.worker)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(spec))
    except TiltyardError as error:
        say(f"error: {error.message}")
        return EXIT_CONFIGURATION


def read_spec(path: Path) -> WorkerSpec:
    """Read a spec; raises `ConfigurationError`."""
    try:
        return WorkerSpec.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"cannot read the worker spec {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"worker spec {path}: {field}: {first['msg']}", param=field) from error


async def serve(spec: WorkerSpec) -> int:
    """Listen, load, warm, say ready; then serve until drained."""
    began_s = time.monotonic()
    listener = listen(spec)
    tracing = open_tracing(spec.telemetry, process="worker", instance=spec.worker)
    doors = WorkerDoors(spec.worker, tracing)
    server = QuietServer(
        uvicorn.Config(
            doors.app(),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
            log_config=None if is_json() else LOGGING_CONFIG,
        )
    )
    stopping = asyncio.Event()
    watch = asyncio.create_task(watch_parent(server, stopping))
    on_signals(doors, stopping)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    service: WorkerService | None = None
    try:
        loading = asyncio.create_task(asyncio.to_thread(load, spec))
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait({loading, stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            os._exit(
                0
            )  # told to stop in mid-load: nothing was promised to anybody, and the thread cannot be stopped
        host = await loading
        service = WorkerService(spec.worker, host, max_queue=spec.max_queue)
        service.on_idle = stopping.set
        service.start()
        service.warmed = True
        doors.service = service
        load_ms = (time.monotonic() - began_s) * 1e3
        write_ready_file(spec, listener, load_ms)
        say(f"{spec.worker}: ready after {load_ms / 1e3:.2f} s at {address(listener)}")
        await asyncio.wait({stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
    finally:
        server.should_exit = True
        await serving
        watch.cancel()
        if service is not None and not service.dead:
            service.stop()
        retract_ready_file(spec)
        tracing.close()
        gc.unfreeze()  # else the interpreter ends without taking the model down
    say(f"{spec.worker}: stopped")
    return EXIT_ENGINE_FAILED if service is not None and service.dead else 0


def load(spec: WorkerSpec) -> ModelHost:
    """Load the model, say how far it is, and run one tiny step so that the first request finds warm pages."""
    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(total, 1)
        if tenth > shown:
            shown = tenth
            say(f"{spec.worker}: loading {Path(spec.model_path).name} {10 * tenth}%")

    host = load_host(
        Path(spec.model_path),
        spec.identities,
        HostSettings(
            threads=spec.threads,
            isa=spec.isa,
            kv_memory_bytes=spec.kv_memory_bytes,
            max_batch_tokens=spec.max_batch_tokens,
            max_sequences=spec.max_sequences,
            packed_cache=None
            if spec.packed_cache is None
            else PackedCache(Path(spec.packed_cache), spec.packed_cache_bytes),
            spill_bytes=spec.spill_bytes,
            spill_dir=None if spec.spill_dir is None else Path(spec.spill_dir),
            fairness=FairnessConfig() if spec.class_weights is None else FairnessConfig(spec.class_weights),
            speculation=(
                DraftSource(Path(spec.draft.model_path), spec.draft.quantization)
                if spec.draft is not None
                else "prompt-lookup"
                if spec.speculation == "prompt-lookup"
                else "off"
            ),
            experts=None
            if spec.expert_directory is None
            else ExpertsOnDisk(Path(spec.expert_directory), spec.expert_memory_bytes),
        ),
        store=IdentityStore(Path(spec.identity_store)),
        progress=progress,
    )
    warm(host)
    gc.freeze()  # what is here stays: no collection need look at it, in the middle of answers
    gc.enable()  # `__main__.py` had it off
    return host


def warm(host: ModelHost) -> None:
    """Answer once, from messages to text, as a first request would; then run some rows that no cache knows."""
    served = next(iter(host.identities.values()))
    with contextlib.suppress(
        InvalidRequest
    ):  # a template may want more than a user's turn; the rows below do then
        words = [{"role": "user", "content": WARM_UP_WORDS}]
        LocalModel(host).generate(served.name, messages=words, seed=0, max_tokens=2)
    rows = min(WARM_UP_ROWS, host.max_context_tokens - 1, host.config.vocab_size)
    hot = SamplingSettings(temperature=1.0, top_p=0.9)
    host.engine.submit(
        EngineRequest("warm-up", tuple(range(rows)), hot, 2, frozenset(), "warm-up", tenant=WARM_UP_TENANT)
    )
    while host.engine.has_work:
        host.engine.step()


def listen(spec: WorkerSpec) -> socket.socket:
    """Bind the spec's address; raises `ConfigurationError` if it is taken."""
    listener = socket.socket(socket.AF_INET6 if ":" in spec.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((spec.host, spec.port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {spec.host}:{spec.port}: {error.strerror}. "
            "Choose another port or stop what uses it."
        ) from error
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def address(listener: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write_ready_file(spec: WorkerSpec, listener: socket.socket, load_ms: float) -> None:
    """Write `{"url", "pid", "load_ms"}` so that a reader sees the whole file or none."""
    target = Path(spec.ready_file)
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(handle, "w") as stream:
        json.dump({"url": address(listener), "pid": os.getpid(), "load_ms": load_ms}, stream)
    Path(temporary).replace(target)


def retract_ready_file(spec: WorkerSpec) -> None:
    """Nobody answers at that address any more."""
    Path(spec.ready_file).unlink(missing_ok=True)


def on_signals(doors: WorkerDoors, stopping: asyncio.Event) -> None:
    """SIGTERM and SIGINT drain; a second one stops at once."""

    def stop() -> None:
        service = doors.service
        if service is None or service.draining:
            stopping.set()
        else:
            service.drain()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


async def watch_parent(server: QuietServer, stopping: asyncio.Event) -> None:
    """Stop when the process that started us has gone: nobody is left to hear the answers."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - the system has no event for this
        await asyncio.sleep(PARENT_WATCH_S)
    server.force_exit = True
    stopping.set()


def say(line: str) -> None:
    """One line for the log."""
    announce(line, lambda text: print(text, file=sys.stderr, flush=True))

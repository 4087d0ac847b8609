"""The machine: Python, kernels, memory, threads, open files, clock."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tiltyard import __version__
from tiltyard.errors import ConfigurationError
from tiltyard.ops.doctor.finding import Finding

LEAST_PYTHON: Final = (3, 11)
LEAST_FILES: Final = 4096
UNSYNCHRONIZED: Final = 0x40
"""`STA_UNSYNC` of <sys/timex.h>: nobody disciplines the clock."""
CGROUP: Final = Path("/sys/fs/cgroup")


def python(extras: dict[str, str]) -> Iterator[Finding]:
    """The interpreter, and packages that the settings need: `{module: what for}`."""
    version = platform.python_version()
    if sys.version_info < LEAST_PYTHON:
        yield Finding(
            "python", "fail", f"Python {version}; 3.11 or newer is needed", "make venv with a newer Python"
        )
    else:
        yield Finding("python", "ok", f"tiltyard {__version__}, {platform.python_implementation()} {version}, {platform.system()} {platform.machine()}")  # fmt: skip
    for module, extra in extras.items():
        if find_spec(module) is None:
            yield Finding(
                "packages",
                "fail",
                f"{module} is not installed, and the settings need it",
                f"pip install '{extra}'",
            )


def kernels(isa: str) -> Iterator[Finding]:
    """The compiled module, and which instruction set it takes."""
    try:
        chooser = import_module("tiltyard.kernels.chooser")
    except ImportError as error:
        yield Finding(
            "kernels", "fail", f"the compiled kernels cannot be loaded: {error}", "build them again: make up, or pip install --force-reinstall tiltyard"
        )  # fmt: skip
        return
    available = ", ".join(chooser.available_isas())
    try:
        chosen = chooser.choose_isa(isa)
    except ConfigurationError as error:
        yield Finding(
            "kernels",
            "fail",
            error.message,
            f"set workers.isa or TILTYARD_ISA to one of {available}, or auto",
        )
        return
    if chosen == "scalar" and platform.machine() in ("x86_64", "aarch64"):
        yield Finding(
            "kernels",
            "warn",
            f"only scalar code: slow (available: {available})",
            "build for this CPU: make up",
        )
    else:
        yield Finding("kernels", "ok", f"{chosen} (available: {available})")


def memory(needed_bytes: int, what: str) -> Iterator[Finding]:
    """Memory that is free here, against what the workers will take."""
    total, available = _memory()
    told = f"{available / 1e9:.1f} GB free of {total / 1e9:.1f} GB"
    if needed_bytes > total:
        yield Finding(
            "memory", "fail", f"{told}; {what} take about {needed_bytes / 1e9:.1f} GB",
            "serve fewer or smaller models, or set workers.kv_memory_mb",
        )  # fmt: skip
    elif needed_bytes > available:
        yield Finding(
            "memory", "warn", f"{told}; {what} take about {needed_bytes / 1e9:.1f} GB", "end what else needs memory here"
        )  # fmt: skip
    else:
        yield Finding("memory", "ok", f"{told}; {what} take about {needed_bytes / 1e9:.1f} GB")


def threads(workers: int, each: int | None) -> Iterator[Finding]:
    """Cores, against the threads that the workers start; `None`: they share what there is."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota()
    told = f"{cores} cores" + ("" if quota is None else f", of which a limit allows {quota:g}")
    usable = min(float(cores), quota or cores)
    wanted = workers * (each or 0)
    if wanted > usable:
        yield Finding(
            "threads", "warn", f"{told}; {workers} workers with {each} threads wait for each other",
            'set workers.threads to "auto" or fewer, or workers.replicas to fewer',
        )  # fmt: skip
    else:
        yield Finding("threads", "ok", told)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < LEAST_FILES:
        yield Finding(
            "open files", "warn", f"at most {soft:,} (hard limit {hard:,}): each stream takes one", f"ulimit -n {LEAST_FILES}"
        )  # fmt: skip
    else:
        yield Finding("open files", "ok", f"at most {soft:,}")


def clock(newest_event_us: int | None, now_us: int | None = None) -> Iterator[Finding]:
    """The clock against the newest event, and whether anybody keeps it right."""
    now = time.time_ns() // 1000 if now_us is None else now_us
    if newest_event_us is not None and newest_event_us > now + 1_000_000:
        yield Finding(
            "clock", "fail",
            f"the newest event is {(newest_event_us - now) / 1e6:,.0f} s in the future: the clock was set back, or this is another machine's log",
            "set the clock right (timedatectl set-ntp true) and start tiltyard after that; events keep their order, not their times",
        )  # fmt: skip
    elif now < 1_700_000_000_000_000:
        yield Finding("clock", "fail", "the clock says that it is before 2023", "timedatectl set-ntp true")
    else:
        yield Finding(
            "clock",
            "ok",
            "the newest event is in the past" if newest_event_us else "there are no events to compare with",
        )
    synchronized = _synchronized()
    if synchronized is None:
        yield Finding("time service", "skipped", "this system does not say whether the clock is kept right")
    elif synchronized:
        yield Finding("time service", "ok", "the kernel says that the clock is kept right")
    else:
        yield Finding(
            "time service", "warn", "the kernel says that nobody keeps the clock right (in a container or VM the host may)",
            "timedatectl set-ntp true, or install chrony",
        )  # fmt: skip


def _memory() -> tuple[int, int]:
    """Bytes in all and free, a limit of this group of processes included."""
    fields = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024
    total, available = fields["MemTotal"], fields["MemAvailable"]
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no such limit
        return total, available
    return min(total, limit), min(available, max(0, limit - used))


def _quota() -> float | None:
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _synchronized() -> bool | None:
    """What `adjtimex` says; asking changes nothing and needs no privilege."""
    buffer = ctypes.create_string_buffer(256)  # struct timex has 208 bytes; modes = 0 only reads
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (AttributeError, OSError):
        return None
    if state < 0:
        return None
    status = int.from_bytes(
        buffer.raw[40:44], sys.byteorder
    )  # modes, offset, freq, maxerror, esterror, status
    return not status & UNSYNCHRONIZED

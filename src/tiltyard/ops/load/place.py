"""Where a load ran: this machine, the server's name for itself, and the memory of its processes where they are here."""

from __future__ import annotations

import ipaddress
import os
import platform
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tiltyard import __version__

PROC = Path("/proc")
LISTENING = "0A"
"""State of a listening socket in /proc/net/tcp."""


@dataclass(frozen=True)
class Place:
    """The machine that sent the load."""

    processor: str
    threads: int
    memory_bytes: int
    system: str
    python: str
    tiltyard: str


def this_machine() -> Place:
    """Say what this is."""
    processor = platform.processor() or platform.machine()
    try:
        lines = (PROC / "cpuinfo").read_text().splitlines()
        processor = next(
            (x.partition(":")[2].strip() for x in lines if x.startswith("model name")), processor
        )
    except OSError:
        pass  # no Linux: what Python says is all there is
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Place(
        processor,
        threads,
        memory,
        f"{platform.system()} {platform.release()}",
        platform.python_version(),
        __version__,
    )


def is_here(url: str) -> bool:
    """Whether a server listens on this machine's loopback.

    >>> is_here("http://127.0.0.1:9/v1"), is_here("http://10.0.0.1:9")
    (True, False)
    """
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def peak_memory_bytes(url: str) -> int | None:
    """Peak resident memory of the process that listens there and all below it, added up; `None` if it is not ours to see.

    Linux's `VmHWM`: the most that each process ever had in memory. Pages that they share count in each.
    """
    if not is_here(url):
        return None
    port = urlsplit(url).port or (443 if url.startswith("https") else 80)
    owners = _owners(_sockets(port))
    if not owners:
        return None
    children = defaultdict(list)
    for process, parent in _parents().items():
        children[parent].append(process)
    below = list(owners)
    for process in below:
        below += [child for child in children[process] if child not in below]
    return sum(_peak(process) for process in below) or None


def listeners(port: int) -> set[int]:
    """Processes that listen on a port of this machine, as far as they are ours to see."""
    return _owners(_sockets(port))


def ports_of(process: int) -> list[int]:
    """Ports on which a process listens; empty if it is not ours to see."""
    try:
        held = {str(path.readlink()) for path in (PROC / str(process) / "fd").iterdir()}
    except OSError:
        return []
    return sorted(port for port, name in _listening() if name in held)


def _sockets(port: int) -> set[str]:
    return {name for listened, name in _listening() if listened == port}


def _listening() -> set[tuple[int, str]]:
    """Every port on which somebody listens, with the name of its socket."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue  # no Linux, or no IPv6
        for line in lines:
            fields = line.split()
            if fields[3] == LISTENING:
                found.add((int(fields[1].rpartition(":")[2], 16), f"socket:[{fields[9]}]"))
    return found


def _owners(sockets: set[str]) -> set[int]:
    """Processes that hold one of the sockets; those of other users cannot be seen."""
    found = set()
    for process in _processes():
        try:
            for held in (PROC / str(process) / "fd").iterdir():
                if str(held.readlink()) in sockets:
                    found.add(process)
        except OSError:
            continue  # gone, or somebody else's
    return found


def _processes() -> list[int]:
    try:
        return [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]
    except OSError:
        return []


def _parents() -> dict[int, int]:
    found = {}
    for process in _processes():
        try:
            # The name in brackets may itself hold brackets and spaces.
            found[process] = int((PROC / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # gone
    return found


def _peak(process: int) -> int:
    try:
        for line in (PROC / str(process) / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # gone
    return 0

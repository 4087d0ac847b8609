"""The process in which untrusted code runs: gives up what it can, sets limits, then runs `program.py`.

Started by `sandbox.py` with `-I -S`; imports nothing of tiltyard. Arguments: directory, CPU seconds, bytes of memory, bytes
of a file, processes, readable paths.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import runpy
import signal
import struct
import sys
from typing import Final

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC = (
    0x20000,
    0x10000000,
    0x20000000,
    0x40000000,
    0x8000000,
)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
READ: Final = 0b1101
"""Execute, read a file, list a directory (bits 0, 2, 3 of Landlock's access rights)."""
ALL: Final = (1 << 13) - 1
"""Every right of Landlock's first version."""
OTHERS: Final = 4096
"""Processes of the same user that are not ours, where they count."""

_libc = ctypes.CDLL(None, use_errno=True)


def separate() -> bool:
    """Leave for namespaces without network and without other processes; whether the kernel let us."""
    if _libc.unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC) != 0:
        return False
    child = os.fork()
    if (
        child
    ):  # stay, so that who waits for us waits for all: when process 1 of a namespace ends, so do the others
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.fork() == 0:
        return True
    # We are process 1: signals that it does not handle cannot end it, so the program is its child.
    _, status = os.wait()
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def lock_files(directory: str, readable: list[str]) -> bool:
    """Allow reading below some paths and everything below one; whether the kernel has Landlock."""
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    attributes = struct.pack("=Q", ALL)
    rules = _libc.syscall(LANDLOCK_CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return False
    for path, rights in [(directory, ALL), *((one, READ) for one in readable)]:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        if not os.path.isdir(path):  # noqa: PTH112  # pathlib would be one more import
            rights &= 0b111  # noqa: PLW2901
        _libc.syscall(LANDLOCK_ADD, rules, 1, struct.pack("=Qi", rights, opened), 0)
        os.close(opened)
    locked: bool = _libc.syscall(LANDLOCK_RESTRICT, rules, 0) == 0
    os.close(rules)
    return locked


def limit(seconds: float, memory: int, file_bytes: int, processes: int) -> None:
    """Set limits that no child can raise; `processes` binds everybody but root."""
    cpu = math.ceil(seconds)
    for what, most in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(what, (most, most))
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = processes if hard == resource.RLIM_INFINITY else min(processes, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def main() -> None:
    """Give up, limit, run."""
    directory, seconds, memory, file_bytes, processes, readable = sys.argv[1:7]
    alone = separate()
    locked = lock_files(directory, readable.split(os.pathsep))
    held = " and ".join(name for name, holds in (("namespaces", alone), ("landlock", locked)) if holds)
    sys.stderr.write(f"isolation: {held}\n")
    sys.stderr.flush()
    # Elsewhere than in a namespace of its own, all processes of the user count.
    limit(float(seconds), int(memory), int(file_bytes), int(processes) + (0 if alone else OTHERS))
    sys.argv[:] = ["program.py"]
    runpy.run_path(os.path.join(directory, "program.py"), run_name="__main__")  # noqa: PTH118


main()

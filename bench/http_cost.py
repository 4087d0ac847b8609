"""What a token costs on its way over HTTP: CPU milliseconds of worker and gateway apart, by the kernel's own count.

    python bench/http_cost.py [--streams 1 8 32] [--tokens 128] [--model FILE]

`tiltyard serve` runs as a user would start it. Of the worker the main thread is counted, which is its event loop; the engine's
threads are shown beside it, since they compute. What is counted begins at the first token of the last stream to begin, so that prefill is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import uvloop

from environment import default_model
from peers import Tiltyard
from workloads import Workload, prompts

PROMPT_WORDS = 16


@dataclass(frozen=True)
class Cpu:
    """CPU seconds so far."""

    gateway: float
    worker_loop: float
    worker_rest: float
    client: float

    def since(self, before: Cpu) -> Cpu:
        """What was spent since."""
        return Cpu(
            self.gateway - before.gateway,
            self.worker_loop - before.worker_loop,
            self.worker_rest - before.worker_rest,
            self.client - before.client,
        )


def cpu_of(gateway: int, worker: int) -> Cpu:
    """From the scheduler's nanoseconds of each thread."""
    loop = _thread_s(worker, worker)
    return Cpu(_process_s(gateway), loop, _process_s(worker) - loop, time.process_time())


def _process_s(pid: int) -> float:
    return sum(_thread_s(pid, int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir())


def _thread_s(pid: int, thread: int) -> float:
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9


class Client:
    """Streams that count their tokens and nothing else."""

    def __init__(self, url: str, streams: int) -> None:
        self.url = url
        self.tokens = 0
        self._quiet = streams
        self.all_begun = asyncio.Event()

    async def listen(self, session: aiohttp.ClientSession, prompt: str, tokens: int) -> None:
        """One stream from begin to end."""
        body = {
            "model": "bench", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True,
        }  # fmt: skip
        begun = False
        async with session.post(f"{self.url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for piece in response.content.iter_any():
                self.tokens += piece.count(b'"text":')
                if not begun:
                    begun = True
                    self._quiet -= 1
                    if not self._quiet:
                        self.all_begun.set()


async def measure(
    system: Tiltyard, worker: int, streams: int, tokens: int, seed: int
) -> tuple[Cpu, int, float]:
    """CPU, tokens and seconds of so many streams, from when all have begun."""
    client = Client(system.url, streams)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        asked = prompts(Workload("cost", streams, PROMPT_WORDS, tokens), seed)
        asking = [asyncio.create_task(client.listen(session, prompt, tokens)) for prompt in asked]
        await client.all_begun.wait()
        before, had, began = cpu_of(system.process.pid, worker), client.tokens, time.perf_counter()
        await asyncio.gather(*asking)
        spent = cpu_of(system.process.pid, worker).since(before)
        return spent, client.tokens - had, time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path)
    arguments = parser.parse_args()
    print("| streams | gateway | worker's loop | both | engine's threads | client | tok/s |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        system = Tiltyard(arguments.model or default_model(), Path(folder))
        try:
            (worker,) = map(int, subprocess.check_output(["pgrep", "-P", str(system.process.pid)]).split())
            for streams in arguments.streams:
                figures = []
                for number in range(arguments.rounds + 1):
                    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                        figures.append(
                            runner.run(measure(system, worker, streams, arguments.tokens, seed=number))
                        )
                # The first warms up; of the others, the one that others on the machine disturbed the least.
                spent, tokens, seconds = min(
                    figures[1:], key=lambda f: (f[0].gateway + f[0].worker_loop) / f[1]
                )
                each = [
                    1e3 * value / tokens
                    for value in (
                        spent.gateway,
                        spent.worker_loop,
                        spent.gateway + spent.worker_loop,
                        spent.worker_rest,
                        spent.client,
                    )
                ]
                cells = " | ".join(f"{ms:.3f} ms" for ms in each)
                print(f"| {streams} | {cells} | {tokens / seconds:.0f} |", flush=True)
        finally:
            system.stop()


if __name__ == "__main__":
    main()

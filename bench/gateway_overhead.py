"""What the gateway adds to the time of the first token, beside LiteLLM's proxy where that is installed.

The same requests go straight to a worker that computes nothing, through tiltyard's gateway (with a key, rates and a budget), and
through LiteLLM's proxy (with a key), in turns of one run: `python bench/gateway_overhead.py [--litellm /path/to/litellm]`. Overhead is
the difference of percentiles to the direct way. The measuring client is the same for all three.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from gateway_house import MODEL, House, running_house

LITELLM_KEY = "sk-bench"
LITELLM_CONFIG = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: {url}/v1, api_key: none}}
general_settings: {{master_key: {key}}}
litellm_settings: {{drop_params: true, telemetry: false}}
"""


@dataclass
class Way:
    """One way to the worker, and the seconds to the first token on it."""

    name: str
    url: str
    key: str
    seconds: dict[int, list[float]] = field(default_factory=dict)

    def at(self, concurrency: int, share: float) -> float:
        """A percentile, in milliseconds."""
        values = sorted(self.seconds[concurrency])
        return values[min(len(values) - 1, int(share * len(values)))] * 1000


async def first_token_s(session: aiohttp.ClientSession, way: Way) -> float:
    """Ask for a short stream; seconds from the request to its first token."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "4 0 0"}], "stream": True}
    began = time.perf_counter()
    first = 0.0
    async with session.post(
        way.url + "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {way.key}"}
    ) as answer:
        if answer.status != 200:
            raise RuntimeError(f"{way.name}: {answer.status} {await answer.text()}")
        async for piece in answer.content.iter_any():
            if not first and b'"content":' in piece:
                first = time.perf_counter() - began
    return first


async def measure(way: Way, concurrency: int, requests: int) -> None:
    """Add so many requests, so many at once."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        left = requests

        async def ask() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                way.seconds.setdefault(concurrency, []).append(await first_token_s(session, way))

        await asyncio.gather(*(ask() for _ in range(concurrency)))


@contextmanager
def running_litellm(program: str, house: House) -> Iterator[Way]:
    """LiteLLM's proxy before the same worker."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "config.yaml"
        config.write_text(LITELLM_CONFIG.format(model=MODEL, url=house.worker_url, key=LITELLM_KEY))
        environment = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DATABASE_URL")
        } | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
        process = subprocess.Popen(
            [program, "--config", str(config), "--port", str(port), "--host", "127.0.0.1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, cwd=directory,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"{program} did not start") from None
                    time.sleep(0.2)
            yield Way("LiteLLM proxy", f"http://127.0.0.1:{port}", LITELLM_KEY)
        finally:
            process.terminate()
            process.wait()


def table(ways: list[Way]) -> str:
    """The Markdown table."""
    direct, rest = ways[0], ways[1:]
    lines = [
        "| at once | way | first token p50 | p99 | overhead p50 | overhead p99 |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for concurrency in direct.seconds:
        for way in ways:
            p50, p99 = way.at(concurrency, 0.50), way.at(concurrency, 0.99)
            more = ["", ""]
            if way is not direct:
                more = [
                    f"{p50 - direct.at(concurrency, 0.50):.2f} ms",
                    f"{p99 - direct.at(concurrency, 0.99):.2f} ms",
                ]
            lines.append(
                f"| {concurrency} | {way.name} | {p50:.2f} ms | {p99:.2f} ms | {more[0]} | {more[1]} |"
            )
    if len(rest) == 2:
        ours, theirs = rest
        for concurrency in direct.seconds:
            said = [
                f"{_less(ours, theirs, direct, concurrency, share)} at {name}"
                for name, share in (("p50", 0.50), ("p99", 0.99))
            ]
            lines.append(
                f"\nAt {concurrency} at once the gateway adds {said[0]}, {said[1]}, than LiteLLM's proxy."
            )
    else:
        lines.append("\nLiteLLM is not installed here.")
    return "\n".join(lines)


def _less(ours: Way, theirs: Way, direct: Way, concurrency: int, share: float) -> str:
    """How many times less one way adds than the other."""
    added = [way.at(concurrency, share) - direct.at(concurrency, share) for way in (ours, theirs)]
    if added[0] <= 0:
        return "nothing that can be told from the machine's noise"
    return f"{added[1] / added[0]:.1f} times less"


async def measure_all(ways: list[Way], requests: int, rounds: int) -> None:
    """In turns, so that a change of the machine meets all ways; the first round warms up and is not kept."""
    for concurrency in (1, 16):
        for number in range(rounds + 1):
            for way in ways:
                await measure(way, concurrency, requests // rounds)
                print(f"{concurrency} at once, round {number}: {way.name}", file=sys.stderr, flush=True)
            if number == 0:
                for way in ways:
                    way.seconds[concurrency].clear()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--litellm", default=os.environ.get("TILTYARD_BENCH_LITELLM") or shutil.which("litellm")
    )
    parser.add_argument("--requests", type=int, default=396)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with running_house() as house:
        ways = [
            Way("worker, directly", house.worker_url, "none"),
            Way("tiltyard gateway", house.gateway_url, house.key),
        ]
        if arguments.litellm:
            with running_litellm(arguments.litellm, house) as theirs:
                ways.append(theirs)
                asyncio.run(measure_all(ways, arguments.requests, arguments.rounds))
        else:
            asyncio.run(measure_all(ways, arguments.requests, arguments.rounds))
    print(table(ways))


if __name__ == "__main__":
    main()

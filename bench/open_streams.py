"""A thousand streams open at once through one gateway process: memory of each, delay of a token, and a reader that stops.

`python bench/open_streams.py [--streams 1000]`. The worker computes nothing and sends each stream a token a second. The delay is from the worker's
sending a token to the client's reading it, on one clock. Then further clients ask for 50 MB each and read nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import resource
import sys
import time
from dataclasses import dataclass, field

import aiohttp

from gateway_house import MODEL, House, running_house

TOKENS, PAUSE_MS = 40, 1000
SPREAD_S = 20.0
"""Streams begin one after another over so long a time, as users do."""
FILL_S = 8.0
STOPPED_READERS = 20
STAMP = re.compile(rb'"content":"([0-9.]+) ')


@dataclass
class Heard:
    """What all streams together heard."""

    delays_ms: list[float] = field(default_factory=list)
    whole: int = 0

    def at(self, share: float) -> float:
        """A percentile of the delays."""
        values = sorted(self.delays_ms)
        return values[min(len(values) - 1, int(share * len(values)))]


async def listen(
    session: aiohttp.ClientSession, house: House, heard: Heard, *, after_s: float, tokens: int = TOKENS
) -> None:
    """One stream from begin to end."""
    await asyncio.sleep(after_s)
    async with _ask(session, house, f"{tokens} {PAUSE_MS} 0") as answer:
        async for line in answer.content:
            now = time.monotonic()
            if (stamp := STAMP.search(line)) is not None:
                heard.delays_ms.append((now - float(stamp[1])) * 1000)
            heard.whole += line == b"data: [DONE]\n"


async def stop_reading(session: aiohttp.ClientSession, house: House, until: asyncio.Event) -> None:
    """Ask for an endless stream and read its head only."""
    async with _ask(session, house, "5000 1 10000"):
        await until.wait()


def _ask(session: aiohttp.ClientSession, house: House, script: str) -> aiohttp.client._RequestContextManager:
    body = {"model": MODEL, "messages": [{"role": "user", "content": script}], "stream": True}
    return session.post(
        house.gateway_url + "/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {house.key}"},
    )


async def measure(house: House, streams: int) -> str:
    """The Markdown table."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=4096) as session:
        warm = Heard()
        await asyncio.gather(*(listen_briefly(session, house, warm) for _ in range(32)))
        empty = house.gateway_kib()
        heard = Heard()
        listening = [
            asyncio.create_task(listen(session, house, heard, after_s=SPREAD_S * place / streams))
            for place in range(streams)
        ]
        await asyncio.sleep(SPREAD_S + 5)  # all have begun, none has ended
        full = house.gateway_kib()
        await asyncio.gather(*listening)
        print(f"{heard.whole} streams were whole", file=sys.stderr, flush=True)

        beside, until = Heard(), asyncio.Event()
        before = house.gateway_kib()
        stopped = [asyncio.create_task(stop_reading(session, house, until)) for _ in range(STOPPED_READERS)]
        await asyncio.sleep(FILL_S)  # until every buffer on their way is full
        others = [
            asyncio.create_task(listen(session, house, beside, after_s=place / 32, tokens=10))
            for place in range(32)
        ]
        await asyncio.gather(*others)
        after = house.gateway_kib()
        until.set()
        await asyncio.gather(*stopped, return_exceptions=True)
    rows = [
        ("streams open at once, ended whole", f"{heard.whole:,} of {streams:,}"),
        ("gateway's memory without streams", f"{empty / 1024:.0f} MiB"),
        (f"with {streams:,} streams", f"{full / 1024:.0f} MiB"),
        ("of each stream", f"{(full - empty) / streams:.0f} KiB"),
        ("delay of a token, p50 and p99", f"{heard.at(0.5):.1f} ms, {heard.at(0.99):.1f} ms"),
        (
            f"{STOPPED_READERS} further clients ask for 50 MB each and read nothing: memory of each",
            f"{max(0, after - before) / STOPPED_READERS:.0f} KiB",
        ),
        (
            "delay of a token for 32 others meanwhile, p50 and p99",
            f"{beside.at(0.5):.1f} ms, {beside.at(0.99):.1f} ms",
        ),
    ]
    return "\n".join(["| what | measured |", "| --- | ---: |", *(f"| {a} | {b} |" for a, b in rows)])


async def listen_briefly(session: aiohttp.ClientSession, house: House, heard: Heard) -> None:
    """Warm up: code is loaded, pools are grown."""
    async with _ask(session, house, "5 0 0") as answer:
        heard.whole += len(await answer.read()) > 0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16384)), hard))
    with running_house() as house:
        print(asyncio.run(measure(house, arguments.streams)))


if __name__ == "__main__":
    main()

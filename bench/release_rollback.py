"""How long a rollback takes: from the one event to the first answer, at the slower of two gateways, that production gives.

    python bench/release_rollback.py [--rollbacks 60]

Two gateways, each a process of its own, on one PostgreSQL and one Redis, before two worker processes that answer at once with fixed words
(`tests/drill` has them: an engine would add its own time to each). A client of each gateway asks without a pause, a person a
request. The candidate has all the traffic, the split is written, and each client notes when it had production's first answer after the
candidate's last one, of those asked for after that. That includes the writing of the event and the answer itself. Prints the slower gateway's, and how many requests failed (none should).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx2

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "drill"), str(ROOT / "tests")]

from drill_yard import PATIENCE_S, Yard  # noqa: E402 - of tests/drill, which the path names only now
from real_postgres import running_postgres  # noqa: E402
from real_redis import running_redis  # noqa: E402
from tiltyard.events.schema import TrafficArm, TrafficSplit  # noqa: E402
from tiltyard.wire.worker import HEADER_IDENTITY  # noqa: E402

BETWEEN_S = 0.13
"""Not a multiple of the gateways' quarter of a second, so that events fall anywhere in it."""


class Client:
    """Asks one gateway all the time."""

    def __init__(self, http: httpx2.AsyncClient, gateway: str) -> None:
        self._http = http
        self._gateway = gateway
        self.seen: list[tuple[float, float, str]] = []
        """When each request was begun and answered, and by which behaviour."""
        self.failed = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.ask()

    async def ask(self) -> str:
        """Ask once; returns the behaviour."""
        begun = time.monotonic()
        body = {
            "model": "chat",
            "messages": [{"role": "user", "content": "hello"}],
            "user": str(len(self.seen)),
        }
        answer = await self._http.post(f"{self._gateway}/v1/chat/completions", json=body)
        self.failed += answer.status_code != 200
        behaviour = answer.headers.get(HEADER_IDENTITY, "")
        self.seen.append((begun, time.monotonic(), behaviour))
        return behaviour

    async def until(self, behaviour: str) -> None:
        """Wait until that one answers."""
        while not self.seen or self.seen[-1][2] != behaviour:  # noqa: ASYNC110 - it asks all the time
            await asyncio.sleep(0.01)

    def changed_s(self, since: float, behaviour: str) -> float:
        """From the event to the first whole answer that it gave after the last one of another."""
        after = [(ended, by) for begun, ended, by in self.seen if begun >= since]
        last = max((at for at, (_, by) in enumerate(after) if by != behaviour), default=-1)
        return after[last + 1][0] - since


async def measure(yard: Yard, rollbacks: int) -> tuple[list[float], int, int]:
    """Seconds from each event to the slower gateway, requests in all, and those that failed."""
    near = await yard.near.url()
    async with httpx2.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        status = (await http.get(f"{near}/worker")).json()
        behaviours = {one["name"]: one["behaviour"] for one in status["identities"]}
        clients = [Client(http, gateway) for gateway in (yard.one, yard.two)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        took: list[float] = []
        for _ in range(rollbacks):
            await split_to(yard, behaviours, "warm")
            for client in clients:
                await client.until(behaviours["warm"])
            await asyncio.sleep(BETWEEN_S)
            began = time.monotonic()
            await split_to(yard, behaviours, "plain")
            for client in clients:
                await client.until(behaviours["plain"])
            await asyncio.sleep(0.5)  # whoever goes back to the candidate is seen
            took.append(max(client.changed_s(began, behaviours["plain"]) for client in clients))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return took, sum(len(client.seen) for client in clients), sum(client.failed for client in clients)


async def split_to(yard: Yard, behaviours: dict[str, str], identity: str) -> None:
    """Write the event that `tiltyard rollback` writes."""
    arm = TrafficArm(arm="production", identity=identity, behaviour=behaviours[identity], weight=1.0)
    data = TrafficSplit(alias="chat", arms=(arm,), by="bench", why="measured")
    await yard.log.append(data, subject="chat", source="tiltyard/bench")


def main() -> None:
    """Measure and print one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollbacks", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tiltyard-rollback-") as name:
        home = Path(name)
        (home / "redis").mkdir()
        with running_redis(home / "redis") as redis, running_postgres() as postgres:
            yard = Yard(home, postgres, redis)
            try:
                took, requests, failed = asyncio.run(measure(yard, options.rollbacks))
            finally:
                yard.close()
    print(
        f"{len(took)} rollbacks, from before the event is written to the slower gateway: median "
        f"{statistics.median(took) * 1000:.0f} ms, 95% within {sorted(took)[int(0.95 * len(took))] * 1000:.0f} ms, "
        f"longest {max(took) * 1000:.0f} ms; {requests:,} requests, {failed} failed"
    )


if __name__ == "__main__":
    main()

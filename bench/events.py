"""How many durable appends a second the event log takes, with 1, 32 and 256 appenders at once.

    python bench/events.py [--data DIR] [--seconds 3] [--postgres]

Each appender waits for its append before it makes the next. For scale, the first line says how many plain
4 KiB writes with fsync the same directory takes: with one appender the log cannot be faster than that. With `--postgres` the
same is done on a PostgreSQL server with its own defaults (`fsync` and `synchronous_commit` on), started here on a Unix socket.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from tiltyard.events.log import EventLog
from tiltyard.events.places import KeysPlace
from tiltyard.events.schema import ChoiceOutcome, GenerationFinished, VoteCast
from tiltyard.identity.manifest import DefaultSampling

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from real_postgres import RealPostgres, running_postgres

DIGEST = "sha256:" + "a" * 64
APPENDERS = (1, 32, 256)


def vote(number: int) -> VoteCast:
    return VoteCast(
        battle=f"bat_{number}",
        voter="voter-1",
        choice="a",
        identity_a="plum",
        identity_b="quince",
        behaviour_a=DIGEST,
        behaviour_b=DIGEST,
        pair_probability=1 / 3,
        side_probability=0.5,
        turns=1,
        generations_a=("gen_a",),
        generations_b=("gen_b",),
    )


def fsyncs_per_second(directory: Path, seconds: float) -> float:
    path = directory / "fsync"
    done = 0
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        while time.perf_counter() - start < seconds:
            file.write(bytes(4096))
            os.fsync(file.fileno())
            done += 1
    elapsed = time.perf_counter() - start
    path.unlink()
    return done / elapsed


Opened = Callable[[Path], EventLog]


def on_sqlite(directory: Path) -> EventLog:
    return EventLog.open(directory / "log.db", keys=directory / "keys.db")


def on_postgres(server: RealPostgres) -> Opened:
    return lambda directory: EventLog.open(
        server.database(), keys=KeysPlace(server.database(), directory / "master.key")
    )


async def votes_per_second(
    opened: Opened, directory: Path, appenders: int, seconds: float
) -> dict[str, float]:
    log = opened(directory)
    numbers = count()
    latencies_ms: list[float] = []
    start = time.perf_counter()

    async def append() -> None:
        while time.perf_counter() - start < seconds:
            began = time.perf_counter()
            await log.append(vote(next(numbers)), subject="bench", source="tiltyard/bench")
            latencies_ms.append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*(append() for _ in range(appenders)))
    elapsed = time.perf_counter() - start
    report = log.verify()
    report.raise_if_faulty()
    log.close()
    assert report.events == len(latencies_ms)
    return {
        "appends_per_s": len(latencies_ms) / elapsed,
        "appends_per_commit": report.events / report.seals,
        "median_ms": statistics.median(latencies_ms),
        "p99_ms": statistics.quantiles(latencies_ms, n=100)[98],
    }


async def generations_per_second(
    opened: Opened, directory: Path, appenders: int, seconds: float
) -> dict[str, float]:
    """The gateway's load: a generation with its encrypted prompt (1 KiB) and response (2 KiB)."""
    log = opened(directory)
    numbers = count()
    done = 0
    start = time.perf_counter()

    async def append(appender: int) -> None:
        nonlocal done
        while time.perf_counter() - start < seconds:
            prompt = log.content(f"tenant-{appender % 8}", bytes(1024))
            response = log.content(f"tenant-{appender % 8}", bytes(2048))
            event = GenerationFinished(
                generation=f"gen_{next(numbers)}",
                endpoint="chat.completions",
                behaviour=DIGEST,
                deployment=DIGEST,
                alias="chat",
                identity="plum",
                worker="plum-0",
                prompt=prompt.ref,
                response=response.ref,
                prompt_token_digest=None,
                sampling=DefaultSampling(),
                seed=7,
                stream=True,
                choices=(ChoiceOutcome(index=0, finish_reason="stop", completion_tokens=5),),
                prompt_tokens=11,
                cached_tokens=3,
                completion_tokens=5,
                total_ms=12.5,
            )
            await log.append(event, subject=event.generation, source="bench", contents=[prompt, response])
            done += 1

    await asyncio.gather(*(append(number) for number in range(appenders)))
    elapsed = time.perf_counter() - start
    log.close()
    return {"appends_per_s": done / elapsed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--data", type=Path, help="directory on the disk to measure (default: a temporary one)"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL, too")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    options = parser.parse_args()
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=options.data) as name, ExitStack() as stack:
        root = Path(name)
        results["fsyncs_per_s"] = fsyncs_per_second(root, options.seconds)
        stores: dict[str, Opened] = {"SQLite": on_sqlite}
        if options.postgres:
            stores["PostgreSQL"] = on_postgres(stack.enter_context(running_postgres()))
        for store, opened in stores.items():
            for appenders in APPENDERS:
                for kind, measure in (("votes", votes_per_second), ("generations", generations_per_second)):
                    directory = root / f"{store}-{kind}-{appenders}"
                    directory.mkdir()
                    results[f"{store}, {kind}, {appenders} appenders"] = asyncio.run(
                        measure(opened, directory, appenders, options.seconds)
                    )
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name, value in results.items():
        numbers = value if isinstance(value, dict) else {"": value}
        print(f"{name:<40}" + "  ".join(f"{key} {number:,.1f}" for key, number in numbers.items()))


if __name__ == "__main__":
    main()

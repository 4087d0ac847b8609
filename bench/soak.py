"""A soak: `tiltyard up` under load and voters, with its processes killed, stopped and restarted; then what it kept and what it leaked.

    make soak ARGS="--minutes 10 --plot docs/images/soak.svg"
    python bench/soak.py [--minutes 2] [--rate 8] [--voters 3] [--model FILE] [--plot FILE] [--json FILE] [--data DIR]

The load generator of `tiltyard bench` sends conversations at moments that do not wait for answers (Poisson), scripted voters open battles
and vote as clumsily as people do. In the first half of the time the gateway is restarted (SIGTERM), killed (kill -9) and started again on
the same data, a worker is killed and another one stopped (SIGSTOP). The second half is quiet, and is what is judged: memory of its own, open
files and threads of every process, and the time to the first token, each with its slope and 95% interval.

It ends with 1 if an acknowledged answer or vote is not in the log (or twice), if the log does not verify, words included, if a process
grows, or if anything is still counted as under way when all is quiet. Without `--model` the contestants are a tiny Llama with random weights:
what ten minutes are to hold is many requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from scripted_voters import Voter, tally
from soak_measures import Slope, Watch, slope_of
from soak_plot import plot
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.ops.load.asking import Asking, Target
from tiltyard.ops.load.driving import Driver
from tiltyard.ops.load.samples import INTERRUPTED, Sample
from tiltyard.ops.load.traffic import Shape, even, poisson
from voters import SETTINGS, tiny_model

LOOK_EVERY_S = 1.0
PATIENCE_S = 90.0
QUIET_FROM = 0.5
"""Share of the time after which nothing is broken any more."""
KV_MB = 32
"""Little, so that the cache of past tokens is full, and turns over, before anything is judged: its pages are taken as they are filled."""
MODEL = "plum"
SHAPE = Shape(prompt_tokens=48, answer_tokens=16, shared_tokens=16, turns=3, think_s=1.0)


class Server:
    """`tiltyard up` with two workers, in processes of its own."""

    def __init__(self, directory: Path, port: int) -> None:
        self.data = directory / "data"
        self.url = f"http://127.0.0.1:{port}"
        self._directory, self._port = directory, port
        self.process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        words = ["up", "--port", str(self._port), "--data", str(self.data)]
        words += ["--config", str(self._directory / "tiltyard.toml")]
        with (self._directory / "output").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tiltyard.cli.main", *words],
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            )

    async def until_ready(self) -> None:
        """Wait until both workers take work."""
        began = time.monotonic()
        async with httpx2.AsyncClient(trust_env=False, timeout=5) as http:
            while time.monotonic() - began < PATIENCE_S and self.process.poll() is None:
                with suppress(httpx2.HTTPError, KeyError, ValueError):
                    told = (await http.get(f"{self.url}/v1/fleet")).json()["data"]
                    if sum(bool(worker["alive"]) for worker in told) >= 2:
                        return
                await asyncio.sleep(0.1)
        raise RuntimeError("the server did not start:\n" + (self._directory / "output").read_text()[-3000:])

    async def again(self, number: signal.Signals) -> None:
        """End it by a signal and start it on the same data and port."""
        self.process.send_signal(number)
        await asyncio.to_thread(self.process.wait)
        self.process = self._begin()
        await self.until_ready()

    async def another_worker(self, number: signal.Signals) -> None:
        """Send a signal to a worker, and wait until both take work again, another process among them."""
        file = min((self.data / "run").glob("*.ready.json"))
        pid = int(json.loads(file.read_bytes())["pid"])
        os.kill(pid, number)
        began = time.monotonic()
        while time.monotonic() - began < PATIENCE_S:
            with suppress(FileNotFoundError, json.JSONDecodeError):
                if int(json.loads(file.read_bytes())["pid"]) != pid:
                    break
            await asyncio.sleep(0.1)
        await self.until_ready()

    async def unfinished(self) -> int:
        """Tokens that it still counts as under way, over its workers."""
        async with httpx2.AsyncClient(trust_env=False, timeout=5) as http:
            told = (await http.get(f"{self.url}/v1/fleet")).json()["data"]
        return sum(int(worker["unfinished_tokens"]) for worker in told)

    def end(self) -> None:
        """Press Ctrl-C."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)


Fault = Callable[[Server], Awaitable[None]]
CHAOS: tuple[tuple[float, str, Fault], ...] = (
    (0.08, "restart the gateway", lambda server: server.again(signal.SIGTERM)),
    (0.18, "kill -9 the gateway", lambda server: server.again(signal.SIGKILL)),
    (0.28, "kill -9 a worker", lambda server: server.another_worker(signal.SIGKILL)),
    (0.34, "SIGSTOP a worker", lambda server: server.another_worker(signal.SIGSTOP)),
)
"""When, as a share of the time; what; and how. Done before `QUIET_FROM`, or said not to be."""


@dataclass
class Soaked:
    """All that was seen."""

    minutes: float
    quiet_s: float
    faults: list[tuple[str, float, float]] = field(default_factory=list)
    """What was done, when, and after how many seconds all was whole again."""
    samples: list[Sample] = field(default_factory=list)
    voters: list[Voter] = field(default_factory=list)
    left: int = 0
    wrong: list[str] = field(default_factory=list)


async def soak(server: Server, asked: argparse.Namespace) -> tuple[Soaked, Watch]:
    """Load, voters, chaos and a look every second, all at once."""
    await server.until_ready()
    total_s = asked.minutes * 60
    seen, watch, stop = Soaked(asked.minutes, QUIET_FROM * total_s), Watch(), asyncio.Event()
    asking = Asking(Target(f"{server.url}/v1", MODEL, timeout_s=PATIENCE_S))
    driver = Driver(asking, time.monotonic)
    conversations = poisson(even(SHAPE, int(asked.rate * total_s * 1.3) * SHAPE.turns, 0), asked.rate, seed=0)
    began = time.monotonic()

    async def looking() -> None:
        while not stop.is_set():
            await asyncio.to_thread(watch.look, server.process.pid, time.monotonic() - began)
            await asyncio.sleep(LOOK_EVERY_S)

    async def voting(first: int) -> None:
        number = first
        while not stop.is_set():
            voter = Voter(server.url, number, seed=1)
            seen.voters.append(voter)
            number += asked.voters
            with suppress(httpx2.HTTPError, RuntimeError, KeyError, ValueError):
                await voter.come()
                await voter.vote()
            await voter.browser.aclose()
            await asyncio.sleep(0.5)

    async def breaking() -> None:
        for share, name, fault in CHAOS:
            await asyncio.sleep(max(0.0, share * total_s - (time.monotonic() - began)))
            at_s = time.monotonic() - began
            await fault(server)
            whole_s = time.monotonic() - began
            seen.faults.append((name, at_s, whole_s - at_s))
            print(f"{at_s:6.0f} s  {name}; whole again after {whole_s - at_s:.1f} s", flush=True)
        seen.quiet_s = max(seen.quiet_s, time.monotonic() - began)

    load = asyncio.create_task(driver.run(conversations, concurrency=None, stop=stop))
    rest = [asyncio.create_task(work) for work in (looking(), breaking(), *map(voting, range(asked.voters)))]
    while (spent := time.monotonic() - began) < total_s:
        await asyncio.sleep(min(30.0, total_s - spent))
        answered = sum(sample.ok for sample in driver.samples)
        settled = sum(voter.outcome.settled for voter in seen.voters)
        print(f"{time.monotonic() - began:6.0f} s  {answered:,} answered, {settled:,} voted", flush=True)
        if rest[1].done():
            rest[1].result()  # chaos that failed is said at once
    stop.set()
    await load
    await asyncio.wait(rest, timeout=PATIENCE_S)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asking.aclose()
    for _ in range(100):  # what was broken off at the end is given up within a step or two
        if not (left := await server.unfinished()):
            break
        await asyncio.sleep(0.1)
    seen.left, seen.samples = left, driver.samples
    return seen, watch


def check(seen: Soaked, data: Path) -> list[str]:
    """Compare what was acknowledged with the log; returns the lines that say so, and fills `seen.wrong`."""
    answered = [sample.answer_id for sample in seen.samples if sample.ok]
    votes = tally([voter for voter in seen.voters if voter.outcome.battle], data)
    with EventLog.open(data / "log.db", keys=data / "keys.db", create=False) as log:
        ends = [e.data for e in log.read(types=[GenerationFinished])]
        recorded = Counter(
            end.generation for end in ends if isinstance(end, GenerationFinished) and end.error is None
        )
        report = log.verify(check_contents=True)
    lost = [name for name in answered if recorded[name] != 1]
    if lost:
        seen.wrong.append(f"{len(lost)} answers are not in the log once, {lost[0]} among them")
    if not votes.in_order:
        seen.wrong.append(f"votes differ from the log: {votes.missing} {votes.doubled} {votes.strange}")
    if report.fault is not None:
        seen.wrong.append(f"events verify: {report.fault.message}")
    if seen.left:
        seen.wrong.append(f"{seen.left} tokens are counted as under way when nothing is")
    failed = Counter(s.error for s in seen.samples if not s.ok and s.error != INTERRUPTED)
    kinds = ", ".join(f"{count} {kind}" for kind, count in failed.most_common()) or "none"
    return [
        f"{len(answered):,} answers acknowledged, {len(lost)} not in the log; {votes.acknowledged:,} votes acknowledged, "
        f"{len(votes.missing)} not in the log, {len(votes.doubled)} twice",
        f"requests that failed (all told so): {kinds}",
        f"events verify --content: {report.events:,} events, {report.contents:,} words, {report.fault or 'no fault'}",
    ]


def table(seen: Soaked, watch: Watch) -> list[str]:
    """One line a process, and one for the latency; what grows goes into `seen.wrong`."""
    lines = [
        "| process | memory of its own | a minute (95%) | files | a minute | threads | a minute |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    names = {"memory_mb": "memory", "files": "open files", "threads": "threads"}
    for one, slopes in sorted(watch.judged(seen.quiet_s), key=lambda pair: pair[0].role):
        cells = []
        for what, slope in slopes.items():
            cells += _cells(slope, "MB" if what == "memory_mb" else "")
            if slope is not None and slope.grows(what):
                seen.wrong.append(f"{one.role} ({one.pid}): {names[what]} grows, {cells[-1]} a minute")
        lines.append(f"| {one.role} | {' | '.join(cells)} |")
    first = first_tokens(seen)
    level, moves = _cells(first, "ms")
    if first is not None and first.grows("first_ms"):
        seen.wrong.append(f"the time to the first token grows, {moves} a minute")
    return [*lines, "", f"time to first token while all was quiet: {level}, {moves} a minute"]


def first_tokens(seen: Soaked) -> Slope | None:
    """How the time to the first token moved while all was quiet, in milliseconds."""
    return slope_of(
        [
            (sample.intended_s, first * 1000)
            for sample in seen.samples
            if sample.ok
            and sample.intended_s >= seen.quiet_s
            and (first := sample.time_to_first_s) is not None
        ]
    )


def _cells(slope: Slope | None, unit: str) -> list[str]:
    if slope is None:
        return ["too short to say", "-"]
    digits = 1 if unit else 0
    return [
        f"{slope.level:.{digits}f} {unit}".strip(),
        f"{slope.a_minute:+.3f} ({slope.lower:+.3f} to {slope.upper:+.3f})",
    ]


def main() -> None:
    """Soak, print, and end with 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="of load; slopes need five or more")
    parser.add_argument("--rate", type=float, default=4.0, help="conversations of three turns a second")
    parser.add_argument("--voters", type=int, default=3, help="at a time")
    parser.add_argument("--model", type=Path, help="a GGUF file or a directory")
    parser.add_argument("--plot", type=Path, help="write an SVG here")
    parser.add_argument("--json", type=Path, help="write every reading here")
    parser.add_argument("--data", type=Path, help="work here and keep it; else a temporary directory")
    asked = parser.parse_args()
    if asked.minutes <= 0 or asked.rate <= 0 or asked.voters < 0:
        parser.error("--minutes and --rate must be above 0, --voters at least 0")
    with tempfile.TemporaryDirectory(prefix="tiltyard-soak-") as made:
        directory = asked.data or Path(made)
        directory.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        model = asked.model or tiny_model(directory / "tiny")
        settings = SETTINGS.format(model=model).replace("kv_memory_mb = 224", f"kv_memory_mb = {KV_MB}")
        settings += "replicas = 2\nthreads = 1\n"
        (directory / "tiltyard.toml").write_text(settings, encoding="utf-8")
        server = Server(directory, port)
        try:
            seen, watch = asyncio.run(soak(server, asked))
        finally:
            server.end()
        lines = [*check(seen, server.data), "", *table(seen, watch)]
    if asked.plot is not None:
        plot(asked.plot, watch, seen.faults, seen.quiet_s)
    if asked.json is not None:
        told = {"faults": seen.faults, "quiet_s": seen.quiet_s, "wrong": seen.wrong}
        asked.json.write_text(json.dumps(told | {"processes": [asdict(s) for s in watch.series.values()]}))
    print("\n".join(["", *lines, "", *(f"WRONG: {one}" for one in seen.wrong)]))
    raise SystemExit(bool(seen.wrong))


if __name__ == "__main__":
    main()

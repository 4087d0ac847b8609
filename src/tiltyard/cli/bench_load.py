"""`tiltyard bench URL…`: load on any servers that speak the OpenAI protocol, and one table of what it met."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tiltyard.cli.logged_traffic import OWN_LOG, logged_options, logged_trace, refuse_for_other_traffic
from tiltyard.errors import ConfigurationError, InvalidRequest
from tiltyard.identity.canonical import Json
from tiltyard.ops.load.asking import Asking, Endpoint, Target
from tiltyard.ops.load.driving import Driver
from tiltyard.ops.load.facts import facts_of
from tiltyard.ops.load.page import page
from tiltyard.ops.load.place import Place, peak_memory_bytes, this_machine
from tiltyard.ops.load.record import LoadRun, ServerFacts, document
from tiltyard.ops.load.rows import HEAD, row_of
from tiltyard.ops.load.samples import Objectives, Sample, summarize
from tiltyard.ops.load.traces import Trace, read_trace
from tiltyard.ops.load.traffic import Ask, Scaling, Shape, even, poisson

TABLE_WIDTH = 190
SWEEP = (0.25, 0.5, 0.75, 0.9, 1.1)
"""Of the rate that the server was found to be able to answer at most."""
REFRESH_S = 1.0


@dataclass(frozen=True)
class Level:
    """One load: so many at a time, or requests with their own times."""

    name: str
    asks: list[Ask]
    concurrency: int | None = None
    rate: float | None = None


def _numbers(_: click.Context, option: click.Parameter, value: str | None) -> tuple[float, ...]:
    if value is None:
        return ()
    try:
        numbers = tuple(float(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(
            f"{value!r} is not a list of numbers such as 1,8,32", param=option
        ) from error
    if any(number <= 0 for number in numbers):
        raise click.BadParameter(f"{value!r}: every number must be above 0", param=option)
    return numbers


@click.command()
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option("--model", help="Model to ask for; the first one that each server lists unless told.")
@click.option(
    "--concurrency", callback=_numbers, help="Closed loop: so many at a time, with commas between levels."
)
@click.option(
    "--rate", callback=_numbers, help="Open loop: requests a second (Poisson), with commas between levels."
)
@click.option(
    "--sweep", is_flag=True, help="Open loop at 25% to 110% of the rate that a closed loop reaches first."
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Recorded traffic: log (our own), Azure CSV, Mooncake JSONL, ServeGen folder.",
)
@logged_options
@click.option("--speed", type=float, default=1.0, show_default=True, help="How much faster a trace comes.")
@click.option(
    "--scale-tokens",
    type=float,
    default=1.0,
    show_default=True,
    help="By what a trace's lengths are multiplied.",
)
@click.option(
    "--most-tokens", type=click.IntRange(2), help="Prompt and answer of a trace's request are cut to this."
)
@click.option(
    "--requests",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Requests a level, warm-up aside.",
)
@click.option(
    "--warmup",
    type=click.IntRange(0),
    default=4,
    show_default=True,
    help="Requests before those, not counted.",
)
@click.option("--prompt-tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option("--answer-tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option(
    "--shared-tokens",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of the prompt, alike in all.",
)
@click.option(
    "--turns", type=click.IntRange(1), default=1, show_default=True, help="Turns of a conversation."
)
@click.option(
    "--think",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Mean seconds before a further turn.",
)
@click.option("--endpoint", type=click.Choice(["chat", "completions"]), default="chat", show_default=True)
@click.option(
    "--exact/--not-exact",
    default=True,
    show_default=True,
    help="Ask for answers of exactly that length (ignore_eos; OpenAI itself refuses it).",
)
@click.option("--objective-first", type=float, help="Seconds to the first token that users put up with.")
@click.option("--objective-token", type=float, help="Seconds for each further token that users put up with.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Key for the servers (OPENAI_API_KEY).")
@click.option(
    "--quantization", help="Of the models, where servers do not say; one, or one a URL with commas."
)
@click.option("--hardware", help="Of servers that are elsewhere.")
@click.option(
    "--timeout", type=click.FloatRange(0.1), default=600.0, show_default=True, help="Seconds for an answer."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON document here."
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with plots here.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document instead of the table.")
def load(**options: object) -> None:
    """Put load on servers and print one table: hardware, model, quantization, load, latency, throughput, peak memory.

    Latencies count from the moment at which a request was meant to be sent. Ctrl-C ends the run and shows what there is.
    """
    bench = _Bench(options)
    stopped = asyncio.run(bench.run())
    runs = bench.runs
    if not runs:
        raise InvalidRequest("nothing was measured before it was stopped")
    told = document(runs, bench.place, bench.settings, bench.trace_told)
    if bench.output is not None:
        bench.output.write_bytes(told)
    if bench.html is not None:
        bench.html.write_text(
            page(runs, place=bench.place, settings=bench.settings, trace=bench.trace_told), encoding="utf-8"
        )
    if options["as_json"]:
        click.echo(told)
    else:
        show(runs, bench.place)
    sys.exit(130 if stopped else 0 if all(run.summary.answered for run in runs) else 1)


def show(runs: Sequence[LoadRun], place: Place) -> None:
    """Print the table, the failures, and on what it was measured."""
    console = Console(width=None if Console().is_terminal else TABLE_WIDTH)
    table = Table()
    for name in HEAD:
        table.add_column(name, justify="left" if name in HEAD[:5] else "right", overflow="fold")
    for run in runs:
        table.add_row(*(Text(cell) for cell in row_of(run)))
    console.print(table)
    for run in runs:
        if run.summary.errors:
            kinds = ", ".join(f"{count} {kind}" for kind, count in run.summary.errors.items())
            console.print(
                f"{run.server.url}, {run.level}: not answered: {kinds}", markup=False, soft_wrap=True
            )
        behind, first = run.summary.behind_s.p99, run.summary.time_to_first_s.p50
        if behind is not None and first and behind > first / 10 and behind > 0.01:
            console.print(
                f"{run.server.url}, {run.level}: requests left up to {behind:.2f} s (p99) late: this machine is too slow to send them.",
                markup=False,
                soft_wrap=True,
            )
    console.print(
        f"Sent from {place.processor}, {place.threads} threads, {place.system}; tiltyard {place.tiltyard}, Python {place.python}. "
        "Latency counts from the intended time of sending.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


class _Bench:
    """One call of the command."""

    def __init__(self, options: dict[str, object]) -> None:
        self.options = options
        self.place = this_machine()
        self.runs: list[LoadRun] = []
        self.output, self.html = cast("Path | None", options["output"]), cast("Path | None", options["html"])
        for path in (self.output, self.html):
            if path is not None and not path.absolute().parent.is_dir():
                raise ConfigurationError(
                    f"{path.absolute().parent} is no folder; make it first", param="output"
                )
        self.urls = [_root(url) for url in cast("tuple[str, ...]", options["urls"])]
        self._check()
        self.shape = Shape(
            cast("int", options["prompt_tokens"]),
            cast("int", options["answer_tokens"]),
            cast("int", options["shared_tokens"]),
            cast("int", options["turns"]),
            cast("float", options["think"]),
        )
        self.scaling = Scaling(
            cast("float", options["speed"]),
            cast("float", options["scale_tokens"]),
            most_tokens=cast("int | None", options["most_tokens"]),
        )
        self.objectives = Objectives(
            cast("float | None", options["objective_first"]), cast("float | None", options["objective_token"])
        )
        self.requests, self.warmup = cast("int", options["requests"]), cast("int", options["warmup"])
        self.seed = cast("int", options["seed"])
        self.trace: Trace | None = None
        if (path := cast("Path | None", options["trace"])) is not None:
            count = self.requests + self.warmup
            self.trace = (
                logged_trace(options, newest=count)
                if str(path) == OWN_LOG
                else read_trace(path, count=count, seed=self.seed)
            )
        self.settings = _told(options)
        self.trace_told: dict[str, Json] | None = None
        if self.trace is not None:
            self.trace_told = {
                "name": self.trace.name,
                "kind": self.trace.kind,
                "digest": self.trace.digest,
                "requests": len(self.trace.asks),
                "scaling": cast("Json", asdict(self.scaling)),
            }
        self._console = Console(stderr=True)

    def _check(self) -> None:
        if str(self.options["trace"]) != OWN_LOG:
            refuse_for_other_traffic(self.options)
        ways = [name for name in ("concurrency", "rate", "sweep", "trace") if self.options[name]]
        if len(ways) > 1 and set(ways) != {"concurrency", "trace"}:
            raise InvalidRequest(
                f"--{ways[0]} and --{ways[1]} are two different loads; give one of them", param=ways[1]
            )

    async def run(self) -> bool:
        """Measure all servers at all levels, one after another; whether it was stopped."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        quantizations = str(self.options["quantization"] or "").split(",")
        for place, url in enumerate(self.urls):
            key = cast("str | None", self.options["api_key"])
            facts = await facts_of(url, cast("str | None", self.options["model"]), key)
            told = quantizations[min(place, len(quantizations) - 1)] or facts.quantization
            here = f"{self.place.processor}, {self.place.threads} threads" if facts.hardware else None
            facts = replace(
                facts, quantization=told, hardware=cast("str | None", self.options["hardware"]) or here
            )
            target = Target(
                url,
                facts.model,
                cast("Endpoint", self.options["endpoint"]),
                cast("bool", self.options["exact"]),
                key,
                timeout_s=cast("float", self.options["timeout"]),
            )
            for level in await self._levels(target, stop):
                if stop.is_set():
                    return True
                await self._measure(facts, target, level, stop)
        return stop.is_set()

    async def _levels(self, target: Target, stop: asyncio.Event) -> list[Level]:
        concurrency = cast("tuple[float, ...]", self.options["concurrency"])
        if self.trace is not None:
            asks = self.scaling.of(self.trace.asks)
            if concurrency:
                return [Level(f"{self.trace.name}, {c:.0f} at a time", asks, int(c)) for c in concurrency]
            return [Level(self.trace.name, asks)]
        asks = even(self.shape, (self.requests + self.warmup) * self.shape.turns, self.seed)
        rates = cast("tuple[float, ...]", self.options["rate"])
        if self.options["sweep"]:
            samples = await self._drive(target, Level("finding the most it can do", asks, 64), stop)
            most = summarize(samples, warmup=self.warmup).requests_per_s
            if not most:
                raise InvalidRequest(f"{target.url} answered nothing: {_kinds(samples)}", param="sweep")
            rates = tuple(most * share for share in SWEEP)
        if rates:
            return [Level(f"{rate:.3g}/s", poisson(asks, rate, self.seed), None, rate) for rate in rates]
        return [Level(f"{int(c)} at a time", asks, int(c)) for c in concurrency or (1, 8, 32)]

    async def _measure(self, facts: ServerFacts, target: Target, level: Level, stop: asyncio.Event) -> None:
        samples = await self._drive(target, level, stop)
        warmup = self.warmup * self.shape.turns if self.trace is None else self.warmup
        self.runs.append(
            LoadRun(
                server=facts,
                level=level.name,
                concurrency=level.concurrency,
                rate=level.rate,
                planned=len(level.asks),
                interrupted=len(samples) < len(level.asks) and stop.is_set(),
                peak_memory_bytes=peak_memory_bytes(target.url),
                summary=summarize(samples, warmup=warmup, objectives=self.objectives),
                samples=samples,
            )
        )

    async def _drive(self, target: Target, level: Level, stop: asyncio.Event) -> list[Sample]:
        asking = Asking(target)
        began = time.monotonic()
        tokens, failed, done, shown = 0, 0, 0, began
        live = Live(console=self._console, auto_refresh=False, transient=True)

        def told(sample: Sample) -> None:
            nonlocal tokens, failed, done, shown
            done += 1
            tokens += sample.answer_tokens
            failed += not sample.ok
            now = time.monotonic()
            if now - shown >= REFRESH_S:
                shown = now
                line = (
                    f"{target.model} at {target.url}, {level.name}: {done}/{len(level.asks)} requests, {failed} failed, "
                    f"{tokens / (now - began):,.0f} tokens/s"
                )
                if self._console.is_terminal:
                    live.update(Text(line), refresh=True)
                else:
                    self._console.print(line, markup=False, highlight=False, soft_wrap=True)

        driver = Driver(asking, time.monotonic, seed=self.seed, told=told)
        try:
            with live:
                await driver.run(level.asks, concurrency=level.concurrency, stop=stop)
        finally:
            await asking.aclose()
        return driver.samples


def _root(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"{url!r} is no address; write http://HOST:PORT or https://…", param="url")
    root = url.rstrip("/")
    return root if root.endswith("/v1") else root + "/v1"


def _told(options: dict[str, object]) -> dict[str, Json]:
    """Settings as they go into the outputs; never the key."""
    kept: dict[str, Json] = {}
    for name, value in options.items():
        if name not in {"api_key", "output", "html", "as_json", "data", "config"} and value not in (
            None,
            (),
            False,
        ):
            kept[name] = (
                list(value)
                if isinstance(value, tuple)
                else value
                if isinstance(value, int | float)
                else str(value)
            )
    return kept


def _kinds(samples: Sequence[Sample]) -> str:
    return ", ".join(sorted({s.error for s in samples if not s.ok})) or "no request was sent"

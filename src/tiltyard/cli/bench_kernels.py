"""`tiltyard bench kernels`: how fast this machine computes, and how close to its own ceilings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.table import Table

from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.errors import NotFound
from tiltyard.kernels import available_isas, choose_isa
from tiltyard.models.sources import parse_source
from tiltyard.ops.kernel_bench import (
    Ceilings,
    Measured,
    measure,
    measure_ceilings,
    measure_sampling,
    plan,
)
from tiltyard.worker.host import HostSettings, ModelHost, load_host

SHORT = {"attention_output": "output", "gate_up": "gate+up"}
"""Operators whose column has another name."""
TABLE_WIDTH = 150


@dataclass(frozen=True)
class IsaReport:
    """What one instruction set did."""

    isa: str
    threads: int
    ceilings: Ceilings
    steps: list[Measured]
    sampling_seconds: dict[str, float]
    """Seconds a row, by sampler."""


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers with commas between them."""

    name = "numbers"

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """`"1,8"` to `(1, 8)`."""
        if not isinstance(value, str):
            return value
        try:
            numbers = tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 1,8,32", param, ctx)
        if any(not 1 <= number <= 1024 for number in numbers):
            self.fail(f"{value!r} has a number outside 1 to 1024", param, ctx)
        return numbers


@click.command()
@click.argument("identity", required=False)
@data_option
@config_option
@click.option(
    "--isa",
    default="auto",
    show_default=True,
    help="Instruction set: auto (the best), all, or names with commas between them.",
)
@click.option("--threads", type=click.IntRange(1, 256), help="Threads; all cores unless told.")
@click.option(
    "--batch",
    type=Numbers(),
    default="1,2,4,8,16,32",
    show_default=True,
    help="Sequences in a decode step, with commas between them.",
)
@click.option(
    "--prefill",
    type=click.IntRange(0, 8192),
    default=512,
    show_default=True,
    help="Tokens of the prefill step; 0: none.",
)
@click.option(
    "--context",
    type=click.IntRange(0, 131072),
    default=200,
    show_default=True,
    help="Position at which decode steps are measured.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 60),
    default=1.0,
    show_default=True,
    help="How long each step is repeated; the best one counts.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, seconds and shares unrounded.")
def kernels(
    *,
    identity: str | None,
    data: Path | None,
    config: Path | None,
    isa: str,
    threads: int | None,
    batch: tuple[int, ...],
    prefill: int,
    context: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Measure the kernels on IDENTITY (the first declared one unless told): rates, time by operator, ceilings.

    The ceilings are measured in the same run with the same threads: bytes a second read from a memory as large
    as the weights, and integer multiply-adds a second. `of read` is what a step reads (weights and KV) over its
    time and that bandwidth; `of integer` the time its integer products would take at their peak, over its time.
    """
    settings = load_settings(config, data_dir=data)
    name = identity or next(iter(settings.identities), None)
    if name not in settings.identities:
        raise NotFound(
            f"there is no identity {name!r} in {settings.shown}; declared: "
            f"{', '.join(settings.identities) or 'none'}",
            param="identity",
        )
    progress = Console(stderr=True)
    reports = []
    for wanted in _isas(isa):
        with progress.status(f"{name}: loading for {wanted}") as status:
            host = _load(settings, name, wanted, threads or len(os.sched_getaffinity(0)))
            steps = plan(batch, prefill, context, host.config.max_context)
            host.native.allocate_kv(
                max(step.blocks for step in steps), settings.identities[name].kv_precision
            )
            status.update(f"{name}, {wanted}: ceilings of the machine")
            limits = measure_ceilings(host.native, seconds)
            vocab = host.config.vocab_size
            measured = []
            for step in steps:
                status.update(f"{name}, {wanted}: {step.name}")
                measured.append(measure(host.native, vocab, step, limits, seconds))
            status.update(f"{name}, {wanted}: sampling")
            sampling = dict(measure_sampling(host.native, vocab, max(batch), seconds / 4))
        reports.append(IsaReport(host.native.isa, host.native.threads, limits, measured, sampling))
    if as_json:
        click.echo(orjson.dumps({"identity": name, "reports": [asdict(r) for r in reports]}).decode())
        return
    show(name, reports, Console(width=None if Console().is_terminal else TABLE_WIDTH))


def show(name: str, reports: list[IsaReport], console: Console) -> None:
    """Print one table for all instruction sets, and one line of ceilings and of sampling for each."""
    steps = [step for report in reports for step in report.steps]
    # The last few are those of experts and adapters, which most models have not.
    operators = [
        op for op in steps[0].operators if op != "embed" and any(step.operators[op] > 0 for step in steps)
    ]
    several = len(reports) > 1  # one alone is named below the table
    table = Table(title=f"{name}: best step; operators in ms, waits included", title_justify="left")
    if several:
        table.add_column("isa", no_wrap=True)
    table.add_column("step", no_wrap=True)
    for column in ("tok/s", "ms", *(SHORT.get(op, op) for op in operators), "of read", "of integer"):
        table.add_column(column, justify="right", no_wrap=True)
    for report in reports:
        for step in report.steps:
            table.add_row(
                *((report.isa,) if several else ()),
                step.work,
                f"{step.tokens_per_s:,.0f}",
                f"{step.seconds * 1e3:,.2f}",
                *(f"{step.operators[op] * 1e3:,.2f}" for op in operators),
                f"{step.read_share:.0%}",
                "-" if step.integer_share is None else f"{step.integer_share:.0%}",
            )
        table.add_section()
    console.print(table)
    for report in reports:
        limits = report.ceilings
        console.print(
            f"{report.isa}, {report.threads} threads: reads {limits.read_bytes / 1e9:.1f} GB/s; multiply-adds "
            f"{limits.int4 / 1e9:.0f} G/s (int4), {limits.int8 / 1e9:.0f} G/s (int8); sampling a row: "
            + ", ".join(f"{what} {took * 1e6:.0f} us" for what, took in report.sampling_seconds.items()),
            highlight=False,
            soft_wrap=True,
        )


def _isas(asked: str) -> Iterator[str]:
    if asked == "all":
        yield from available_isas()
        return
    for name in asked.split(","):
        yield choose_isa(name.strip())


def _load(settings: Settings, name: str, isa: str, threads: int) -> ModelHost:
    declaration = settings.identities[name]
    found = parse_source(settings.models[declaration.model].source, settings.base_dir).cached(
        settings.cache_dir
    )
    if found is None:
        raise NotFound(
            f"the file of model {declaration.model!r} is not here. Run: tiltyard models pull {declaration.model}"
        )
    return load_host(
        found.path, {name: declaration}, HostSettings(threads=threads, isa=isa), base_dir=settings.base_dir
    )

"""`tiltyard judge`: ask a model which answer is better, and find out how far it can be believed."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click

from tiltyard.cli.judge_tables import Counting, run_json, show_report, show_run
from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.settings import load_settings
from tiltyard.client import DEFAULT_URL, ModelClient
from tiltyard.errors import ConfigurationError
from tiltyard.events.log import EventLog
from tiltyard.judge.items import read_items
from tiltyard.judge.judges import find_judge
from tiltyard.judge.judgments import choose_line, read_lines
from tiltyard.judge.report import report_of
from tiltyard.judge.rubric import load_rubric, shipped_rubrics
from tiltyard.judge.run import Done, Plan, Prices, plan
from tiltyard.judge.run import run as run_plan

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def command() -> None:
    """Ask a model to judge answers, and measure the judge itself. Rubrics: a name, FILE.toml or FILE.jsonl:NAME."""


@command.command()
def rubrics() -> None:
    """List the rubrics that come with tiltyard."""
    for rubric in shipped_rubrics():
        click.echo(f"{rubric.name:20} {rubric.mode:9} {rubric.digest[:19]}  {rubric.description}")


@command.command()
@click.argument("rubric")
@click.argument("items", type=click.Path(path_type=Path))
@click.option("--judge", "name", required=True, help="Model name of the judge.")
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Server that serves the judge.")
@click.option(
    "--api-key-env",
    metavar="NAME",
    help="Environment variable that holds the server's key; without it none is sent.",
)
@click.option("--pin", default="", help="What the judge really is, where its name may move (2024-06-13).")
@click.option(
    "--verdict",
    "held",
    type=click.Choice(["auto", "grammar", "text"]),
    default="auto",
    show_default=True,
    help="Hold verdicts to a grammar, or read them from the text.",
)
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True)
@click.option(
    "--samples", type=click.IntRange(1), default=1, show_default=True, help="Askings of each order."
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws which order comes first."
)
@click.option("--concurrency", type=click.IntRange(1, 256), default=8, show_default=True)
@click.option(
    "--price", nargs=2, type=float, metavar="PROMPT COMPLETION", help="Dollars a million tokens of each."
)
@data_option
@config_option
@json_option
def run(  # noqa: PLR0917  # click passes names
    rubric: str,
    items: Path,
    name: str,
    url: str,
    api_key_env: str | None,
    pin: str,
    held: Literal["auto", "grammar", "text"],
    temperature: float,
    samples: int,
    seed: int,
    concurrency: int,
    price: tuple[float, float] | None,
    data: Path | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Judge every item of ITEMS (JSON lines) under RUBRIC, both orders of a pair, and report.

    Run it again after an interruption: what the log has is not asked for again.
    """
    settings = load_settings(config, data_dir=data)
    chosen, item_set = load_rubric(rubric), read_items(items)
    prices = None if price is None else Prices(*price)
    api_key = None if api_key_env is None else os.environ.get(api_key_env)
    if api_key_env is not None and not api_key:
        raise ConfigurationError(f"--api-key-env names {api_key_env}, which is not set", param="api_key_env")

    async def judge_all(log: EventLog) -> tuple[Plan, Done]:
        async with ModelClient(url, api_key=api_key) as client:
            judge = await find_judge(client, name, pin=pin, temperature=temperature, held=held)
            planned = plan(log, judge, chosen, item_set, seed=seed, samples=samples)
            done = await run_plan(
                log, client, planned, concurrency=concurrency, prices=prices, report=Counting("judged")
            )
            return planned, done

    settings.log_path.parent.mkdir(parents=True, exist_ok=True)
    with EventLog.open(settings.log_path, keys=settings.keys_path) as log:
        planned, done = asyncio.run(judge_all(log))
        wanted = {asking.judgment for asking in planned.askings}
        lines = read_lines(log)
        line = next(
            line
            for line, judgments in lines.items()
            if line.judge == planned.judge.digest
            and line.rubric == chosen.digest
            and any(one.data.judgment in wanted for one in judgments.all)
        )
        report = report_of(lines[line].of_items(asking.item_key for asking in planned.askings))
    if as_json:
        click.echo(json.dumps(run_json(report, done, planned), ensure_ascii=False, indent=2))
        return
    show_run(report, done, planned)


@command.command()
@click.option("--judge", "name", help="Only this judge: name, digest or label.")
@data_option
@config_option
@json_option
def show(name: str | None, data: Path | None, config: Path | None, as_json: bool) -> None:
    """Report on every line of judgments in the log; each is one judge under one rubric."""
    settings = load_settings(config, data_dir=data)
    with EventLog.open(settings.log_path, keys=settings.keys_path, create=False) as log:
        lines = read_lines(log)
        chosen = list(lines) if name is None else [choose_line(list(lines), name)]
        reports = [report_of(lines[line]) for line in chosen]
    if as_json:
        click.echo(json.dumps([asdict(report) for report in reports], ensure_ascii=False, indent=2))
        return
    for report in reports:
        show_report(report)

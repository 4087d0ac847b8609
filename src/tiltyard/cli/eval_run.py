"""`tiltyard eval run`: ask a set of identities, go on where it was interrupted, compare, report."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from tiltyard.cli.eval_experts import ExpertDesk
from tiltyard.cli.eval_judge import JudgeOptions, judging
from tiltyard.cli.eval_options import (
    command_line,
    format_option,
    json_option,
    key_option,
    opened,
    out_option,
    price_of,
    price_option,
    report_of,
    url_option,
)
from tiltyard.cli.eval_progress import ProgressLine
from tiltyard.cli.eval_show import show
from tiltyard.cli.options import FiniteRange, data_option
from tiltyard.client import ModelClient
from tiltyard.errors import InvalidRequest
from tiltyard.evals.contender import resolve
from tiltyard.evals.item import Item
from tiltyard.evals.marking import Marker
from tiltyard.evals.plan import DEFAULT_MAX_TOKENS, RunPlan
from tiltyard.evals.public_sets import read_set
from tiltyard.evals.report import write_report
from tiltyard.evals.runner import Runner
from tiltyard.evals.sandbox import run_python
from tiltyard.evals.sets import EvalSet, select
from tiltyard.events.log import EventLog
from tiltyard.identity.canonical import Json


@dataclass(frozen=True)
class Asked:
    """What `run` was asked to do."""

    eval_set: EvalSet
    items: tuple[Item, ...]
    models: tuple[str, ...]
    settings: dict[str, Json]
    seed: int
    samples: int
    repeat: int
    concurrency: int
    service_class: str
    allow_code: bool
    judge: JudgeOptions | None


@click.command()
@click.argument("set_name", metavar="SET")
@click.argument("model")
@click.option(
    "--compare", "others", multiple=True, metavar="MODEL", help="Compare with this one; may be given again."
)
@url_option
@key_option
@data_option
@format_option
@click.option(
    "--seed",
    type=click.IntRange(0, 2**53 - 1),
    default=0,
    show_default=True,
    help="From which every answer's seed is made.",
)
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Answers to each item.")
@click.option(
    "--temperature", type=FiniteRange(0, 2), help="Sampling temperature. [default: the identity's own]"
)
@click.option(
    "--top-p", type=FiniteRange(0, 1, min_open=True), help="Keep the likeliest tokens up to this probability."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=DEFAULT_MAX_TOKENS,
    show_default=True,
    help="Longest answer.",
)
@click.option("--slice", "slices", multiple=True, metavar="NAME=VALUE", help="Only items of this slice.")
@click.option("--limit", type=click.IntRange(1), help="Only the first so many items.")
@click.option(
    "--repeat",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Make the same run again, for the N-th time, and compare every byte.",
)
@click.option(
    "--concurrency", type=click.IntRange(1, 1024), default=8, show_default=True, help="Requests at a time."
)
@click.option(
    "--class",
    "service_class",
    type=click.Choice(["interactive", "agent", "batch"]),
    default="batch",
    show_default=True,
    help="Class of the requests; batch waits for people.",
)
@click.option("--allow-code", is_flag=True, help="Run code of answers in the sandbox.")
@click.option("--judge", metavar="MODEL", help="Model that judges where the set asks for a judge.")
@click.option("--judge-url", help="Its server. [default: --url]")
@click.option(
    "--judge-key-env",
    metavar="NAME",
    help="Environment variable with its server's key. [default: --api-key, where the server is the same]",
)
@click.option("--judge-pin", default="", help="What it is, where its server's names move: 2024-06-13.")
@price_option
@out_option
@json_option
def run(  # noqa: PLR0917  # click passes names
    set_name: str,
    model: str,
    others: tuple[str, ...],
    url: str,
    api_key: str | None,
    data: Path | None,
    form: str | None,
    seed: int,
    samples: int,
    temperature: float | None,
    top_p: float | None,
    max_tokens: int,
    slices: tuple[str, ...],
    limit: int | None,
    repeat: int,
    concurrency: int,
    service_class: str,
    allow_code: bool,
    judge: str | None,
    judge_url: str | None,
    judge_key_env: str | None,
    judge_pin: str,
    price: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Ask SET of MODEL (a name, or name@sha256:…), and write a report.

    SET is core, negative, zh-en, or a file. What is finished is in the log: the same command goes on where it was
    interrupted, and asks nothing twice. Exit status 0: every sample has an answer; 3: some have not, run it again.
    """
    eval_set = read_set(set_name, form)
    settings: dict[str, Json] = {"max_tokens": max_tokens}
    settings |= {
        name: value for name, value in (("temperature", temperature), ("top_p", top_p)) if value is not None
    }
    asked = Asked(
        eval_set,
        select(eval_set.items, dict(map(_pair, slices)), limit),
        (model, *others),
        settings,
        seed,
        samples,
        repeat,
        concurrency,
        service_class,
        allow_code,
        None if judge is None else JudgeOptions(judge, judge_url or url, judge_key_env, judge_pin, api_key),
    )
    cost = None if price is None else price_of(price)
    for note in eval_set.notes:
        click.echo(f"note: {note}", err=True)
    if allow_code:
        held = (
            run_python("pass", seconds=5, memory_mb=128).isolation
            or "limits only; no namespaces, no Landlock here"
        )
        click.echo(f"code of answers runs in the sandbox: {held}", err=True)
    with opened(data, create=True) as log:
        failed, runs = asyncio.run(_run(log, url, api_key, asked))
        report = report_of(log, runs, eval_set, asked.items, cost, command=command_line())
        paths = write_report(report, out or Path(f"eval-{eval_set.name}-{model.partition('@')[0]}"))
    show(report, paths, as_json=as_json)
    sys.exit(3 if failed else 0)


async def _run(log: EventLog, url: str, api_key: str | None, asked: Asked) -> tuple[int, tuple[str, ...]]:
    """Run each model in its turn; returns failures, and the runs in the order of the models."""
    progress = ProgressLine(sys.stderr)
    async with ModelClient(url, api_key=api_key) as client, judging(log, asked.judge) as judge:
        if judge is not None:
            judge.prepare(asked.items or asked.eval_set.items)
        desk = ExpertDesk(log)
        for role, has in desk.prepare(asked.items or asked.eval_set.items).items():
            click.echo(
                f"note: {has} of 2 reviewers have the role {role!r}; its items are kept and wait. Name more with "
                f"`tiltyard judge experts name NAME --role {role}`",
                err=True,
            )
        marker = Marker(allow_code=asked.allow_code, judge=judge, experts=desk)
        contenders = [
            await resolve(client, name) for name in asked.models
        ]  # a wrong name fails before the first item
        runner = Runner(
            client,
            log,
            marker,
            concurrency=asked.concurrency,
            service_class=asked.service_class,
            report=progress,
        )
        failed, found = 0, []
        try:
            for contender in contenders:
                for repeat in sorted({0, asked.repeat}):
                    plan = RunPlan(
                        asked.eval_set,
                        contender,
                        asked.seed,
                        asked.settings,
                        marker.terms(asked.eval_set.items),
                        asked.samples,
                        asked.items,
                        repeat,
                    )
                    failed += (await runner.go(plan)).failed
                    if repeat == 0:
                        found.append(plan.run)
        finally:
            progress.end()
    return failed, tuple(found)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InvalidRequest(
            f"{text[:80]!r} names no slice; write NAME=VALUE, such as language=en.", param="slice"
        )
    return name, value

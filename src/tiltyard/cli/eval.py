"""`tiltyard eval`: ask a fixed set of one or more identities, compare them item by item, and write a report."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from tiltyard.cli.eval_judge import JudgeOptions, judging
from tiltyard.cli.eval_progress import ProgressLine
from tiltyard.cli.options import data_option
from tiltyard.cli.settings import default_data_dir
from tiltyard.client import DEFAULT_URL, ModelClient
from tiltyard.errors import InvalidRequest
from tiltyard.evals.comparison import Comparison, Price, Summary, summarize
from tiltyard.evals.contamination import find_contamination
from tiltyard.evals.contender import resolve
from tiltyard.evals.drift import find_drift
from tiltyard.evals.evidence import read_evidence, repeats_of, runs_of
from tiltyard.evals.inspect_log import write_inspect_log
from tiltyard.evals.item import Item
from tiltyard.evals.marking import Marker
from tiltyard.evals.plan import DEFAULT_MAX_TOKENS, RunPlan
from tiltyard.evals.public_sets import read_set
from tiltyard.evals.report import Report, headline, interval, label, repetition_of, write_report
from tiltyard.evals.runner import Runner
from tiltyard.evals.sandbox import run_python
from tiltyard.evals.sets import SHIPPED, EvalSet, load_set, select
from tiltyard.evals.users import MOST_PROMPTS, users_prompts
from tiltyard.events.log import EventLog
from tiltyard.events.places import keys_in, log_in
from tiltyard.identity.canonical import Json

FORMAT_HELP = "Format of the file where it is no set of tiltyard's: gsm8k, mgsm, humaneval, ifeval, mt_bench, belle, cvalues, xstest."

url_option = click.option("--url", default=DEFAULT_URL, show_default=True, help="The server.")
key_option = click.option("--api-key", envvar="TILTYARD_API_KEY", help="The key to show (TILTYARD_API_KEY).")
format_option = click.option("--format", "form", help=FORMAT_HELP)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Where the report goes, without .html and .md. [default: ./eval-SET-MODEL]",
)
price_option = click.option(
    "--price", metavar="IN,OUT", help="What a million tokens cost, prompt and output, such as 0.5,1.5."
)


@click.group()
def command() -> None:
    """Fixed sets: run, compare, report."""


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


@command.command()
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
@click.option("--temperature", type=float, help="Sampling temperature. [default: the identity's own]")
@click.option("--top-p", type=float, help="Keep the likeliest tokens up to this probability.")
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
    cost = None if price is None else _price(price)
    for note in eval_set.notes:
        click.echo(f"note: {note}", err=True)
    if allow_code:
        held = (
            run_python("pass", seconds=5, memory_mb=128).isolation
            or "limits only; no namespaces, no Landlock here"
        )
        click.echo(f"code of answers runs in the sandbox: {held}", err=True)
    with _log(data, create=True) as log:
        failed, runs = asyncio.run(_run(log, url, api_key, asked))
        report = _report(log, runs, eval_set, asked.items, cost, command=_command_line())
        paths = write_report(report, out or Path(f"eval-{eval_set.name}-{model.partition('@')[0]}"))
    _show(report, paths, as_json)
    sys.exit(3 if failed else 0)


@command.command()
@click.argument("run_id", metavar="RUN")
@click.option("--compare", "others", multiple=True, metavar="RUN", help="Compare with this run.")
@data_option
@price_option
@out_option
@json_option
def report(  # noqa: PLR0917
    run_id: str,
    others: tuple[str, ...],
    data: Path | None,
    price: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write the report of a run that is in the log (evr_…); no server is needed."""
    with _log(data) as log:
        evidence = read_evidence(log, run_id)
        name = evidence.started.set_name
        known = load_set(name) if name in SHIPPED else None
        made = _report(
            log,
            (run_id, *others),
            known,
            tuple(evidence.items.values()),
            None if price is None else _price(price),
            command=_command_line(),
        )
        paths = write_report(made, out or Path(f"eval-{name}-{evidence.started.alias}"))
    _show(made, paths, as_json)


@command.command()
@click.argument("run_id", metavar="RUN")
@data_option
@click.option("--out", type=click.Path(path_type=Path), help="The file. [default: ./RUN.eval]")
def export(run_id: str, data: Path | None, out: Path | None) -> None:
    """Write a run (evr_…) as a log of Inspect AI, which `inspect view` opens."""
    path = out or Path(f"{run_id}.eval")
    with _log(data) as log:
        write_inspect_log(summarize(read_evidence(log, run_id)), path)
    click.echo(str(path))


@command.command()
@data_option
@json_option
def runs(data: Path | None, as_json: bool) -> None:
    """List the runs in the log, oldest first."""
    with _log(data) as log:
        for started in runs_of(log):
            if as_json:
                click.echo(started.model_dump_json())
                continue
            again = f", repeat {started.repeat}" if started.repeat else ""
            click.echo(
                f"{started.run}  {started.set_name} ({started.items} items)  "
                f"{started.alias}@{started.behaviour.removeprefix('sha256:')[:8]}  seed {started.seed}{again}"
            )


@command.command()
@json_option
def sets(as_json: bool) -> None:
    """List the sets that ship with tiltyard."""
    for name in SHIPPED:
        one = load_set(name)
        if as_json:
            click.echo(
                json.dumps(
                    {"name": name, "items": len(one.items), "digest": one.digest, "licence": one.licence}
                )
            )
            continue
        click.echo(
            f"{name:10} {len(one.items):4} items  {one.digest[:19]}  {one.licence}  {_title(one.card)}"
        )


@command.command()
@click.argument("set_name", metavar="SET")
@format_option
@json_option
def check(set_name: str, form: str | None, as_json: bool) -> None:
    """Read SET, say what is in it, and what is wrong with it by line and field."""
    one = read_set(set_name, form)
    kinds: dict[str, int] = {}
    slices: dict[str, dict[str, int]] = {}
    for item in one.items:
        for each in item.checks:
            kinds[each.kind] = kinds.get(each.kind, 0) + 1
        for trait, value in item.slices.items():
            slices.setdefault(trait, {})[value] = slices.get(trait, {}).get(value, 0) + 1
    if as_json:
        click.echo(
            json.dumps(
                {
                    "name": one.name,
                    "items": len(one.items),
                    "digest": one.digest,
                    "licence": one.licence,
                    "checks": kinds,
                    "slices": slices,
                    "notes": one.notes,
                },
                ensure_ascii=False,
            )
        )
        return
    click.echo(
        f"{one.name}: {len(one.items)} items, {one.digest}" + (f", {one.licence}" if one.licence else "")
    )
    click.echo("checks: " + (", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "none"))
    for trait, values in sorted(slices.items()):
        click.echo(f"{trait}: " + ", ".join(f"{value} {count}" for value, count in sorted(values.items())))
    for note in one.notes:
        click.echo(f"note: {note}")


@command.command()
def schema() -> None:
    """Print the JSON Schema of one line of a set."""
    click.echo(json.dumps(Item.model_json_schema(by_alias=True), ensure_ascii=False, indent=2))


@command.command()
@click.argument("set_name", metavar="SET")
@data_option
@format_option
@click.option(
    "--last",
    type=click.IntRange(1),
    default=MOST_PROMPTS,
    show_default=True,
    help="Compare with so many of users' last prompts.",
)
@json_option
def audit(set_name: str, data: Path | None, form: str | None, last: int, as_json: bool) -> None:
    """Compare SET with what users ask: items that they asked already, items that are there twice, slices that are lacking.

    Prints items and ids of generations, and no word of a user.
    """
    one = read_set(set_name, form)
    with _log(data) as log:
        seen = list(users_prompts(log, most=last))
    contamination = find_contamination(one.items, seen)
    drift = find_drift(one.items, [each.text for each in seen])
    if as_json:
        found = [
            {"item": match.item, "where": match.where, "kind": match.kind, "similarity": match.similarity}
            for match in (*contamination.matches, *contamination.duplicates)
        ]
        rows = [
            {
                "trait": row.trait,
                "value": row.value,
                "users": row.users,
                "set": row.items,
                "to_add": row.to_add,
            }
            for row in drift.rows
        ]
        click.echo(
            json.dumps(
                {
                    "matches": found,
                    "compared": contamination.compared,
                    "drift": rows,
                    "distances": drift.distances,
                },
                ensure_ascii=False,
            )
        )
        return
    click.echo(contamination.sentence)
    for match in (*contamination.matches, *contamination.duplicates):
        click.echo(f"  {match.item}  {match.kind} {match.similarity:.2f}  {match.where}")
    click.echo(drift.sentence)
    for lacking in drift.to_add:
        click.echo(f"  add about {lacking.items} items with {lacking.trait} = {lacking.value}")


async def _run(log: EventLog, url: str, api_key: str | None, asked: Asked) -> tuple[int, tuple[str, ...]]:
    """Run each model in its turn; returns failures, and the runs in the order of the models."""
    progress = ProgressLine(sys.stderr)
    async with ModelClient(url, api_key=api_key) as client, judging(log, asked.judge) as judge:
        marker = Marker(allow_code=asked.allow_code, judge=judge)
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


def _report(
    log: EventLog,
    runs: Sequence[str],
    eval_set: EvalSet | None,
    items: tuple[Item, ...],
    price: Price | None,
    *,
    command: str,
) -> Report:
    evidence = [read_evidence(log, run) for run in runs]
    again = {
        one.run: [repetition_of(one, read_evidence(log, other.run)) for other in repeats_of(log, one.started)]
        for one in evidence
    }
    seen = list(users_prompts(log))
    return Report(
        tuple(summarize(one, price) for one in evidence),
        eval_set,
        again,
        find_contamination(items, seen),
        find_drift(items, [one.text for one in seen]),
        command,
    )


def _show(report: Report, paths: tuple[Path, Path], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_as_json(report, paths), ensure_ascii=False))
        return
    for summary in report.runs:
        unscored = sum(summary.unscored.values())
        click.echo(
            f"{label(summary)}: {interval(summary.score)}, {summary.samples} samples"
            + (f", {unscored} unscored" if unscored else "")
            + (f", {len(summary.evidence.waiting)} without an answer" if summary.evidence.waiting else "")
        )
        for again in report.repetitions.get(summary.evidence.run, ()):
            click.echo(
                f"  {again.same} of {again.both} outputs are the same bytes as in repeat {again.repeat}"
            )
    for one in report.comparisons:
        click.echo(headline(one))
    click.echo(f"{paths[0]}\n{paths[1]}")


def _as_json(report: Report, paths: tuple[Path, Path]) -> dict[str, object]:
    return {
        "runs": [_run_json(summary) for summary in report.runs],
        "comparisons": [_comparison_json(one) for one in report.comparisons],
        "repetitions": [
            {"run": run, "again": one.run, "same": one.same, "both": one.both}
            for run, found in report.repetitions.items()
            for one in found
        ],
        "html": str(paths[0]),
        "markdown": str(paths[1]),
    }


def _run_json(summary: Summary) -> dict[str, object]:
    score = summary.score
    return {
        "run": summary.evidence.run,
        "model": summary.evidence.started.alias,
        "behaviour": summary.evidence.started.behaviour,
        "mean": score and score.mean,
        "lower": score and score.lower,
        "upper": score and score.upper,
        "items": summary.items,
        "samples": summary.samples,
        "unscored": summary.unscored,
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "cost": summary.cost,
        "outputs": summary.outputs,
    }


def _comparison_json(one: Comparison) -> dict[str, object]:
    difference, flips = one.difference, one.flips
    return {
        "against": one.other.evidence.run,
        "difference": difference and difference.mean,
        "lower": difference and difference.lower,
        "upper": difference and difference.upper,
        "pairs": one.pairs,
        "won": flips and flips.won,
        "lost": flips and flips.lost,
        "p": flips and flips.p,
        "same_outputs": one.same_outputs,
    }


@contextmanager
def _log(data: Path | None, *, create: bool = False) -> Iterator[EventLog]:
    folder = data or default_data_dir()
    if create:
        folder.mkdir(parents=True, exist_ok=True)
    with EventLog.open(log_in(folder), keys=keys_in(folder), create=create) as log:
        yield log


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InvalidRequest(
            f"{text[:80]!r} names no slice; write NAME=VALUE, such as language=en.", param="slice"
        )
    return name, value


def _price(text: str) -> Price:
    try:
        prompt, output = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(
            f"the price is {text[:80]!r}; write two numbers, such as 0.5,1.5.", param="price"
        ) from None
    return Price(prompt, output)


def _command_line() -> str:
    """The command as it was typed, without what it showed as a key."""
    words: list[str] = []
    hide = False
    for word in sys.argv[1:]:
        words.append("…" if hide else "--api-key=…" if word.startswith("--api-key=") else word)
        hide = word == "--api-key"
    return shlex.join(["tiltyard", *words])


def _title(card: str) -> str:
    return next((line.lstrip("# ") for line in card.splitlines() if line.startswith("#")), "")

"""`tiltyard judge`: ask a model which answer is better, and find out how far it can be believed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

import click

from tiltyard.cli.judge_experts import experts
from tiltyard.cli.judge_measures import bridge, measure, trend
from tiltyard.cli.judge_options import check_sharing, items_of, json_option, opened, share_option
from tiltyard.cli.judge_reward import score, train
from tiltyard.cli.judge_tables import Counting, run_json, show_attacks, show_drift, show_report, show_run
from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.run_metrics import metrics_option
from tiltyard.client import DEFAULT_URL, ModelClient
from tiltyard.errors import ConfigurationError, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.judge.drift import drift_since, next_sample
from tiltyard.judge.injections import attack as attack_items
from tiltyard.judge.injections import attacks_of, read_injections
from tiltyard.judge.items import ItemSet
from tiltyard.judge.judges import Judge, find_judge
from tiltyard.judge.judgments import Judgments, Purpose, choose_line, read_lines
from tiltyard.judge.report import report_of
from tiltyard.judge.rubric import Rubric, load_rubric, shipped_rubrics
from tiltyard.judge.run import Done, Plan, Prices, item_key, plan
from tiltyard.judge.run import run as run_plan

HARDLY_READS = 0.5
"""Share of pairs on which both orders agree below which attacks show nothing."""

Command = TypeVar("Command", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Asking:
    """How a judge is to be asked: the options that several verbs share."""

    name: str
    url: str
    api_key_env: str | None
    pin: str
    held: Literal["auto", "grammar", "text"]
    temperature: float
    seed: int
    concurrency: int
    price: tuple[float, float] | None
    share_words: bool

    @contextmanager
    def judging(self, log: EventLog, rubric: Rubric, items: str) -> Iterator[Run]:
        """Find the judge once, then run as many plans as wanted.

        Raises `InvalidRequest` where the arena's words would go to a server that is no tiltyard without leave.
        """
        with asyncio.Runner() as runner:
            client = ModelClient(self.url, api_key=self._key())
            try:
                judge = runner.run(
                    find_judge(client, self.name, pin=self.pin, temperature=self.temperature, held=self.held)
                )
                check_sharing(items, self.url, ours=judge.ours, share_words=self.share_words)
                yield Run(self, log, rubric, judge, client, runner)
            finally:
                runner.run(client.aclose())

    def _key(self) -> str | None:
        if self.api_key_env is None:
            return None
        if not (key := os.environ.get(self.api_key_env)):
            raise ConfigurationError(
                f"--api-key-env names {self.api_key_env}, which is not set", param="api_key_env"
            )
        return key


@dataclass(frozen=True, slots=True)
class Run:
    """A judge that has been found, a rubric and a log."""

    asking: Asking
    log: EventLog
    rubric: Rubric
    judge: Judge
    client: ModelClient
    runner: asyncio.Runner

    def judge_all(
        self, items: ItemSet, samples: Sequence[int] = (0,), *, purpose: Purpose = "verdict"
    ) -> tuple[Plan, Done]:
        """Judge what the log lacks."""
        planned = plan(
            self.log,
            self.judge,
            self.rubric,
            items,
            seed=self.asking.seed,
            samples=samples,
            purpose=purpose,
        )
        work = run_plan(
            self.log,
            self.client,
            planned,
            concurrency=self.asking.concurrency,
            prices=None if self.asking.price is None else Prices(*self.asking.price),
            report=Counting("judged"),
        )
        return planned, self.runner.run(work)

    def line(self, purpose: Purpose = "verdict") -> Judgments | None:
        """The newest line of this judge under this rubric, if it has judged anything."""
        own = [
            judgments
            for line, judgments in read_lines(self.log, purpose=purpose).items()
            if line.judge == self.judge.digest and line.rubric == self.rubric.digest
        ]
        return max(own, key=lambda judgments: judgments.all[-1].sequence, default=None)

    def judgments(self, planned: Plan) -> Judgments:
        """Those of a plan that has been run."""
        line = self.line(planned.purpose)
        if line is None:
            raise InvalidRequest("the set has nothing to judge", param="items")
        return line.of_items(asking.item_key for asking in planned.askings)


def asking_options(function: Command) -> Command:
    """Add the options of `Asking`, in the order in which `--help` shows them."""
    options = (
        click.option("--judge", "name", required=True, help="Model name of the judge."),
        click.option("--url", default=DEFAULT_URL, show_default=True, help="Server that serves the judge."),
        click.option(
            "--api-key-env",
            metavar="NAME",
            help="Environment variable that holds the server's key; without it none is sent.",
        ),
        click.option("--pin", default="", help="What the judge is, where its name may move (2024-06-13)."),
        click.option(
            "--verdict",
            "held",
            type=click.Choice(["auto", "grammar", "text"]),
            default="auto",
            show_default=True,
            help="Hold verdicts to a grammar, or read them from the text.",
        ),
        click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True),
        click.option(
            "--seed",
            type=click.IntRange(0),
            default=0,
            show_default=True,
            help="Draws which order comes first.",
        ),
        click.option("--concurrency", type=click.IntRange(1, 256), default=8, show_default=True),
        click.option(
            "--price", nargs=2, type=float, metavar="PROMPT COMPLETION", help="Dollars a million tokens."
        ),
        share_option,
        metrics_option("judge"),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.group()
def command() -> None:
    """Ask a model to judge answers, and measure the judge itself.

    RUBRIC is a name of ours, FILE.toml or FILE.jsonl:NAME; ITEMS a file of JSON lines, or `battles` for the arena's.
    """


command.add_command(measure)
command.add_command(bridge)
command.add_command(trend)
command.add_command(train)
command.add_command(score)
command.add_command(experts)


@command.command(short_help="List the rubrics that come with tiltyard.")
def rubrics() -> None:
    """List the rubrics that come with tiltyard."""
    for rubric in shipped_rubrics():
        click.echo(f"{rubric.name:20} {rubric.mode:9} {rubric.digest[:19]}  {rubric.description}")


@command.command(short_help="Judge items under a rubric, and report.")
@click.argument("rubric")
@click.argument("items")
@asking_options
@click.option(
    "--samples", type=click.IntRange(1), default=1, show_default=True, help="Askings of each order."
)
@data_option
@config_option
@json_option
def run(
    rubric: str,
    items: str,
    *,
    samples: int,
    data: Path | None,
    config: Path | None,
    as_json: bool,
    **asking: object,
) -> None:
    """Judge every item of ITEMS under RUBRIC, both orders of a pair, and report.

    Run it again after an interruption: what the log has is not asked for again.
    """
    with opened(data, config, create=True) as log:
        chosen, item_set = load_rubric(rubric), items_of(log, items)
        with _asking(asking).judging(log, chosen, items) as judging:
            planned, done = judging.judge_all(item_set, range(samples))
            report = report_of(judging.judgments(planned))
    if as_json:
        click.echo(json.dumps(run_json(report, done, planned), ensure_ascii=False, indent=2))
    else:
        show_run(report, done, planned)


@command.command(short_help="Judge a set again: has the judge drifted?")
@click.argument("rubric")
@click.argument("items")
@asking_options
@data_option
@config_option
@json_option
def sentinel(
    rubric: str,
    items: str,
    data: Path | None,
    config: Path | None,
    *,
    as_json: bool,
    **asking: object,
) -> None:
    """Judge ITEMS once more, and say whether the judge is still what it was the first time."""
    with opened(data, config, create=True) as log:
        chosen, item_set = load_rubric(rubric), items_of(log, items)
        with _asking(asking).judging(log, chosen, items) as judging:
            keys = {item_key(log, item) for item in item_set.items}
            due = next_sample(judging.line(), keys, 2 if chosen.mode == "pairwise" else 1)
            planned, _ = judging.judge_all(item_set, (due,))
            judgments = judging.judgments(planned)
    if due == 0:
        click.echo(f"first repetition of {len(keys):,} items kept; run it again to compare with it")
        return
    drift = drift_since(judgments, due)
    if as_json:
        click.echo(json.dumps(asdict(drift) | {"leans": drift.leans}, ensure_ascii=False, indent=2))
    else:
        show_drift(drift)


@command.command(short_help="How often texts that ask for a verdict get it.")
@click.argument("rubric")
@click.argument("items")
@asking_options
@click.option(
    "--injections", "corpus", type=click.Path(path_type=Path), help="JSON lines of kind and text; else ours."
)
@click.option("--limit", type=click.IntRange(1), help="Only so many items.")
@data_option
@config_option
@json_option
def attack(
    rubric: str,
    items: str,
    *,
    corpus: Path | None,
    limit: int | None,
    data: Path | None,
    config: Path | None,
    as_json: bool,
    **asking: object,
) -> None:
    """Put texts that ask for a verdict into the losing answers, and measure how often they get it."""
    with opened(data, config, create=True) as log:
        chosen, item_set = load_rubric(rubric), items_of(log, items)
        if limit is not None:
            item_set = ItemSet(item_set.name, item_set.digest, item_set.items[:limit])
        injections = read_injections() if corpus is None else read_injections(corpus)
        with _asking(asking).judging(log, chosen, items) as judging:
            planned, _ = judging.judge_all(item_set)
            clean = judging.judgments(planned)
            keys = {item.id: item_key(log, item) for item in item_set.items}
            planned, _ = judging.judge_all(attack_items(item_set, clean, keys, injections), purpose="attack")
            found = attacks_of(clean, judging.judgments(planned))
            agree = report_of(clean).consistency
    if agree.estimate < HARDLY_READS:
        click.echo(
            f"note: without attacks this judge says the same in both orders for {agree.estimate:.0%} of {agree.n:,} pairs; one that "
            "goes by places and hardly reads answers cannot be moved by them, so the figures below say little",
            err=True,
        )
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], ensure_ascii=False, indent=2))
    else:
        show_attacks(found)


@command.command(short_help="Report on every judge in the log.")
@click.option("--judge", "name", help="Only this judge: name, digest or label.")
@data_option
@config_option
@json_option
def show(name: str | None, data: Path | None, config: Path | None, *, as_json: bool) -> None:
    """Report on every line of judgments in the log; each is one judge under one rubric."""
    with opened(data, config) as log:
        lines = read_lines(log)
        chosen = list(lines) if name is None else [choose_line(list(lines), name)]
        reports = [report_of(lines[line]) for line in chosen]
    if as_json:
        click.echo(json.dumps([asdict(report) for report in reports], ensure_ascii=False, indent=2))
        return
    for report in reports:
        show_report(report)


def _asking(given: dict[str, object]) -> Asking:
    return Asking(**given)  # type: ignore[arg-type]  # click has checked each of them

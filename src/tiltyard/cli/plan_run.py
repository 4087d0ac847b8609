"""`tiltyard plan run`: read traffic, learn what steps cost, simulate, and print one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiltyard.cli.logged_traffic import OWN_LOG, logged_options, logged_traffic, refuse_for_other_traffic
from tiltyard.cli.options import FiniteRange
from tiltyard.cli.plan_progress import Counting
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.engine.fairness import CLASSES, FairnessConfig
from tiltyard.errors import ConfigurationError, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.ops.load.logged import LoggedRequest, trace_of
from tiltyard.ops.load.samples import Objectives
from tiltyard.ops.load.traces import Trace, read_trace
from tiltyard.ops.plan.engine import EngineLimits
from tiltyard.ops.plan.fleet import Told
from tiltyard.ops.plan.held_back import Uncertainty, held_back
from tiltyard.ops.plan.history import deployment_in, learn
from tiltyard.ops.plan.page import page
from tiltyard.ops.plan.plan import AS_IT_IS, Plan, Row
from tiltyard.ops.plan.rows import HEAD, cells, notes
from tiltyard.ops.plan.setup import ROUTINGS, Fleet, Routing
from tiltyard.ops.plan.step_file import StepFile
from tiltyard.ops.plan.what_if import WhatIf

TABLE_WIDTH = 190


class Known(NamedTuple):
    """What is known of the engine before anything is simulated."""

    steps: StepFile
    fleet: Fleet
    uncertainty: Uncertainty | None


def _what_ifs(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> list[WhatIf]:
    try:
        return [WhatIf.parse(value) for value in values]
    except InvalidRequest as error:
        raise click.BadParameter(error.message, param=option) from error


@click.command()
@click.option(
    "--trace",
    default=OWN_LOG,
    show_default=True,
    help="Traffic: log (our own), or a file as of `tiltyard bench --trace`.",
)
@logged_options
@click.option(
    "--newest", type=click.IntRange(1), default=20_000, show_default=True, help="Of the log, at most so many."
)
@click.option("--requests", type=click.IntRange(1), help="Simulate so many: the traffic is cut, or repeated.")
@click.option(
    "--steps",
    type=click.Path(path_type=Path),
    help="What steps cost, from `tiltyard plan calibrate`, instead of the log.",
)
@click.option(
    "--save-steps",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what was fitted, for --steps elsewhere.",
)
@click.option(
    "--replicas", type=click.IntRange(1, 1000), help="As it is; as many as answered in the log unless told."
)
@click.option("--routing", type=click.Choice(ROUTINGS), default="tiltyard", show_default=True)
@click.option("--kv-blocks", type=click.IntRange(1), help="KV blocks of 32 tokens of each replica.")
@click.option(
    "--objective-first",
    type=FiniteRange(0, min_open=True),
    help="Seconds to the first token that users put up with.",
)
@click.option("--objective-token", type=FiniteRange(0, min_open=True), help="Seconds for each further token.")
@click.option(
    "--share",
    type=FiniteRange(0, 1, min_open=True),
    default=0.99,
    show_default=True,
    help="Of requests that shall be in time.",
)
@click.option(
    "--what-if",
    "what_ifs",
    multiple=True,
    callback=_what_ifs,
    help="NAME=VALUE,… changed, one row each; may repeat.",
)
@click.option(
    "--held-back/--no-held-back",
    default=True,
    show_default=True,
    help="Measure how far predictions of the log are off.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON document here."
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the table as a page here."
)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document instead of the table.")
def run(**options: object) -> None:
    """Predict what a fleet does under recorded traffic.

    With an objective it also finds the fewest replicas that meet it. --what-if changes the traffic (speed, tokens, prompts,
    max_tokens, max_prompt_tokens, batch) or the fleet (replicas, routing, gate_tokens, max_queue, queue_deadline, max_sequences,
    max_batch_tokens, kv).
    """
    for name in ("output", "html", "save_steps"):
        path = cast("Path | None", options[name])
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigurationError(f"{path.absolute().parent} is no folder; make it first", param=name)
    settings = load_settings(
        cast("Path | None", options["config"]), data_dir=cast("Path | None", options["data"])
    )
    with Counting() as counting:
        plan = _plan(options, settings, counting)
        rows = _answers(plan, options, counting)
    share = _share(plan, options)
    document = plan.document(rows, share)
    if (output := cast("Path | None", options["output"])) is not None:
        output.write_bytes(document)
    said = notes(plan, rows, share)
    if (html := cast("Path | None", options["html"])) is not None:
        html.write_text(page(plan, rows, said), encoding="utf-8")
    if options["as_json"]:
        click.echo(document)
    else:
        show(plan, rows, said)


def _plan(options: dict[str, object], settings: Settings, counting: Counting) -> Plan:
    name, steps = cast("str", options["trace"]), cast("Path | None", options["steps"])
    logged: list[LoggedRequest] = []
    if name == OWN_LOG or steps is None:
        logged = _logged(options, counting)
    else:
        refuse_for_other_traffic(options)
    if steps is None:
        known = _learned(options, settings, logged, counting)
    else:
        read = StepFile.load(steps)
        known = Known(read, _fleet(options, settings, read), None)
    trace: Trace = (
        trace_of(logged)
        if name == OWN_LOG
        else read_trace(Path(name), count=cast("int | None", options["requests"]))
    )
    if (path := cast("Path | None", options["save_steps"])) is not None:
        path.write_bytes(known.steps.dump())
    return Plan(
        trace,
        cast("int | None", options["requests"]) or len(trace.asks),
        known.fleet,
        known.steps.fit,
        known.steps.learned_from,
        known.uncertainty,
        cast("int", options["seed"]),
    )


def _logged(options: dict[str, object], counting: Counting) -> list[LoggedRequest]:
    """The requests of one identity and of the deployment that answered most of them."""
    found = logged_traffic(
        options,
        newest=cast("int", options["newest"]),
        told=lambda read: counting.show(f"read {read:,} generations"),
    ).requests
    identities = [request.identity for request in found]
    most = max(dict.fromkeys(identities), key=identities.count)
    return [request for request in found if request.identity == most]


def _learned(
    options: dict[str, object], settings: Settings, logged: Sequence[LoggedRequest], counting: Counting
) -> Known:
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        digest, deployment = deployment_in(log, logged)
    own = [request for request in logged if request.deployment == digest]
    learned = learn(own)
    workers = settings.file.workers
    steps = StepFile(
        learned.fit,
        deployment.kv_blocks,
        deployment.max_batch_tokens,
        workers.max_sequences,
        f"{len(own):,} requests of {own[0].identity} in the log",
    )
    fleet = replace(
        _fleet(options, settings, steps),
        outside_s=learned.outside_s,
        guessing=learned.guessing,
        replicas=cast("int | None", options["replicas"]) or learned.workers,
    )
    uncertainty = None
    if options["held_back"]:
        as_it_was = replace(
            fleet,
            replicas=learned.workers,
            routing="tiltyard",
            limits=replace(fleet.limits, kv_blocks=deployment.kv_blocks),
        )
        uncertainty = held_back(
            own, as_it_was, told=lambda done, of: counting.show(f"held back window {done + 1} of {of}")
        )
    return Known(steps, fleet, uncertainty)


def _fleet(options: dict[str, object], settings: Settings, steps: StepFile) -> Fleet:
    workers = settings.file.workers
    return Fleet(
        EngineLimits(
            cast("int | None", options["kv_blocks"]) or steps.kv_blocks,
            steps.max_batch_tokens,
            steps.max_sequences,
            FairnessConfig(weights={name: getattr(workers.class_weights, name) for name in CLASSES}),
        ),
        steps.fit.costs,
        replicas=cast("int | None", options["replicas"]) or 1,
        routing=cast("Routing", options["routing"]),
        max_queue=workers.max_queue,
        objectives=Objectives(
            cast("float | None", options["objective_first"]), cast("float | None", options["objective_token"])
        ),
    )


def _share(plan: Plan, options: dict[str, object]) -> float | None:
    """Of requests that shall be in time; `None` where no time was given."""
    objectives = plan.fleet.objectives
    asked = objectives.time_to_first_s is not None or objectives.per_token_s is not None
    return cast("float", options["share"]) if asked else None


def _answers(plan: Plan, options: dict[str, object], counting: Counting) -> list[Row]:
    def told(what: str) -> Told:
        return lambda done, at_s: counting.show(
            f"{what}: {done:,} of {plan.requests:,} requests, {at_s:,.0f} s simulated"
        )

    questions = [AS_IT_IS, *cast("list[WhatIf]", options["what_ifs"])]
    return [plan.answer(one, _share(plan, options), told=told(str(one))) for one in questions]


def show(plan: Plan, rows: Sequence[Row], notes: Sequence[str]) -> None:
    """Print the table, what it rests on, and the answer."""
    console = Console(width=None if Console().is_terminal else TABLE_WIDTH)
    table = Table()
    for name in HEAD:
        table.add_column(name, justify="left" if name == HEAD[0] else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, cells(row, plan)))
    console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)

"""`tiltyard eval report`, `reviews`, `export`, `runs`: what is in the log already; no server is needed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click

from tiltyard.cli.eval_experts import ExpertDesk
from tiltyard.cli.eval_options import (
    command_line,
    json_option,
    opened,
    out_option,
    price_of,
    price_option,
    report_of,
)
from tiltyard.cli.eval_show import show
from tiltyard.cli.options import data_option
from tiltyard.evals.comparison import summarize
from tiltyard.evals.evidence import read_evidence, runs_of
from tiltyard.evals.importing import import_run
from tiltyard.evals.inspect_log import write_inspect_log
from tiltyard.evals.marking import Marker
from tiltyard.evals.report import interval, label, write_report
from tiltyard.evals.reviewing import take_reviews
from tiltyard.evals.sets import SHIPPED, load_set


@click.command()
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
    with opened(data) as log:
        evidence = read_evidence(log, run_id)
        name = evidence.started.set_name
        known = load_set(name) if name in SHIPPED else None
        made = report_of(
            log,
            (run_id, *others),
            known,
            tuple(evidence.items.values()),
            None if price is None else price_of(price),
            command=command_line(),
        )
        paths = write_report(made, out or Path(f"eval-{name}-{evidence.started.alias}"))
    show(made, paths, as_json=as_json)


@click.command()
@click.argument("run_id", metavar="RUN")
@data_option
@json_option
def reviews(run_id: str, data: Path | None, as_json: bool) -> None:
    """Take in what experts have decided about a run's answers (evr_…), and say what is still open."""
    with opened(data) as log:
        taken = asyncio.run(take_reviews(log, run_id, Marker(experts=ExpertDesk(log))))
        summary = summarize(read_evidence(log, run_id))
    if as_json:
        click.echo(json.dumps({"run": run_id, "decided": taken.decided, "awaiting": taken.waiting}))
        return
    click.echo(f"{taken.decided:,} answers decided now, {taken.waiting:,} await experts")
    click.echo(f"{label(summary)}: {interval(summary.score)}")


@click.command()
@click.argument("run_id", metavar="RUN")
@data_option
@click.option("--out", type=click.Path(path_type=Path), help="The file. [default: ./RUN.eval]")
def export(run_id: str, data: Path | None, out: Path | None) -> None:
    """Write a run (evr_…) as a log of Inspect AI, which `inspect view` opens."""
    path = out or Path(f"{run_id}.eval")
    with opened(data) as log:
        write_inspect_log(summarize(read_evidence(log, run_id)), path)
    click.echo(str(path))


@click.command(name="import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--score", metavar="NAME", help="Which scorer or metric counts, where the log has several.")
@click.option(
    "--identity", metavar="DIGEST", help="Behaviour digest of who answered, where the log cannot prove it."
)
@data_option
@json_option
def import_log(
    file: Path, *, score: str | None, identity: str | None, data: Path | None, as_json: bool
) -> None:
    """Take a log of Inspect AI (.eval, .json) or lm-eval (samples_*.jsonl) in as a run; the same file is taken once."""
    with opened(data, create=True) as log:
        done = asyncio.run(import_run(log, file, score=score, identity=identity))
    if as_json:
        said = {
            "run": done.run,
            "samples": done.ended.samples,
            "appended": done.appended,
            "mean": done.ended.mean,
            "identified": done.identified,
            "left_out": dict(done.foreign.left_out),
        }
        click.echo(json.dumps(said, ensure_ascii=False))
        return
    who = "as its generations in the log show" if done.identified else "by its own word"
    click.echo(
        f"{done.run}  {done.foreign.task}, {done.foreign.tool}, score {done.foreign.score_name or 'none'}: "
        f"{done.ended.samples:,} samples of {done.foreign.model}, {who}; {done.appended:,} are new"
    )
    for why, count in done.foreign.left_out.items():
        click.echo(f"  left out: {count:,} {why}")


@click.command()
@data_option
@json_option
def runs(data: Path | None, as_json: bool) -> None:
    """List the runs in the log, oldest first."""
    with opened(data) as log:
        for started in runs_of(log):
            if as_json:
                click.echo(started.model_dump_json())
                continue
            again = f", repeat {started.repeat}" if started.repeat else ""
            again += f", from {started.imported.partition(',')[0]}" if started.imported else ""
            click.echo(
                f"{started.run}  {started.set_name} ({started.items} items)  "
                f"{started.alias}@{started.behaviour.removeprefix('sha256:')[:8]}  seed {started.seed}{again}"
            )

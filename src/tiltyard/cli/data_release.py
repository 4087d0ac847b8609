"""`tiltyard data release|verify|revoked|schema`: dataset releases from the log."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.cli.options import config_option, data_option, who
from tiltyard.cli.rulesets import ruleset_of
from tiltyard.cli.settings import load_settings
from tiltyard.cli.votes import Waiting
from tiltyard.events.log import EventLog
from tiltyard.governance.datasets.plan import plan_schema, read_plan
from tiltyard.governance.datasets.preparation import Means
from tiltyard.governance.datasets.records import Exclusions
from tiltyard.governance.datasets.release import release
from tiltyard.rating.ruleset import Ruleset


def exclusions_under(log: EventLog, ruleset: Ruleset) -> Exclusions:
    """Say at a log position which battles' votes do not count, and why."""

    def excluded(position: int) -> Mapping[str, str]:
        recorded = RecordedVotes(log, ruleset)
        votes = recorded.votes(read_to=position)
        reasons = recorded.judged(votes, read_to=position).reasons
        return {vote.battle: reasons[vote.sequence] for vote in votes if vote.sequence in reasons}

    return excluded


@click.command(name="release")
@click.argument("plan", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the release; else NAME-VERSION here.",
)
@data_option
@config_option
def release_(plan: Path, output: Path | None, data: Path | None, config: Path | None) -> None:
    """Make the data set that PLAN describes, signed, with its card; the same plan at the same log position gives the same bytes.

    A run that was cut goes on where it was. docs/datasets.md describes plans.
    """
    read = read_plan(plan)
    settings = load_settings(config, data_dir=data)
    ruleset = ruleset_of(settings)
    with (
        EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log,
        Waiting(sys.stderr) as waiting,
    ):
        done = release(
            Means(log, exclusions_under(log, ruleset), waiting.show, who()),
            read,
            output or Path(read.label),
            ruleset=ruleset.label,
        )
    manifest = done.manifest
    left_out = sum(manifest.left_out.values())
    suppressed = 0 if manifest.anonymity is None else manifest.anonymity.suppressed
    click.echo(
        f"{done.release}  {manifest.label}: {manifest.rows:,} rows of {manifest.records:,} records as "
        f"{manifest.layout}, in {done.directory}"
    )
    click.echo(
        f"  left out: {left_out:,} by the plan, {manifest.duplicates:,} duplicates, {manifest.not_drawn:,} not drawn, "
        f"{suppressed:,} for k-anonymity; {manifest.redacted.rows:,} rows have placeholders"
    )
    click.echo(f"  log position {manifest.position:,}; digest {done.digest}; signed by {done.key}")
    if done.was_there:
        click.echo("  the log knew this release: the same bytes")


@click.command()
def schema() -> None:
    """Print the JSON schema of a dataset's plan."""
    click.echo(json.dumps(plan_schema(), indent=2))

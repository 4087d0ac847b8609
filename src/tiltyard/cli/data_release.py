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
from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.governance.datasets.lineage import find_release
from tiltyard.governance.datasets.plan import plan_schema, read_plan
from tiltyard.governance.datasets.preparation import Means
from tiltyard.governance.datasets.records import Exclusions
from tiltyard.governance.datasets.release import release
from tiltyard.governance.datasets.verification import check_directory, make_again, revoked_rows, rows_of
from tiltyard.governance.revocation import revocation_of
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
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--public-key", help="The key that must have signed it, in hexadecimal; else any key is taken, and shown."
)
@click.option("--files-only", is_flag=True, help="Do not make it again: for whoever has no log.")
@data_option
@config_option
def verify(
    directory: Path, public_key: str | None, files_only: bool, data: Path | None, config: Path | None
) -> None:
    """Check the files, the signature, and that the log gives the same rows again; status 1 names the first fault."""
    held = check_directory(directory)
    if public_key is not None and public_key.lower() != held.public_key:
        raise InvalidRequest(
            f"{directory} is signed by {held.public_key}, not by {public_key[:80]}.", param="public-key"
        )
    click.echo(
        f"{held.release}  {held.manifest.label}: {len(held.manifest.files) + 1} files as they were signed by"
    )
    click.echo(
        f"  {held.public_key}{'' if public_key else ' (compare it with what whoever released it says)'}"
    )
    if files_only:
        return
    settings = load_settings(config, data_dir=data)
    ruleset = ruleset_of(settings)
    with (
        EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log,
        Waiting(sys.stderr) as waiting,
    ):
        means = Means(log, exclusions_under(log, ruleset), waiting.show, who())
        remade = make_again(means, held, ruleset.label)
        own_key = log.sign(b"").public_key == held.public_key
    if not own_key:
        raise InvalidRequest("it was not signed by this log.", param="public-key")
    if not remade.good:
        raise InvalidRequest(
            f"the log does not give these rows again: {', '.join(remade.wrong)} and perhaps more.",
            param="rows",
        )
    if remade.same_bytes:
        click.echo(f"  made again from the log: the same bytes, {remade.rows:,} rows")
    elif remade.revoked:
        click.echo(
            f"  made again from the log: {remade.same:,} of {remade.rows:,} rows are the same, {remade.revoked:,} were "
            "revoked since and cannot be (`tiltyard data revoked`)"
        )
    else:
        made_by = ", ".join(f"{name} {version}" for name, version in held.manifest.software.items())
        click.echo(
            f"  made again from the log: all {remade.rows:,} rows are the same, by their digests; the files were written by {made_by}"
        )


@click.command()
@click.argument("release", metavar="DIRECTORY|RELEASE")
@click.option("--json", "as_json", is_flag=True, help="The signed revocation file, as JSON.")
@data_option
@config_option
def revoked(release: str, as_json: bool, data: Path | None, config: Path | None) -> None:
    """List the rows of a release that may not be used any longer, by digest: their people were erased since."""
    settings = load_settings(config, data_dir=data)
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        name = check_directory(Path(release)).release if Path(release).is_dir() else release
        found = find_release(log, name)
        if as_json:
            click.echo(json.dumps(revocation_of(log, found.release)))
            return
        gone = revoked_rows(log, found.release)
        ids = {row.digest: row.id for row in rows_of(log, found.release) if row.digest in gone}
    click.echo(
        f"{found.release}  {found.name}-{found.version}: {len(gone):,} of {found.rows:,} rows are revoked"
    )
    for digest, when in gone.items():
        click.echo(f"{ids[digest]}  {digest}  {when}")


@click.command()
def schema() -> None:
    """Print the JSON schema of a dataset's plan."""
    click.echo(json.dumps(plan_schema(), indent=2))

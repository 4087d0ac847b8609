"""`tiltyard data lineage|use`: what was made of what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import click

from tiltyard.cli.options import config_option, data_option, who
from tiltyard.cli.settings import load_settings
from tiltyard.errors import Conflict, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import DatasetUsed
from tiltyard.governance.datasets.lineage import (
    BATTLE,
    Holding,
    Use,
    find_release,
    holdings_of,
    origins_of,
    to_rebuild,
)
from tiltyard.governance.datasets.manifest import parse_manifest
from tiltyard.governance.datasets.openlineage import lineage_of
from tiltyard.governance.datasets.release import SOURCE
from tiltyard.governance.datasets.verification import releases_of, rows_of
from tiltyard.identity.canonical import canonical_json
from tiltyard.wire.escaping import one_line

CONVERSATIONS = (BATTLE, "gen_")


@click.command()
@click.argument("what", required=False)
@click.option("--erased", metavar="SUBJECT", help="What must be made again after this person's erasure.")
@click.option(
    "--openlineage",
    is_flag=True,
    help="OpenLineage events of a release, single rows with them; keep them inside.",
)
@data_option
@config_option
def lineage(
    what: str | None, erased: str | None, openlineage: bool, data: Path | None, config: Path | None
) -> None:
    """Say what WHAT came from and went to.

    A release (its id or NAME-VERSION): its sources, and which models and scorers used it. A conversation (a battle, a generation, or
    imp_…:LINE): which releases hold it. Without WHAT: every release.
    """
    if (what is None) and openlineage:
        raise InvalidRequest("--openlineage tells of one release; name it.", param="what")
    settings = load_settings(config, data_dir=data)
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        if erased is not None:
            _tell_rebuild(log, erased)
        elif what is None:
            for one in releases_of(log):
                click.echo(
                    one_line(f"{one.release}  {one.name}-{one.version}  {one.rows:,} rows  {one.layout}")
                )
        elif openlineage:
            _tell_openlineage(log, what)
        elif what.startswith(CONVERSATIONS) or (what.startswith("imp_") and ":" in what):
            holdings = holdings_of(log, what)
            click.echo(one_line(f"{what} is in {len(holdings)} releases"))
            _tell_holdings(holdings)
        else:
            _tell_release(log, what)


@click.command()
@click.argument("release")
@click.argument("name")
@click.option(
    "--as",
    "kind",
    type=click.Choice(["identity", "scorer", "set", "other"]),
    required=True,
    help="What NAME is: a served model, a judge or reward scorer, a fixed set, something else.",
)
@click.option("--why", default="", help="What for.")
@data_option
@config_option
def use(  # noqa: PLR0917  # click passes names
    release: str,
    name: str,
    kind: Literal["identity", "scorer", "set", "other"],
    why: str,
    data: Path | None,
    config: Path | None,
) -> None:
    """Write down that NAME was made of RELEASE, which no digest shows by itself."""
    settings = load_settings(config, data_dir=data)
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        found = find_release(log, release)
        behaviour = None
        if kind == "identity":
            known = [one for one in log.identities() if one.name == name]
            if not known:
                raise InvalidRequest(f"there is no identity {name[:80]!r} in this log.", param="name")
            behaviour = known[-1].behaviour
        event = DatasetUsed(
            release=found.release, kind=kind, name=name, behaviour=behaviour, why=why, by=who()
        )
        try:
            log.append_blocking(event, subject=found.release, source=SOURCE)
        except Conflict:
            click.echo(one_line(f"{name} was known to use {found.release}"))
            return
    click.echo(one_line(f"{name} uses {found.release} ({found.name}-{found.version})"))


def _tell_release(log: EventLog, what: str) -> None:
    found = origins_of(log, find_release(log, what))
    one = found.release
    click.echo(
        one_line(f"{one.release}  {one.name}-{one.version}: {one.rows:,} rows, log position {one.position:,}")
    )
    for source, rows in found.origins.items():
        click.echo(one_line(f"  from {source}: {rows:,} rows"))
    for identity, generations in found.answered.items():
        click.echo(one_line(f"  answered by {identity}: {generations:,} generations"))
    _tell_uses(found.uses)
    if found.revoked:
        click.echo(f"  {found.revoked:,} rows are revoked: a new version is due")


def _tell_rebuild(log: EventLog, subject: str) -> None:
    found = to_rebuild(log, subject)
    click.echo(one_line(f"{subject}: {'erased' if found.erased else 'not erased; if it were:'}"))
    _tell_holdings(found.holdings)
    if found.holdings:
        click.echo("  each of these releases needs a new version; the rows are in its revocation file")
    for use_ in found.uses:
        click.echo(one_line(f"  make again: {use_.kind} {use_.name} ({use_.how})"))
    if not found.holdings and not found.uses:
        click.echo("  nothing has to be made again")


def _tell_holdings(holdings: tuple[Holding, ...] | list[Holding]) -> None:
    for one in holdings:
        click.echo(
            one_line(f"  {one.release.release}  {one.release.name}-{one.release.version}: {one.rows:,} rows")
        )


def _tell_uses(uses: tuple[Use, ...]) -> None:
    for one in uses:
        click.echo(one_line(f"  used by {one.kind} {one.name}: {one.how}"))
    if not uses:
        click.echo("  used by nothing that the log knows; `tiltyard data use` says what is")


def _tell_openlineage(log: EventLog, what: str) -> None:
    found = find_release(log, what)
    manifest = parse_manifest(canonical_json(found.manifest), found.release)
    for event in lineage_of(manifest, rows_of(log, found.release)):
        click.echo(json.dumps(event))

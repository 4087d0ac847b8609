"""`tiltyard data consent` and `tiltyard data terms`: what may be done with whose words."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tiltyard.arena.consent import withdraw_consent
from tiltyard.cli.options import PlaceGroup, config_option, data_option, who
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.permissions import EVERYBODY, person_of
from tiltyard.events.schema import PURPOSES, ConsentGiven, ConsentWithdrawn, DataTermsSet, Purpose
from tiltyard.identity.canonical import digest_of

SOURCE = "tiltyard/cli"
_PIPE_WIDTH = 120  # characters, where the output is no terminal that has a width


@click.group(name="consent", cls=PlaceGroup)
@data_option
@config_option
@click.pass_context
def consent_command(context: click.Context, data: Path | None, config: Path | None) -> None:
    """Show, record and withdraw what one person allowed."""
    context.obj = load_settings(config, data_dir=data)


@consent_command.command()
@click.argument("subject")
@click.pass_context
def show(context: click.Context, subject: str) -> None:
    """Say what may be done with the words of SUBJECT now, why, and how that came."""
    with _opened(context) as log:
        permission = log.permission(subject)
        history = list(log.read(types=[ConsentGiven, ConsentWithdrawn], subject=person_of(subject)))
    for purpose in PURPOSES:
        days = permission.days.get(purpose)
        allowed = "no" if purpose not in permission.purposes else f"{days} days" if days else "yes"
        click.echo(f"{purpose:9} {allowed}")
    click.echo(f"because {permission.because} allows that")
    for event in history:
        match event.data:
            case ConsentGiven(purposes=purposes, version=version, language=language):
                said = f"agreed to text {version} ({language}): {', '.join(purposes)}"
            case ConsentWithdrawn(purposes=purposes, by=by):
                said = f"withdrew {', '.join(purposes)} ({by})"
            case _:
                continue
        click.echo(f"{event.time:%Y-%m-%d %H:%M}Z  {said}")


@consent_command.command()
@click.argument("subject")
@click.option(
    "--purpose",
    "purposes",
    type=click.Choice(PURPOSES),
    multiple=True,
    required=True,
    help="Allowed; may repeat.",
)
@click.option("--text", type=click.File("rb"), required=True, help="The words that the person agreed to.")
@click.option("--version", required=True, help="The version of that text.")
@click.option("--language", required=True, help="Its language, such as en.")
@click.pass_context
def give(
    context: click.Context,
    *,
    subject: str,
    purposes: tuple[Purpose, ...],
    text: BinaryIO,
    version: str,
    language: str,
) -> None:
    """Record that SUBJECT agreed to a text elsewhere: in a contract, on paper. Replaces what it had allowed."""
    subject = person_of(subject)
    with _opened(context) as log:
        changes = sum(1 for _ in log.read(types=[ConsentGiven, ConsentWithdrawn], subject=subject))
        event = ConsentGiven(
            voter=subject,
            version=version,
            language=language,
            wording=digest_of(text.read()),
            purposes=tuple(one for one in PURPOSES if one in purposes),
            changes=changes,
        )
        log.append_blocking(event, subject=subject, source=SOURCE)
    click.echo(f"{subject} allows {', '.join(event.purposes)}")


@consent_command.command()
@click.argument("subject")
@click.option(
    "--purpose",
    "purposes",
    type=click.Choice(PURPOSES),
    multiple=True,
    help="What ends; may repeat. All if left out.",
)
@click.pass_context
def withdraw(context: click.Context, subject: str, purposes: tuple[Purpose, ...]) -> None:
    """Record that SUBJECT takes back what it allowed; every reader obeys from then on. Words stay until they are erased."""
    subject = person_of(subject)
    with _opened(context) as log:
        left = withdraw_consent(log, subject, purposes or PURPOSES, by=who())
    click.echo(f"{subject} still allows: {', '.join(sorted(left)) or 'nothing'}")


@click.group(name="terms", cls=PlaceGroup)
@data_option
@config_option
@click.pass_context
def terms_command(context: click.Context, data: Path | None, config: Path | None) -> None:
    """Show and set what may be done with the words of a tenant, of an imported source, or of everybody."""
    context.obj = load_settings(config, data_dir=data)


@terms_command.command(name="list")
@click.pass_context
def list_(context: click.Context) -> None:
    """Show the terms in the log; whoever is not there has those of `*`, or without them: serve and evaluate."""
    with _opened(context) as log:
        terms = log.data_terms()
        newest = {event.subject: event.data for event in log.read(types=[DataTermsSet])}
    table = Table(box=box.SIMPLE)
    for heading in ("scope", *PURPOSES, "basis", "set by"):
        table.add_column(heading)
    for scope, days in terms.items():
        each = [
            ("–" if one not in days else "yes" if days[one] is None else f"{days[one]} days")
            for one in PURPOSES
        ]
        event = newest.get(scope)
        told = (event.basis, event.by) if isinstance(event, DataTermsSet) else ("", "")
        table.add_row(scope, *each, *told)
    console = Console()
    (console if console.is_terminal else Console(width=_PIPE_WIDTH)).print(table)


@terms_command.command(name="set")
@click.argument("scope")
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="PURPOSE[=DAYS]",
    help="serve, evaluate, train or publish; may repeat.",
)
@click.option("--basis", required=True, help="Why that is allowed: a contract, a licence.")
@click.pass_context
def set_(context: click.Context, scope: str, allowed: tuple[str, ...], basis: str) -> None:
    """Set the terms of SCOPE: a tenant, a source (`lmsys`), `arena`, or `*`. What is not named is not allowed.

    \b
    tiltyard data terms set acme --allow serve=30 --allow evaluate=30 --basis "contract 17"
    tiltyard data terms set lmsys --allow evaluate --allow publish --basis CC-BY-4.0
    """
    purposes = dict(_allowed(one) for one in allowed)
    with _opened(context) as log:
        event = DataTermsSet(scope=scope, purposes=purposes, basis=basis, by=who())
        log.append_blocking(event, subject=scope, source=SOURCE)
    named = "everybody else" if scope == EVERYBODY else scope
    click.echo(f"{named}: {', '.join(purposes) or 'nothing'}")


def _allowed(said: str) -> tuple[Purpose, int | None]:
    name, limited, days = said.partition("=")
    purpose = next((one for one in PURPOSES if one == name), None)
    if purpose is None:
        raise InvalidRequest(f"--allow has {name!r}; it must be one of {', '.join(PURPOSES)}")
    if not limited:
        return purpose, None
    if not (days.isascii() and days.isdecimal() and 1 <= int(days[:6]) <= 36_500):
        raise InvalidRequest(f"--allow {said}: days must be a whole number from 1 to 36500, or be left out")
    return purpose, int(days)


def _opened(context: click.Context) -> EventLog:
    settings: Settings = context.obj
    return EventLog.open(settings.log_place, keys=settings.keys_place, create=False)

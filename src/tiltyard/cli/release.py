"""`tiltyard release`: bring a candidate to everyone, with evidence at each gate; say first what that takes."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import click

from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.cli.options import PlaceGroup, config_option, data_option
from tiltyard.cli.release_feedback import feedback
from tiltyard.cli.release_place import asked_why, last_release, opened, override_or_end, whoami
from tiltyard.cli.release_report import card, report, verify
from tiltyard.cli.rulesets import ruleset_of
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.client import ModelClient
from tiltyard.errors import ConfigurationError, Conflict
from tiltyard.events.envelope import format_time
from tiltyard.events.log import EventLog
from tiltyard.release.forecast import forecast
from tiltyard.release.history import (
    active_release,
    moved_by_hand,
    order,
    orders_of,
    start,
    states_of,
    versions_of,
)
from tiltyard.release.plan import plan_schema
from tiltyard.release.plan_file import read_plan
from tiltyard.release.reconciler import Reconciler
from tiltyard.release.report import order_in_words, status_lines
from tiltyard.release.shadow_judging import ShadowJudging


@click.group(name="release", cls=PlaceGroup, help=__doc__)
@data_option
@config_option
@click.option(
    "--log",
    "log_url",
    envvar="TILTYARD_LOG",
    metavar="URL",
    help="The log, where it is not log.db in the data directory: a path or postgresql://… .",
)
@click.pass_context
def command(context: click.Context, data: Path | None, config: Path | None, log_url: str | None) -> None:
    """Keep where everything is for the verb that follows."""
    context.obj = (load_settings(config, data_dir=data), log_url)


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_context
def plan(context: click.Context, *, file: Path) -> None:
    """Say what FILE would do: how many samples each gate needs, and how long that takes at current traffic."""
    read = read_plan(file)
    with opened(context) as (_settings, log):
        for line in forecast(log, read):
            click.echo(line)


@command.command(name="start")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--why", help="The reason, for the history; else the plan's own.")
@click.pass_context
def start_(context: click.Context, *, file: Path, why: str | None) -> None:
    """Start the release that FILE describes; `tiltyard up` (or `tiltyard release watch`) moves it on."""
    read = read_plan(file)
    why = asked_why(why or read.why, "start it")
    with opened(context) as (settings, log):
        started = start(log, read, settings.file.aliases, by=whoami(), why=why)
    click.echo(
        f"{started.release}: {started.alias} from {started.production} to {started.candidate}; "
        f"`tiltyard release status {started.alias}` shows how it goes"
    )


@command.command()
@click.argument("alias")
@click.pass_context
def status(context: click.Context, *, alias: str) -> None:
    """Show where the release of ALIAS stands: stage, gates, evidence, and what it waits for."""
    with opened(context) as (_settings, log):
        state = active_release(log, alias) or last_release(log, alias)
        for line in status_lines(state):
            click.echo(line)


@command.command()
@click.argument("alias")
@click.pass_context
def history(context: click.Context, *, alias: str) -> None:
    """List the releases of ALIAS: who started them, when, why, and how they ended, what was ordered; then
    what was rolled back by hand, and its verified versions."""
    with opened(context) as (_settings, log):
        for state in states_of(log).values():
            if state.started.alias != alias:
                continue
            ended = "under way" if state.ended is None else f"{state.ended.outcome}: {state.ended.why}"
            click.echo(
                f"{format_time(state.time_us)[:19]}Z  {state.id}  {state.started.production} -> "
                f"{state.started.candidate}  by {state.started.by} ({state.started.why or 'no reason given'})  {ended}"
            )
            for time_us, one in orders_of(log, state.id):
                click.echo(
                    f"    {format_time(time_us)[:19]}Z  {order_in_words(one)} by {one.by} in stage {one.index + 1}: "
                    f"{one.why or 'no reason given'}"
                )
                for gate in one.against:
                    click.echo(f"      went on without {gate.words}")
        for time_us, split in moved_by_hand(log, alias):
            to = split.arms[0].identity if split.arms else "what tiltyard.toml says"
            click.echo(f"{format_time(time_us)[:19]}Z  rolled back to {to} by {split.by}: {split.why}")
        for version in versions_of(log, alias):
            click.echo(f"verified: {version.identity} {version.behaviour[:19]}…")


@command.command()
def schema() -> None:
    """Print the JSON schema of plans."""
    click.echo(json.dumps(plan_schema(), indent=2))


@command.command()
@click.option(
    "--url", help="Server that serves the judges of shadow stages; without it nobody judges their pairs."
)
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the server's key.")
@click.pass_context
def watch(context: click.Context, *, url: str | None, api_key_env: str | None) -> None:
    """Move releases on until Ctrl-C: where `tiltyard up` does not run, or runs elsewhere. Several do no harm."""
    key = os.environ.get(api_key_env) if api_key_env else None
    if api_key_env and not key:
        raise ConfigurationError(f"--api-key-env names {api_key_env}, which is not set", param="api_key_env")
    with opened(context) as (settings, log):
        try:
            asyncio.run(_watch(log, settings, url, key))
        except KeyboardInterrupt:
            click.echo("ended; releases stay where they are", err=True)


async def _watch(log: EventLog, settings: Settings, url: str | None, key: str | None) -> None:
    reconciler = Reconciler(log, recorded=RecordedVotes(log, ruleset_of(settings)))
    if url is None:
        await reconciler.run()
        return
    async with ModelClient(url, api_key=key) as client, asyncio.TaskGroup() as both:
        both.create_task(reconciler.run())
        both.create_task(ShadowJudging(log, client, lambda: reconciler.under_way).run())


_WHY = click.option(
    "--why", help="The reason, for the history; asked for at a terminal where it is left out."
)


def _order(context: click.Context, alias: str, what: str, why: str | None, *, override: bool = False) -> None:
    reason = asked_why(why, f"{what} it")
    with opened(context) as (_settings, log):
        try:
            said = order(log, alias, what, by=whoami(), why=reason, override=override)
        except Conflict as error:
            if error.code != "not_passed":
                raise
            override_or_end(error)
            said = order(log, alias, what, by=whoami(), why=reason, override=True)
    click.echo(f"{said.release}: {'override' if said.against else what} in stage {said.index + 1}")
    for gate in said.against:
        click.echo(f"  went on without {gate.words}")


@command.command()
@click.argument("alias")
@_WHY
@click.option("--override", is_flag=True, help="Also while gates have not passed; the history says so.")
@click.pass_context
def approve(context: click.Context, *, alias: str, why: str | None, override: bool) -> None:
    """Let the release of ALIAS go on from the stage that it is in, as far as no gate has failed.

    While a gate has not passed (too few samples, nothing measured) that is an override: it is refused until you say so, and event,
    history and report name each gate that was gone on without.
    """
    _order(context, alias, "approve", why, override=override)


@command.command()
@click.argument("alias")
@_WHY
@click.pass_context
def pause(context: click.Context, *, alias: str, why: str | None) -> None:
    """Keep the release of ALIAS where it is; failed gates and hard stops still roll it back."""
    _order(context, alias, "pause", why)


@command.command()
@click.argument("alias")
@_WHY
@click.pass_context
def resume(context: click.Context, *, alias: str, why: str | None) -> None:
    """Let a paused release of ALIAS go on."""
    _order(context, alias, "resume", why)


@command.command()
@click.argument("alias")
@_WHY
@click.pass_context
def abort(context: click.Context, *, alias: str, why: str | None) -> None:
    """End the release of ALIAS and give all traffic back to production."""
    _order(context, alias, "abort", why)


command.add_command(feedback)
command.add_command(report)
command.add_command(card)
command.add_command(verify)

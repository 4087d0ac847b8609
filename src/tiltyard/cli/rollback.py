"""`tiltyard rollback`: give an alias back to its last verified version, on every gateway within a second."""

from __future__ import annotations

from pathlib import Path

import click

from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.release_place import asked_why, whoami
from tiltyard.cli.settings import load_settings
from tiltyard.events.log import EventLog
from tiltyard.release.history import roll_back


@click.command()
@click.argument("alias")
@click.option("--why", help="The reason, for the history; asked for at a terminal where it is left out.")
@click.option("--to-file", is_flag=True, help="Let ALIAS mean what tiltyard.toml says.")
@click.option("--again", is_flag=True, help="Go further back than a rollback that stands.")
@click.option(
    "--log", "log_url", envvar="TILTYARD_LOG", metavar="URL", help="The log, where it is elsewhere."
)
@data_option
@config_option
def command(
    *,
    alias: str,
    why: str | None,
    to_file: bool,
    again: bool,
    log_url: str | None,
    data: Path | None,
    config: Path | None,
) -> None:
    """Give ALIAS back to its last verified version by one event; nothing is restarted.

    In the middle of a release, that is production as it was before, and the release ends.
    """
    reason = asked_why(why, f"roll {alias} back")
    settings = load_settings(config, data_dir=data)
    with EventLog.open(log_url or settings.log_place, keys=settings.keys_place, create=False) as log:
        split = roll_back(log, alias, by=whoami(), why=reason, to_file=to_file, again=again)
    to = split.arms[0].identity if split.arms else "what tiltyard.toml says"
    click.echo(
        f"{alias} is {to} on every gateway within a second; requests in flight finish where they began"
    )

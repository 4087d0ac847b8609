"""`tiltyard upgrade`: bring the log forward to the version that this tiltyard reads."""

from __future__ import annotations

from pathlib import Path

import click

from tiltyard.cli.backup import backups_of, source_of, to_option
from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.progress import telling
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.cli.workers import sole_server_of
from tiltyard.errors import ConfigurationError
from tiltyard.events.tables import SCHEMA_VERSION
from tiltyard.ops.upgrade import log_version, upgrade_log


@click.command()
@click.option(
    "--check", is_flag=True, help="Say what would be done, and do nothing; status 1 if there is something."
)
@click.option(
    "--backup/--no-backup",
    "backup",
    default=None,
    help="Whether to make one first; SQLite: unless told not to.",
)
@to_option
@data_option
@config_option
@click.pass_context
def command(
    context: click.Context,
    *,
    check: bool,
    backup: bool | None,
    backups: Path | None,
    data: Path | None,
    config: Path | None,
) -> None:
    """Bring the log forward, step by step, after a backup. There is no way back but that backup.

    `tiltyard up` and `serve` do it by themselves for a log in the data directory. A PostgreSQL log is others' too: end every gateway of the
    earlier version, then run this once, with --backup or --no-backup.
    """
    settings = load_settings(config, data_dir=data)
    version = log_version(settings.log_place)
    if version is None or version == SCHEMA_VERSION:
        click.echo(
            f"nothing to do: {'there is no log yet' if version is None else f'the log is of version {version}'}"
        )
        return
    if check:
        click.echo(
            f"the log is of version {version}; `tiltyard upgrade` brings it to version {SCHEMA_VERSION}"
        )
        context.exit(1)
    if backup is None:
        if not isinstance(settings.log_place, Path):
            raise ConfigurationError(
                "the log is in PostgreSQL: say --backup (a copy of all events into the directory of --to) or --no-backup (you "
                "have one), and end gateways of the earlier version first"
            )
        backup = True
    with sole_server_of(settings.data_dir):
        upgrade(settings, backups_of(settings, backups) if backup else None)


def upgrade(settings: Settings, backups: Path | None) -> None:
    """Bring the log forward and say so; nothing where it is of this version."""
    done = upgrade_log(
        source_of(settings), settings.keys_place, backups=backups, told=telling(), say=click.echo
    )
    if done is not None:
        click.echo(
            f"the log is of version {SCHEMA_VERSION} now: {done.report.events:,} events, every seal checked, projections made anew"
        )


def upgrade_at_start(settings: Settings, told: bool | None) -> None:
    """What `up` and `serve` do before they open the log: SQLite's unless told not to, PostgreSQL's only if told to.

    Raises `ConfigurationError` where it is not to be done and has to be.
    """
    version = log_version(settings.log_place)
    if version is None or version == SCHEMA_VERSION:
        return
    own = isinstance(settings.log_place, Path)
    if told if told is not None else own:
        upgrade(settings, backups_of(settings, None) if own else None)
        return
    raise ConfigurationError(
        f"the log is of version {version}; this tiltyard reads version {SCHEMA_VERSION}. End servers of the earlier version, "
        "then run `tiltyard upgrade`"
    )

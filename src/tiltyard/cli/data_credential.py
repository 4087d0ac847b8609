"""`tiltyard data credential evaluation`: a key that evaluates and can do nothing else."""

from __future__ import annotations

from pathlib import Path

import click

from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.settings import load_settings
from tiltyard.events.master_key import MasterKey
from tiltyard.events.roles import evaluation_role_sql


@click.group(name="credential")
def command() -> None:
    """Make keys that can do less than the owner's."""


@command.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--role",
    metavar="NAME",
    help="Print the SQL that makes this PostgreSQL role for it, to be run by the owner.",
)
@click.option(
    "--schema", default="public", show_default=True, help="With --role: where the log's tables are."
)
@data_option
@config_option
def evaluation(
    *, directory: Path, role: str | None, schema: str, data: Path | None, config: Path | None
) -> None:
    """Make DIRECTORY/master.key for a worker that evaluates: it seals what it appends and reads no person's words.

    It keeps keys of its own in DIRECTORY/keys.db. docs/data.md says what holds it to that on SQLite and on PostgreSQL.
    """
    settings = load_settings(config, data_dir=data)
    statements = [] if role is None else evaluation_role_sql(role, schema=schema)
    master = MasterKey.load_or_create(settings.keys_place.master_key, create=False)
    path = directory / "master.key"
    master.write_evaluation(path)
    click.echo(f"wrote {path}; start the worker with", err=True)
    click.echo(f"  TILTYARD_MASTER_KEY={path} TILTYARD_KEYS={directory / 'keys.db'}", err=True)
    for statement in statements:
        click.echo(f"{statement};")

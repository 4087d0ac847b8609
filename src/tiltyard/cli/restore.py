"""`tiltyard restore`: bring a backup back; whoever was erased since stays erased."""

from __future__ import annotations

from pathlib import Path

import click

from tiltyard.cli.backup import backups_of, to_option
from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.progress import telling
from tiltyard.cli.settings import load_settings
from tiltyard.cli.workers import sole_server_of
from tiltyard.ops.backup.restore import Place, restore_backup
from tiltyard.ops.backup.shelf import backup_named


@click.command()
@click.argument("backup")
@click.option("--replace", is_flag=True, help="Put the log that is there aside, under another name.")
@click.option(
    "--keys",
    type=click.Path(exists=True, path_type=Path),
    help="A copy that `tiltyard backup keys` made; unless told the keys that are there stay.",
)
@to_option
@data_option
@config_option
def command(
    *,
    backup: str,
    replace: bool,
    keys: Path | None,
    backups: Path | None,
    data: Path | None,
    config: Path | None,
) -> None:
    """Restore BACKUP: a path, a name that `tiltyard backup list` shows, or `latest`.

    Everything in it is checked first. The master key has to be there already (docs/keeping.md). Erasures hold: words
    whose keys are destroyed do not come back, and what the log says was erased is destroyed in a copy of keys too.
    """
    settings = load_settings(config, data_dir=data)
    path = backup_named(backup, backups_of(settings, backups))
    with sole_server_of(settings.data_dir):
        done = restore_backup(
            path,
            Place(settings.data_dir, settings.log_place, settings.keys_place),
            replace=replace,
            keys=keys,
            told=telling(),
        )
    click.echo(f"restored {done.report.events:,} events from {path}; every seal checked")
    click.echo(f"  {done.standing}")
    for aside in done.replaced:
        click.echo(f"  what was there is now {aside}")
    if done.settings is not None:
        click.echo(f"  settings: {done.settings}")
    if any(done.erasures):
        click.echo(
            f"  erasures applied: {done.erasures.contents:,} rows of words emptied, {done.erasures.keys:,} keys destroyed, "
            f"{len(done.erasures.subjects):,} subjects whose tombstone came after the backup"
        )
    for model in done.manifest.models:
        if model.kept is not None:
            click.echo(f"  weights of {model.name}: {path / model.kept}")
    click.echo(
        "  `tiltyard models pull` brings models that are missing; `tiltyard doctor` looks at everything"
    )

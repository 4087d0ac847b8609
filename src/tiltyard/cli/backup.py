"""`tiltyard backup`: copies of the log while servers write it, without the keys of people; list them, check them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click
import orjson

from tiltyard.cli.options import PlaceGroup, config_option, data_option
from tiltyard.cli.progress import telling
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.errors import ConfigurationError, TiltyardError
from tiltyard.events.master_key import MasterKey
from tiltyard.models.cache import normalized_digest
from tiltyard.models.sources import parse_source
from tiltyard.ops.backup.create import Source, Weights, create_backup
from tiltyard.ops.backup.keys import copy_keys_to
from tiltyard.ops.backup.manifest import NeededModel
from tiltyard.ops.backup.shelf import Shelved, backup_named, backups_in, check_backup, thin_out
from tiltyard.wire.escaping import one_line

to_option = click.option(
    "--to",
    "backups",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where backups are (TILTYARD_BACKUPS; `backups` in the data directory unless told).",
)


@click.group(name="backup", cls=PlaceGroup, help=__doc__)
@data_option
@config_option
@click.pass_context
def command(context: click.Context, data: Path | None, config: Path | None) -> None:
    """Keep where everything is for the verb that follows."""
    context.obj = load_settings(config, data_dir=data)


@command.command()
@to_option
@click.option("--reason", default="asked for", show_default=True, help="Written into the manifest.")
@click.option(
    "--weights", is_flag=True, help="Copy the models' weights too; else they are named by their digests."
)
@click.option(
    "--keep", type=click.IntRange(1), help="Then delete older backups of this log, all but so many."
)
@click.pass_obj
def create(settings: Settings, *, backups: Path | None, reason: str, weights: bool, keep: int | None) -> None:
    """Make a backup: the log as it is now, manifests, settings; every seal in it is checked.

    Servers go on writing. Keys of people and the master key are never in it: `tiltyard backup keys`, and docs/keeping.md says why.
    """
    made = create_backup(
        source_of(settings, weights=weights), backups_of(settings, backups), reason=reason, told=telling()
    )
    manifest = made.manifest
    missing = [one.name for one in manifest.models if one.sha256 is None]
    click.echo(
        f"{made.path}: {manifest.events:,} events, {manifest.size_bytes / 1e6:,.1f} MB, every seal checked"
    )
    click.echo(f"head: {manifest.head or 'none, the log is empty'}")
    for gone in thin_out(made.path.parent, log_id=manifest.log_id, keep=keep) if keep is not None else ():
        click.echo(f"deleted {gone}")
    if missing:
        click.echo(f"not pulled here, so named without a digest: {', '.join(missing)}", err=True)
    click.echo("keys of people are not in it, nor is master.key: keep a copy of that elsewhere", err=True)


@command.command(name="list")
@to_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a backup.")
@click.pass_obj
def list_backups(settings: Settings, *, backups: Path | None, as_json: bool) -> None:
    """Show the backups there are, the oldest first."""
    directory = backups_of(settings, backups)
    found = backups_in(directory)
    if as_json:
        for one in found:
            manifest = (
                None if one.manifest is None else one.manifest.model_dump(mode="json", exclude={"files"})
            )
            click.echo(orjson.dumps({"path": str(one.path), "problem": one.problem, "manifest": manifest}))
        return
    if not found:
        click.echo(f"no backups in {directory}; `tiltyard backup create` makes one")
    for one in found:
        click.echo(one_line(_line(one)))


@command.command()
@click.argument("backup", default="latest")
@to_option
@click.pass_obj
def verify(settings: Settings, *, backup: str, backups: Path | None) -> None:
    """Check BACKUP (a path, a name, `latest`): signature, the digest of every file, every seal of the log in it."""
    path = backup_named(backup, backups_of(settings, backups))
    file = settings.keys_place.master_key
    master = MasterKey.load_or_create(file, create=False) if file.exists() else None
    manifest, report = check_backup(path, master, telling())
    if report is None:
        raise ConfigurationError(
            f"{path}: {len(manifest.files)} files are what was backed up and the signature fits, but without the master key "
            f"({file}) nobody can tell whose it is, and seals cannot be checked; name the data directory with --data"
        )
    click.echo(
        f"ok: {path}: {len(manifest.files)} files, {report.events:,} events under {report.seals:,} seals"
    )
    click.echo(f"head: {manifest.head or 'none, the log is empty'}")


@command.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--with-master-key", is_flag=True, help="Copy master.key too: whoever has this has every word.")
@to_option
@click.pass_obj
def keys(settings: Settings, *, directory: Path, with_master_key: bool, backups: Path | None) -> None:
    """Copy the keys of people into DIRECTORY, apart from all backups of the log.

    Only this makes a copy of them. As long as it is kept, a person who is erased can be brought back with it: delete it before
    an erasure has to be complete.
    """
    made = copy_keys_to(
        settings.keys_place,
        directory,
        apart_from=(backups_of(settings, backups), settings.data_dir),
        with_master_key=with_master_key,
        told=telling(),
    )
    click.echo(f"wrote {', '.join(map(str, made))}")
    click.echo(
        "who is erased from now on is still in this copy: delete it, and make another one, in time", err=True
    )


def backups_of(settings: Settings, told: Path | None) -> Path:
    """`--to`, else `TILTYARD_BACKUPS`, else `backups` in the data directory."""
    return told or Path(os.environ.get("TILTYARD_BACKUPS") or settings.data_dir / "backups").expanduser()


def source_of(settings: Settings, *, weights: bool = False) -> Source:
    """What is kept of this deployment."""
    return Source(
        data=settings.data_dir,
        log=settings.log_place,
        master_key=settings.keys_place.master_key,
        settings=settings.path,
        models=[_model(settings, name, weights) for name in settings.models],
    )


def _model(settings: Settings, name: str, weights: bool) -> Weights:
    declaration = settings.models[name]
    source = parse_source(declaration.source, settings.base_dir)
    here = None
    with suppress(TiltyardError):  # a source that cannot be looked at is named all the same
        here = source.cached(settings.cache_dir)
    pinned = None if declaration.sha256 is None else normalized_digest(declaration.sha256)
    if weights and here is None:
        raise ConfigurationError(
            f"model {name} is not here, or changed since; `tiltyard models pull {name}` first"
        )
    digest = here.sha256 if here is not None else pinned
    return Weights(
        NeededModel(name=name, source=declaration.source, sha256=digest),
        here.path if weights and here is not None else None,
    )


def _line(one: Shelved) -> str:
    if one.manifest is None:
        return f"{one.path.name}  DAMAGED: {one.problem}"
    manifest = one.manifest
    return (
        f"{one.path.name}  {manifest.events:>10,} events  {manifest.size_bytes / 1e6:>9,.1f} MB  version "
        f"{manifest.schema_version}  {manifest.reason}"
    )

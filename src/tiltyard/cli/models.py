"""`tiltyard models`: fetch model files, and look at the identities made from them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from tiltyard.cli.options import PlaceGroup, config_option, data_option
from tiltyard.cli.progress import progress_on
from tiltyard.cli.quality import Quality, bundled_text, qualities, read_text
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.errors import DigestMismatch, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.places import is_there
from tiltyard.events.schema import IdentityRegistered
from tiltyard.identity.canonical import Digest, Json
from tiltyard.identity.declaration import ModelDeclaration
from tiltyard.identity.difference import behaviour_differences, deployment_differences
from tiltyard.identity.manifest import Behaviour, Deployment
from tiltyard.identity.store import IdentityStore
from tiltyard.models.cache import hash_model, normalized_digest
from tiltyard.models.resolve import resolve
from tiltyard.models.sources import KNOWN_DIGESTS, CachedModel, Source, parse_source
from tiltyard.models.stored import open_model


@dataclass(frozen=True)
class KnownIdentity:
    """What can be said about an identity here and now."""

    name: str
    behaviour: Behaviour
    deployment: Deployment | None
    """As it was last served with this behaviour; `None` if the log knows of no such time."""


@click.group(name="models", cls=PlaceGroup)
@data_option
@config_option
@click.pass_context
def command(context: click.Context, data: Path | None, config: Path | None) -> None:
    """Pull, list, show, compare and verify models and identities."""
    context.obj = load_settings(config, data_dir=data)


@command.command()
@click.argument("names", metavar="[NAME|SOURCE]...", nargs=-1)
@click.pass_obj
def pull(settings: Settings, names: tuple[str, ...]) -> None:
    """Fetch model files: all declared ones, or those named by model, identity or source.

    What is here already, whole and with the right digest, is not fetched again. An interrupted download
    goes on where it stopped.
    """
    progress = progress_on()
    for name in names or tuple(settings.models):
        declaration = _declaration(settings, name)
        source = parse_source(declaration.source, settings.base_dir)
        path = source.fetch(settings.cache_dir, declaration.sha256, progress)
        found = source.cached(settings.cache_dir)
        click.echo(f"{name}  {found.sha256 if found else 'changed while it was fetched'}  {path}")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_obj
def list_models(settings: Settings, as_json: bool) -> None:
    """List declared models and identities, and which files are here."""
    models = [_model_row(settings, name) for name in settings.models]
    identities = [_identity_row(settings, name) for name in settings.identities]
    if as_json:
        click.echo(json.dumps({"models": models, "identities": identities}, indent=2))
        return
    click.echo(_table(("model", "file", "source"), ((m["name"], m["file"], m["source"]) for m in models)))
    click.echo()
    columns = ("identity", "model", "behaviour", "description")
    click.echo(_table(columns, (tuple(row[column] for column in columns) for row in identities)))


@command.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_obj
def show(settings: Settings, name: str, as_json: bool) -> None:
    """Show an identity's manifest and digests; NAME is an identity, or a behaviour digest that is stored."""
    identity = _identity(settings, name)
    deployment = identity.deployment
    document: dict[str, Json] = {
        "name": identity.name,
        "behaviour_digest": identity.behaviour.digest,
        "deployment_digest": None if deployment is None else deployment.digest,
        "behaviour": identity.behaviour.to_json(),
        "deployment": None if deployment is None else deployment.model_dump(mode="json"),
    }
    if as_json:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    click.echo(f"{identity.name}\n")
    click.echo(f"behaviour digest   {identity.behaviour.digest}")
    click.echo(f"deployment digest  {deployment.digest if deployment else 'not served yet'}\n")
    click.echo("behaviour (each field can change a token)")
    _print_fields(document["behaviour"])
    if deployment is not None:
        click.echo("\ndeployment, as last served (no field can change a token)")
        _print_fields(document["deployment"])


@command.command()
@click.argument("left")
@click.argument("right")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_obj
def diff(settings: Settings, left: str, right: str, as_json: bool) -> None:
    """Say in which fields two identities differ, and whether each can change a token."""
    one, other = _identity(settings, left), _identity(settings, right)
    found = behaviour_differences(one.behaviour, other.behaviour)
    if one.deployment is not None and other.deployment is not None:
        found += deployment_differences(one.deployment, other.deployment)
    if as_json:
        document = {
            "left": one.behaviour.digest,
            "right": other.behaviour.digest,
            "same_behaviour": one.behaviour.digest == other.behaviour.digest,
            "differences": [asdict(difference) for difference in found],
        }
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for difference in found:
        effect = "can change a token" if difference.can_change_a_token else "speed or cost only"
        click.echo(f"{difference.field}  ({effect})")
        click.echo(f"  {left}: {_shown(difference.left)}")
        click.echo(f"  {right}: {_shown(difference.right)}")
    if one.behaviour.digest == other.behaviour.digest:
        click.echo(f"same behaviour: {one.behaviour.digest}")
    else:
        click.echo(f"different behaviour: {one.behaviour.digest} and {other.behaviour.digest}")


@command.command()
@click.argument("name", required=False)
@click.pass_obj
def verify(settings: Settings, name: str | None) -> None:
    """Hash model files again and compare with their pins: all that are here, or the one of NAME."""
    wrong: DigestMismatch | None = None
    progress = progress_on()
    for model in (name,) if name else tuple(settings.models):
        declaration = _declaration(settings, model)
        source = parse_source(declaration.source, settings.base_dir)
        path, expected = _here(settings, source), _pin(declaration)
        if path is None:
            if name:
                raise _not_pulled(model)
            click.echo(f"{model}  not pulled")
            continue
        recorded = source.recorded(settings.cache_dir)
        expected = expected or (recorded.sha256 if recorded else None)
        actual = hash_model(path, progress)
        if expected is None:
            click.echo(f"{model}  {actual}  no digest to compare with; pin it in tiltyard.toml")
        elif actual == expected:
            click.echo(f"{model}  {actual}  ok")
        else:
            click.echo(f"{model}  {actual}  WRONG")
            wrong = wrong or DigestMismatch(str(path), expected=expected, actual=actual)
    if wrong is not None:
        raise wrong


@command.command()
@click.argument("name")
@click.option("--text", type=click.Path(path_type=Path), help="A text file of your own (UTF-8).")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads; all cores unless told.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_obj
def quality(settings: Settings, name: str, text: Path | None, threads: int | None, as_json: bool) -> None:
    """Measure what rounding costs: perplexity of NAME as stored and rounded to q8_0, q4_1 and q4_0, on a text.

    Perplexity is how many equally likely next tokens a text seems to have for the model: lower is better, and
    only figures of one model on one text compare. Unless told otherwise the text is the first three chapters
    of Alice's Adventures in Wonderland.
    """
    progress = progress_on()
    declaration = _declaration(settings, name)
    source = parse_source(declaration.source, settings.base_dir)
    path = source.fetch(settings.cache_dir, declaration.sha256, progress)
    rows: list[Quality] = []
    for row in qualities(
        path, bundled_text() if text is None else read_text(text), progress, threads=threads
    ):
        rows.append(row)
        if not as_json:
            change = row.mean_nats - rows[0].mean_nats
            click.echo(
                f"{row.served_as:<10}  perplexity {row.perplexity:8.3f}  ({math.expm1(change):+7.2%})  "
                f"{row.weight_bytes / 1e6:8.1f} MB  {row.bits_a_weight:5.2f} bits a weight"
            )
    if as_json:
        click.echo(json.dumps({"model": name, "qualities": [asdict(row) for row in rows]}, indent=2))


# Names.


def _declaration(settings: Settings, name: str) -> ModelDeclaration:
    """Find a model by its name, an identity's name, or a source written out."""
    if name in settings.models:
        return settings.models[name]
    if name in settings.identities:
        return settings.models[settings.identities[name].model]
    if ":" in name:
        return ModelDeclaration(source=name)
    raise NotFound(
        f"{name!r} is no model, identity or source; declared: "
        f"{', '.join((*settings.models, *settings.identities))}; a source is written pypi:, file: or hf:"
    )


def _identity(settings: Settings, name: str) -> KnownIdentity:
    if name.startswith("sha256:"):
        behaviour = IdentityStore(settings.identity_dir).get_behaviour(name)
        return KnownIdentity(name, behaviour, _last_deployment(settings, None, behaviour.digest))
    declaration = settings.identities.get(name)
    if declaration is None:
        known = ", ".join(settings.identities) or "none"
        raise NotFound(
            f"there is no identity {name!r}; declared: {known}. A stored one is named by its digest."
        )
    model = _cached(settings, declaration.model)
    if model is None:
        raise _not_pulled(declaration.model)
    with open_model(model.path) as gguf:
        behaviour = resolve(declaration, gguf, model.sha256, settings.base_dir).behaviour
    return KnownIdentity(name, behaviour, _last_deployment(settings, name, behaviour.digest))


def _last_deployment(settings: Settings, name: str | None, behaviour: Digest) -> Deployment | None:
    """Return how an identity was served last, as the log tells."""
    if not is_there(settings.log_place):
        return None
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        for event in log.read(types=[IdentityRegistered], subject=name, newest_first=True):
            if isinstance(event.data, IdentityRegistered) and event.data.behaviour == behaviour:
                return event.data.deployment_manifest
    return None


def _cached(settings: Settings, model: str) -> CachedModel | None:
    return parse_source(settings.models[model].source, settings.base_dir).cached(settings.cache_dir)


def _here(settings: Settings, source: Source) -> Path | None:
    recorded = source.recorded(settings.cache_dir)
    return recorded.path if recorded is not None and recorded.path.exists() else None


def _pin(declaration: ModelDeclaration) -> Digest | None:
    pinned = declaration.sha256 or KNOWN_DIGESTS.get(declaration.source)
    return None if pinned is None else normalized_digest(pinned)


def _not_pulled(model: str) -> NotFound:
    return NotFound(f"the file of model {model!r} is not here. Run: tiltyard models pull {model}")


# Showing.


def _model_row(settings: Settings, name: str) -> dict[str, str | int | None]:
    model = _cached(settings, name)
    return {
        "name": name,
        "source": settings.models[name].source,
        "file": "not pulled" if model is None else f"here, {model.size_bytes / 1e6:,.1f} MB",
        "path": None if model is None else str(model.path),
        "sha256": None if model is None else model.sha256,
        "size_bytes": None if model is None else model.size_bytes,
    }


def _identity_row(settings: Settings, name: str) -> dict[str, str]:
    declaration = settings.identities[name]
    pulled = _cached(settings, declaration.model) is not None
    return {
        "name": name,
        "identity": name,
        "model": declaration.model,
        "behaviour": _identity(settings, name).behaviour.digest if pulled else "not pulled",
        "description": declaration.description,
    }


def _table(columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """Line up columns; digests are cut to what tells them apart by eye."""
    lines = [columns, *(tuple(_short(str(cell)) for cell in row) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _short(cell: str) -> str:
    return cell[:19] if cell.startswith("sha256:") else cell


def _print_fields(value: Json, path: str = "") -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _print_fields(inner, f"{path}.{key}" if path else key)
    else:
        click.echo(f"  {path:<38} {_shown(value)}")


def _shown(value: Json) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

"""`tiltyard doctor`: everything that can be wrong here, looked at one after the other; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import orjson

from tiltyard import __version__
from tiltyard.cli.address import is_wildcard
from tiltyard.cli.backup import backups_of, to_option
from tiltyard.cli.options import config_option, data_option, host_option, port_option
from tiltyard.cli.progress import progress_on, telling
from tiltyard.cli.settings import Settings, default_data_dir, load_settings
from tiltyard.cli.workers import check_machine, server_of, starts_workers
from tiltyard.errors import TiltyardError
from tiltyard.events.dialect import open_database
from tiltyard.events.places import keys_in, log_in
from tiltyard.events.queries import Queries
from tiltyard.events.schema import IdentityRegistered
from tiltyard.fleet.membership import Members
from tiltyard.models.cache import normalized_digest
from tiltyard.models.sources import KNOWN_DIGESTS, parse_source
from tiltyard.ops.doctor import files, machine, serving
from tiltyard.ops.doctor.finding import Finding, Status, looked, worst
from tiltyard.ops.doctor.log import LogLook
from tiltyard.ops.load.place import listeners, ports_of
from tiltyard.wire.escaping import one_line

FORMAT: Final = "tiltyard.doctor/1"
COLOURS: Final[dict[Status, str]] = {
    "ok": "green",
    "skipped": "bright_black",
    "warn": "yellow",
    "fail": "red",
}
WORKING_BYTES: Final = 300_000_000
"""What a worker takes beside weights and KV, roughly."""


@click.command()
@click.option(
    "--deep", is_flag=True, help="Hash models again, check every seal and every page of the database."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@to_option
@data_option
@config_option
@host_option
@port_option
@click.pass_context
def command(
    context: click.Context,
    *,
    deep: bool,
    as_json: bool,
    backups: Path | None,
    data: Path | None,
    config: Path | None,
    host: str | None,
    port: int | None,
) -> None:
    """Look at everything that can be wrong with this deployment and say what to do; status 1 if something is.

    Works while a server runs and while none does. It writes nothing but a file of 4 MB that it deletes, to time the disk.
    """
    findings = []
    for finding in _all(data, config, deep=deep, backups=backups, host=host, port=port):
        findings.append(finding)
        if not as_json:
            _show(finding)
    found = worst(findings)
    if as_json:
        document = {
            "format": FORMAT,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "tiltyard": __version__,
            "worst": found,
            "findings": [vars(finding) for finding in findings],
        }
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    else:
        counts = {status: sum(one.status == status for one in findings) for status in COLOURS}
        click.echo(", ".join(f"{count} {status}" for status, count in counts.items() if count))
    context.exit(1 if found == "fail" else 0)


def _all(
    data: Path | None,
    config: Path | None,
    *,
    deep: bool,
    backups: Path | None,
    host: str | None,
    port: int | None,
) -> Iterator[Finding]:
    settings, broken = None, None
    try:
        settings = load_settings(config, data_dir=data)
    except TiltyardError as error:
        broken = error.message
    place = settings.data_dir if settings else data or default_data_dir()
    log_place, keys = log_in(place), keys_in(place)
    yield from looked("python", lambda: machine.python(_extras(settings, log_place)))
    yield from looked("kernels", lambda: machine.kernels(settings.file.workers.isa if settings else "auto"))
    if broken is not None:
        yield Finding("settings", "fail", broken, "correct it; docs/settings.md has every key")
    elif settings is not None:
        yield from looked("settings", lambda: _settings(settings))
    yield from looked("memory", lambda: machine.memory(*_needs(settings)))
    workers = settings.file.workers if settings else None
    each = workers.threads if workers is not None and workers.threads != "auto" else None
    count = _worker_count(settings)
    yield from looked("threads", lambda: machine.threads(count, each))
    yield from looked("disk", lambda: files.disk(place, "data", timed=True))
    if settings is not None:
        cache = settings.cache_dir
        yield from looked("disk", lambda: files.disk(cache, "models", timed=False))
    yield from looked("permissions", lambda: files.permissions(place, keys))
    tell = telling()
    look = LogLook(log_place, keys, deep=deep, told=lambda done, total: tell("checking events", done, total))
    yield from looked("log", look.findings)
    yield from looked("clock", lambda: machine.clock(look.newest_event_us))
    known = _Known(log_place) if look.is_there else None
    if settings is not None:
        yield from looked("models", lambda: _models(settings, known, deep=deep))
    yield from _served(settings, place, known, host, port)
    shelf = backups_of(settings, backups) if settings else backups or place / "backups"
    yield from looked("backups", lambda: files.backups(shelf, has_log=look.is_there))
    yield from looked("leftovers", lambda: files.leftovers(place))


def _served(
    settings: Settings | None, place: Path, known: _Known | None, host: str | None, port: int | None
) -> Iterator[Finding]:
    """Address, server, workers, accounts."""
    ours = server_of(place)
    server = settings.file.server if settings else None
    at = host or (server.host if server else "127.0.0.1")
    number = port if port is not None else server.port if server else 8000
    yield from looked("port", lambda: serving.port(at, number, ours, listeners))
    tls = settings.base_dir / server.tls_cert if settings and server and server.tls_cert else None
    listening = ports_of(ours) if ours is not None else []
    real = number if number in listening or not listening else listening[0]
    shown = "127.0.0.1" if is_wildcard(at) else at
    url = f"http{'s' * (tls is not None)}://{f'[{shown}]' if ':' in shown else shown}:{real}"
    yield from looked("server", lambda: serving.server(url, ours is not None, tls))
    yield from looked("certificate", lambda: serving.certificate(tls))
    if settings is not None:
        yield from looked("workers", lambda: serving.workers_elsewhere(settings.file.workers.at))
        yield from looked("limits", lambda: serving.limits(settings.limits_url))
    if known is not None:
        yield from looked("workers", lambda: serving.engines(known.engines()))


class _Known:
    """What the log knows of models and workers; read, never written."""

    def __init__(self, place: Path | str) -> None:
        self._place = place

    def weights(self) -> dict[str, str]:
        """The newest digest of the weights by the identity's name."""
        database = open_database(self._place, read_only=True)
        try:
            return {
                event.data.name: event.data.behaviour_manifest.weights.digest
                for event in Queries(database).read(types=(IdentityRegistered,))
                if isinstance(event.data, IdentityRegistered)
            }
        finally:
            database.close()

    def engines(self) -> list[tuple[str, str]]:
        """Engines of others that were added: names and addresses."""
        database, members = open_database(self._place, read_only=True), Members()
        try:
            members.look(Queries(database))
        except TiltyardError:
            return []  # the log's own finding says why
        finally:
            database.close()
        return [(name, added.url) for name, added in members.added.items()]


def _settings(settings: Settings) -> Iterator[Finding]:
    check_machine(settings)
    named = len(settings.identities) + len(settings.file.router.added_identities)
    if not named:
        yield Finding(
            "settings", "fail", f"{settings.shown} declares no identities", "write one under [identities.NAME], or in router.added_identities"
        )  # fmt: skip
        return
    told = f"{settings.shown}: {len(settings.models)} models, {named} identities; no key is deprecated"
    yield Finding("settings", "ok", told)


def _models(settings: Settings, known: _Known | None, *, deep: bool) -> Iterable[Finding]:
    if not starts_workers(settings):
        return [Finding("models", "skipped", "no worker is started here: this gateway needs no model's file")]
    registered: dict[str, str] = {}
    if known is not None:
        with suppress(TiltyardError):  # the log's own finding says why
            registered = known.weights()
    found = []
    for name, declaration in settings.models.items():
        source = parse_source(declaration.source, settings.base_dir)
        pinned = declaration.sha256 or KNOWN_DIGESTS.get(declaration.source)
        of = [identity for identity, declared in settings.identities.items() if declared.model == name]
        found.append(
            serving.ModelFile(
                name,
                None if pinned is None else normalized_digest(pinned),
                source.cached(settings.cache_dir),
                source.recorded(settings.cache_dir),
                next((registered[identity] for identity in of if identity in registered), None),
            )
        )
    return serving.models(found, deep=deep, progress=progress_on())


def _extras(settings: Settings | None, log_place: Path | str) -> dict[str, str]:
    """Packages that the settings need, by module."""
    needed = {}
    if isinstance(log_place, str) and log_place.startswith("postgres"):
        needed["psycopg"] = "tiltyard[postgres]"
    if settings is not None and settings.file.workers.ray is not None:
        needed["ray"] = "tiltyard[ray]"
    if settings is not None and settings.file.data.names_model is not None:
        needed["spacy"] = "tiltyard[names]"
    return needed


def _worker_count(settings: Settings | None) -> int:
    if settings is None or not starts_workers(settings):
        return 0
    used = {identity.model for identity in settings.identities.values()}
    return len(used) * settings.file.workers.replicas


def _needs(settings: Settings | None) -> tuple[int, str]:
    """About how much memory the workers take: weights, and KV where the settings say it."""
    if settings is None or not starts_workers(settings):
        return 0, "no workers"
    workers, total, unknown = settings.file.workers, 0, 0
    for name in {identity.model for identity in settings.identities.values()}:
        source = parse_source(settings.models[name].source, settings.base_dir)
        recorded = source.recorded(settings.cache_dir)
        unknown += recorded is None
        kv_mb = 256 if workers.kv_memory_mb == "auto" else workers.kv_memory_mb
        total += workers.replicas * ((recorded.size_bytes if recorded else 0) + (kv_mb << 20) + WORKING_BYTES)
    missing = f" ({unknown} models are not here yet)" if unknown else ""
    return total, f"{_worker_count(settings)} workers{missing}"


def _show(finding: Finding) -> None:
    status = click.style(f"{finding.status:<8}", fg=COLOURS[finding.status])
    click.echo(f"{status}{one_line(finding.check):<20} {one_line(finding.told)}")
    if finding.do:
        click.echo(f"{'':<29}do: {one_line(finding.do)}")

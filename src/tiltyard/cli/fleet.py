"""`tiltyard fleet`: see the workers, add engines of others, drain, remove, and say how many there are to be."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.live import Live

from tiltyard.cli.fleet_table import PIPE_WIDTH, fleet_table
from tiltyard.cli.options import PlaceGroup, config_option, data_option
from tiltyard.cli.release_place import whoami
from tiltyard.cli.settings import load_settings
from tiltyard.cli.workers import server_of
from tiltyard.client import DEFAULT_URL, ModelClient
from tiltyard.errors import Conflict, NotFound, TiltyardError
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    IdentityRegistered,
    ReplicasSet,
    WorkerAdded,
    WorkerDrained,
    WorkerReady,
    WorkerRemoved,
)
from tiltyard.fleet.membership import Members
from tiltyard.fleet.probe import find_blocking, places_of
from tiltyard.fleet.registry import check_worker_url
from tiltyard.identity.canonical import Json
from tiltyard.wire.worker import WorkerKind

SOURCE = "tiltyard/fleet"
KINDS = ("vllm", "sglang", "llama.cpp", "openai")
MOST_REPLICAS = 1024
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

why_option = click.option("--why", default="", help="The reason, for the history.")


@click.group(name="fleet", cls=PlaceGroup, help=__doc__)
@data_option
@config_option
@click.option(
    "--log", "log_url", envvar="TILTYARD_LOG", metavar="URL", help="The log, where it is elsewhere."
)
@click.pass_context
def command(context: click.Context, data: Path | None, config: Path | None, log_url: str | None) -> None:
    """Keep where the log is for the verb that follows."""
    context.obj = (load_settings(config, data_dir=data), log_url)


@command.command()
@click.option("--url", default=DEFAULT_URL, show_default=True, help="The server.")
@click.option("--api-key", envvar="TILTYARD_API_KEY", help="A key with the scope admin (TILTYARD_API_KEY).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a worker, once.")
@click.option("--once", is_flag=True, help="Show it once; else it is kept up to date until Ctrl-C.")
@click.option(
    "--every", default=1.0, show_default=True, type=click.FloatRange(0.1, 3600), help="Seconds between looks."
)
def status(*, url: str, api_key: str | None, as_json: bool, once: bool, every: float) -> None:
    """Every worker of a running server: what it is, how busy it is, and why it takes no work if it does not."""
    console = Console()
    workers = _workers(url, api_key)
    if as_json:
        for worker in workers:
            click.echo(json.dumps(worker))
        return
    if once or not console.is_terminal:
        (console if console.is_terminal else Console(width=PIPE_WIDTH)).print(fleet_table(workers))
        return
    with Live(fleet_table(workers), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(every)
                try:
                    live.update(fleet_table(_workers(url, api_key)), refresh=True)
                except TiltyardError as error:  # the server restarts: go on looking
                    live.update(f"{url}: {error.message}", refresh=True)
        except KeyboardInterrupt:
            return


@command.command()
@click.argument("url")
@click.option("--name", help="What to call the worker. [default: its kind and address]")
@click.option(
    "--as",
    "names",
    multiple=True,
    metavar="NAME[=MODEL]",
    help="Identity name for a model of the server; may repeat. [default: each model under a name made of its own]",
)
@click.option("--kind", type=click.Choice(KINDS), help="Its engine, where its replies do not tell.")
@click.option("--key-env", default="", metavar="VARIABLE", help="Environment variable with the key it wants.")
@click.pass_context
def add(
    context: click.Context,
    *,
    url: str,
    name: str | None,
    names: tuple[str, ...],
    kind: str | None,
    key_env: str,
) -> None:
    """Add the engine at URL (http://HOST:PORT): vLLM, SGLang, llama.cpp's server, any of OpenAI's protocol, or a worker of
    tiltyard.

    It is asked who it is and what it serves. Running gateways give it work within a second, and after every restart. What
    it says of its weights is declared, not verified (docs/fleet.md).
    """
    url = url.rstrip("/")
    check_worker_url(url, None)
    found = find_blocking(url, names=_names(names), kind=cast(WorkerKind | None, kind), key_env=key_env)
    worker = name or re.sub(r"[^A-Za-z0-9.]+", "-", f"{found.kind}-{urlsplit(url).netloc}")
    _check_name(worker, "--name")
    with _log(context) as log:
        members = Members()
        members.look(log)
        if (known := members.added.get(worker)) is not None:
            raise Conflict(
                f"a worker {worker} was added already (at {known.url}); remove it first, or give this one another --name"
            )
        places = places_of(url)
        same = next((w for w, added in members.added.items() if places & places_of(added.url)), None)
        if same is not None:
            raise Conflict(
                f"{url} is in the fleet already, as {same} at {members.added[same].url}; it would count twice. "
                f"`tiltyard fleet remove {same}` takes it out."
            )
        newest = _behaviours(log)
        for identity in found.identities.values():
            before = newest.get(identity.name, identity.behaviour)
            if before != identity.behaviour:
                click.echo(
                    f"note: {identity.name} was {before[:19]}… before and is {identity.behaviour[:19]}… here. While a worker serves "
                    "the other, this one gets no work under that name; --as gives it another.",
                    err=True,
                )
        log.append_blocking(
            WorkerAdded(
                worker=worker,
                url=url,
                engine=found.kind,
                identities=dict(found.served),
                key_env=key_env,
                by=whoami(),
            ),
            subject=worker,
            source=SOURCE,
        )
    click.echo(
        f"{worker} is {found.kind} {found.version or '(it does not say which version)'} at {url}; it serves"
    )
    for identity in found.identities.values():
        unsaid = identity.name in found.unsaid
        size = "a context it does not say" if unsaid else f"{identity.max_context_tokens:,} tokens of context"
        declared = "; declared, not verified" if identity.behaviour_manifest.declared else ""
        click.echo(f"  {identity.name}: {found.served[identity.name]}, {size}{declared}")
    if found.kind == "openai":
        click.echo("  nothing more is known of it: no load, no version. --kind says what it is, if you know.")


@command.command()
@click.argument("worker")
@why_option
@click.pass_context
def remove(context: click.Context, *, worker: str, why: str) -> None:
    """Take WORKER, which was added, out of the fleet; answers under way end where they are."""
    with _log(context) as log:
        members = _members(log)
        if worker not in members.added:
            raise NotFound(_unknown(worker, members, "was added with `tiltyard fleet add`"))
        log.append_blocking(WorkerRemoved(worker=worker, by=whoami(), why=why), subject=worker, source=SOURCE)
    click.echo(f"{worker} gets nothing new within a second; answers under way end where they are")


@command.command()
@click.argument("worker")
@click.option("--undo", is_flag=True, help="Give it work again.")
@why_option
@click.pass_context
def drain(context: click.Context, *, worker: str, undo: bool, why: str) -> None:
    """Give WORKER nothing new, through restarts too, until --undo; what runs may end."""
    with _log(context) as log:
        members = _members(log)
        started = {e.data.worker for e in log.read(types=(WorkerReady,)) if isinstance(e.data, WorkerReady)}
        if worker not in members.added and worker not in started:
            raise NotFound(_unknown(worker, members, "ever served here", started))
        if undo and worker not in members.draining:
            raise Conflict(f"{worker} is not draining")
        if not undo and worker in members.draining:
            raise Conflict(f"{worker} is draining already; --undo gives it work again")
        log.append_blocking(
            WorkerDrained(worker=worker, draining=not undo, by=whoami(), why=why),
            subject=worker,
            source=SOURCE,
        )
    click.echo(
        f"{worker} takes work again within a second"
        if undo
        else f"{worker} gets nothing new within a second; `tiltyard fleet status` shows when it is idle"
    )


@command.command()
@click.argument("identity")
@click.argument("replicas", metavar="N|auto")
@why_option
@click.pass_context
def scale(context: click.Context, *, identity: str, replicas: str, why: str) -> None:
    """Let N workers serve IDENTITY of tiltyard.toml (and those that share its workers), or as many as needed."""
    settings = context.obj[0]
    if identity not in settings.identities:
        raise NotFound(
            f"{settings.shown} declares no identity {identity!r}; known: {', '.join(settings.identities) or 'none'}. "
            "Engines of others are added one by one with `tiltyard fleet add`."
        )
    count = None if replicas == "auto" else _count(replicas)
    with _log(context) as log:
        log.append_blocking(
            ReplicasSet(identity=identity, replicas=count, by=whoami(), why=why),
            subject=identity,
            source=SOURCE,
        )
    click.echo(
        f"{identity}: {'as many workers as needed' if count is None else f'{count} workers'}, from now on"
    )


@command.command()
@click.pass_context
def restart(context: click.Context) -> None:
    """Restart every worker that the server of this data directory started, one after the other, under whatever load there is.

    Each is drained first, and the next one waits until it serves again; no request fails. The server's output says how far it is.
    """
    settings = context.obj[0]
    process = server_of(settings.data_dir)
    if process is None:
        raise NotFound(f"no server runs from {settings.data_dir}; name its data directory with --data")
    os.kill(process, signal.SIGUSR1)
    click.echo("the workers are restarted one after the other; `tiltyard fleet status` shows them")


@contextmanager
def _log(context: click.Context) -> Iterator[EventLog]:
    settings, log_url = context.obj
    with EventLog.open(log_url or settings.log_place, keys=settings.keys_place) as log:
        yield log


def _members(log: EventLog) -> Members:
    members = Members()
    members.look(log)
    return members


def _behaviours(log: EventLog) -> dict[str, str]:
    """The newest behaviour of each identity name."""
    return {
        event.data.name: event.data.behaviour
        for event in log.read(types=(IdentityRegistered,))
        if isinstance(event.data, IdentityRegistered)
    }


def _names(asked: tuple[str, ...]) -> dict[str, str] | None:
    """`NAME=MODEL`, or `NAME` alone for a server's only model."""
    names: dict[str, str] = {}
    for one in asked:
        name, _, model_id = one.partition("=")
        _check_name(name, "--as")
        if name in names:
            raise click.BadParameter(f"--as {name} stands there twice; each name is one model")
        names[name] = model_id
    return names or None


def _check_name(name: str, option: str) -> None:
    if NAME.fullmatch(name) is None:
        raise click.BadParameter(
            f"{option} {name[:80]!r} is no name; use up to 64 letters, digits, '.', '_' and '-', a letter or digit first"
        )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > MOST_REPLICAS:
        raise click.BadParameter(
            f"{text[:40]!r} is no number of workers; write 0 to {MOST_REPLICAS:,}, or auto"
        )
    return int(text)


def _unknown(worker: str, members: Members, what: str, more: set[str] | None = None) -> str:
    known = sorted({*members.added, *(more or ())})
    return f"no worker {worker!r} {what}; known: {', '.join(known) or 'none'}"


async def _asked(url: str, api_key: str | None) -> list[dict[str, Json]]:
    async with ModelClient(url, api_key=api_key) as client:
        body = await client.get("/v1/fleet")
    return cast(list[dict[str, Json]], cast(dict[str, Json], body)["data"])


def _workers(url: str, api_key: str | None) -> list[dict[str, Json]]:
    return asyncio.run(_asked(url, api_key))

"""`tiltyard keys`: API keys of the tenants: make one, list, rotate with an overlap, revoke at once."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tiltyard.cli.options import PlaceGroup, data_option
from tiltyard.cli.settings import default_data_dir
from tiltyard.events.log import EventLog
from tiltyard.events.places import keys_in, log_in
from tiltyard.events.schema import Credential
from tiltyard.gateway.keyring import SCOPES, TRUSTED_S, KeyRing, NewKey, public

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PIPE_WIDTH = 160  # characters, where the output is no terminal that has a width


def seconds(text: str) -> float:
    """Read a duration: `90d`, `24h`, `15m`, `30s`."""
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is no duration; write a number and s, m, h or d, such as 90d")
    return float(int(match[1]) * _UNITS[match[2]])


@click.group(name="keys", cls=PlaceGroup, help=__doc__)
@data_option
@click.option(
    "--log",
    "log_url",
    envvar="TILTYARD_LOG",
    metavar="URL",
    help="The log, where it is not log.db in the data directory: a path or postgresql://… .",
)
@click.pass_context
def command(context: click.Context, data: Path | None, log_url: str | None) -> None:
    """Keep where the keys are for the verb that follows."""
    context.obj = (data or default_data_dir(), log_url)


@command.command()
@click.option(
    "--tenant", required=True, help="Whose key: a name of [tenants] in tiltyard.toml, or a new one."
)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    default=("inference",),
    show_default=True,
    type=click.Choice(SCOPES),
    help="What it may do; may repeat.",
)
@click.option("--research", is_flag=True, help="For evaluations and votes; else for production.")
@click.option("--label", default="", help="What people call it.")
@click.option("--expires", type=seconds, help="Refused after this time, such as 90d.")
@click.pass_context
def create(
    context: click.Context,
    *,
    tenant: str,
    scopes: tuple[str, ...],
    research: bool,
    label: str,
    expires: float | None,
) -> None:
    """Make a key. It is printed once, to standard output, and kept nowhere."""
    credential: Credential = "research" if research else "production"
    with _ring(context, create=True) as ring:
        first = not ring.listed()
        show(ring.issue(tenant, scopes, label=label, credential=credential, lifetime_s=expires))
    if first:
        click.echo(
            "This is the first key of this log: from now on the API answers nobody without one (401). Whoever asked without a key "
            "needs one with the scope inference.",
            err=True,
        )


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_context
def list_(context: click.Context, *, as_json: bool) -> None:
    """List every key that was ever made."""
    with _ring(context) as ring:
        rows, now_us = ring.listed(), time.time_ns() // 1000
    if as_json:
        for row in rows:
            click.echo(json.dumps(public(row, now_us)))
        return
    table = Table(
        "key", "tenant", "label", "for", "scopes", "made", "ends", "last used", "state", box=box.SIMPLE
    )
    for row in rows:
        one = public(row, now_us)
        table.add_row(
            row.key,
            row.tenant,
            row.label,
            row.credential,
            ", ".join(row.scopes),
            _day(row.issued_us),
            _day(row.expires_us),
            _day(row.last_used_us),
            str(one["state"]),
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    console.print(table)


@command.command()
@click.argument("key")
@click.option(
    "--overlap", type=seconds, default="24h", show_default=True, help="How long the old key goes on."
)
@click.pass_context
def rotate(context: click.Context, *, key: str, overlap: float) -> None:
    """Make a successor of KEY (its id) with the same rights; the old key goes on for a while."""
    with _ring(context) as ring:
        show(ring.rotate(key, overlap_s=overlap))


@command.command()
@click.argument("key")
@click.pass_context
def revoke(context: click.Context, *, key: str) -> None:
    """End KEY (its id); when the command returns, every gateway refuses it."""
    with _ring(context) as ring:
        ring.revoke(key)
    time.sleep(2 * TRUSTED_S)  # no gateway trusts longer than TRUSTED_S what it knew before
    click.echo(f"{key} is revoked on every gateway", err=True)


def show(made: NewKey) -> None:
    """The secret alone on standard output, so that a shell can take it; what people need to know beside it."""
    row = made.row
    until = f" until {_day(row.expires_us)}" if row.expires_us else ""
    click.echo(
        f"{row.key}: {row.credential} key of tenant {row.tenant} for {', '.join(row.scopes)}{until}. "
        "It is shown this once:",
        err=True,
    )
    click.echo(made.secret)


@contextmanager
def _ring(context: click.Context, *, create: bool = False) -> Iterator[KeyRing]:
    data, log_url = context.obj
    with EventLog.open(log_url or log_in(data), keys=keys_in(data), create=create) as log:
        yield KeyRing(log)


def _day(time_us: int | None) -> str:
    return "" if time_us is None else datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M")

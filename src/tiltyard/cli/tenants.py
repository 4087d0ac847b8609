"""`tiltyard tenants`: what each tenant may do and has used; set it while gateways run."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
from pydantic import BaseModel, ConfigDict, ValidationError
from rich import box
from rich.console import Console
from rich.table import Table

from tiltyard.cli.options import PlaceGroup, config_option, data_option
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.cli.settings_problems import problem_in
from tiltyard.errors import ConfigurationError
from tiltyard.events.log import EventLog
from tiltyard.gateway.keyring import TRUSTED_S, KeyRing
from tiltyard.router.tenants import NANO, UNLIMITED, TenantTerms

_PIPE_WIDTH = 160  # characters, where the output is no terminal that has a width


class _Given(BaseModel):
    """What `set` was given, for errors in the words of the settings file."""

    model_config = ConfigDict(extra="forbid")

    tenants: dict[str, TenantTerms]


@click.group(name="tenants", cls=PlaceGroup, help=__doc__)
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


@command.command(name="list")
@click.pass_context
def list_(context: click.Context) -> None:
    """Show every tenant: its terms, where they stand, and what the log says it used this month."""
    with _opened(context) as (settings, log):
        in_log = {name: TenantTerms.model_validate(table) for name, table in log.tenant_terms().items()}
        now = datetime.now(UTC)
        month_began = datetime(now.year, now.month, 1, tzinfo=UTC)
        used = log.token_usage(since_us=int(month_began.timestamp()) * 1_000_000)
        names = {*settings.file.tenants, *in_log, *(row.tenant for row in used)}
        names |= {row.tenant for row in log.api_keys()}
    table = Table("tenant", "terms of", "limits", "tokens this month", "spent", box=box.SIMPLE)
    for name in sorted(names):
        place, terms = _terms(name, in_log, settings)
        mine = [row for row in used if row.tenant == name]
        prompt, output = (sum(row.prompt_tokens for row in mine), sum(row.completion_tokens for row in mine))
        limits = terms.model_dump(mode="json", exclude_defaults=True)
        table.add_row(
            name,
            place,
            ", ".join(f"{key} = {value}" for key, value in limits.items()) or "none",
            f"{prompt:,} + {output:,}",
            f"{terms.cost_nano(prompt, output) / NANO:,.6g}",
        )
    console = Console()
    console.print(table) if console.is_terminal else Console(width=_PIPE_WIDTH).print(table)


@command.command(name="set")
@click.argument("tenant")
@click.argument("terms", nargs=-1, metavar="KEY=VALUE...")
@click.pass_context
def set_(context: click.Context, *, tenant: str, terms: tuple[str, ...]) -> None:
    """Set the terms of TENANT, all of them: KEY=VALUE as in [tenants.NAME] of tiltyard.toml.

    They stand in the log, replace the file's table as a whole, and hold on every gateway when the command returns.
    """
    try:
        table = tomllib.loads("\n".join(terms))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(
            f"the terms are not KEY=VALUE as in tiltyard.toml: {error}; a text needs quotes, such as models='[\"chat\"]'"
        ) from None
    try:
        given = _Given.model_validate({"tenants": {tenant: table}})
    except ValidationError as error:
        raise ConfigurationError(problem_in(error, _Given)) from None
    with _opened(context) as (_settings, log):
        KeyRing(log).set_terms(tenant, given.tenants[tenant])
    time.sleep(2 * TRUSTED_S)  # no gateway trusts longer than TRUSTED_S what it knew before
    click.echo(f"{tenant}: set on every gateway", err=True)


@command.command()
@click.argument("tenant")
@click.pass_context
def unset(context: click.Context, *, tenant: str) -> None:
    """Leave the terms of TENANT to tiltyard.toml again."""
    with _opened(context) as (_settings, log):
        KeyRing(log).set_terms(tenant, None)
    time.sleep(2 * TRUSTED_S)
    click.echo(f"{tenant}: as tiltyard.toml says", err=True)


def _terms(name: str, in_log: dict[str, TenantTerms], settings: Settings) -> tuple[str, TenantTerms]:
    for one in (name, "default"):
        own = "" if one == name else f" [{one}]"
        if one in in_log:
            return f"the log{own}", in_log[one]
        if one in settings.file.tenants:
            return f"the file{own}", settings.file.tenants[one]
    return "nobody", UNLIMITED


@contextmanager
def _opened(context: click.Context) -> Iterator[tuple[Settings, EventLog]]:
    settings, log_url = context.obj
    with EventLog.open(log_url or settings.log_place, keys=settings.keys_place) as log:
        yield settings, log

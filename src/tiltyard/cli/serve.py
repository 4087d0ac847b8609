"""`tiltyard serve`: workers and the gateway, without the arena."""

from __future__ import annotations

from pathlib import Path

import click

from tiltyard.cli.options import config_option, data_option, host_option, port_option, upgrade_option
from tiltyard.cli.serving import serve
from tiltyard.cli.settings import load_settings


@click.command()
@host_option
@port_option
@data_option
@config_option
@upgrade_option
def command(
    *, host: str | None, port: int | None, data: Path | None, config: Path | None, upgrade: bool | None
) -> None:
    """Serve the OpenAI protocol on one address, without the arena. Ctrl-C drains and ends with status 0."""
    serve(load_settings(config, data_dir=data), host=host, port=port, make_pages=None, upgrade=upgrade)

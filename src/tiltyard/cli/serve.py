"""`tiltyard serve`: workers and the gateway, without the arena."""

from __future__ import annotations

from pathlib import Path

import click

from tiltyard.cli.serving import serve
from tiltyard.cli.settings import load_settings


@click.command()
@click.option("--host", help="Address to listen on; loopback only, since there are no keys yet.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 lets the system choose.")
@click.option("--data", type=click.Path(path_type=Path), help="Data directory (TILTYARD_DATA_DIR).")
@click.option("--config", type=click.Path(path_type=Path), help="Path of tiltyard.toml (TILTYARD_CONFIG).")
def command(host: str | None, port: int | None, data: Path | None, config: Path | None) -> None:
    """Serve the OpenAI protocol on one address, without the arena. Ctrl-C drains and ends with status 0."""
    serve(load_settings(config, data_dir=data), host=host, port=port, make_pages=None)

"""`tiltyard data retain`: destroy what no purpose keeps any longer, as a running server does on its own."""

from __future__ import annotations

import time
from pathlib import Path

import click

from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.settings import load_settings
from tiltyard.events.envelope import format_time
from tiltyard.events.log import EventLog
from tiltyard.governance.retention import retain
from tiltyard.governance.terms import record_terms


@click.command(name="retain")
@click.option("--dry-run", is_flag=True, help="Say what would go, and destroy nothing.")
@data_option
@config_option
def command(*, dry_run: bool, data: Path | None, config: Path | None) -> None:
    """Destroy words that are older than every purpose of their terms allows (`[data.terms]`, `tiltyard data terms`)."""
    settings = load_settings(config, data_dir=data)
    now_us = time.time_ns() // 1000
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        if dry_run:
            lines = [
                f"{due.scope}: {due.contents:,} words of {len(due.subjects):,} people from before {format_time(due.before_us)} would go"
                for due in log.expiring.due(now_us)
            ]
        else:
            record_terms(log, settings.file.data.terms)
            lines = [
                f"{one.due.scope}: {one.due.contents:,} words of {len(one.due.subjects):,} people and {one.keys:,} keys destroyed"
                for one in retain(log, now_us)
            ]
    for line in lines or ["nothing is over"]:
        click.echo(line)

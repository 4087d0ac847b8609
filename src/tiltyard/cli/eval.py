"""`tiltyard eval`: ask a fixed set of one or more identities, compare them item by item, and write a report."""

from __future__ import annotations

import click

from tiltyard.cli.eval_log import export, import_log, report, reviews, runs
from tiltyard.cli.eval_run import run
from tiltyard.cli.eval_sets import audit, check, schema, sets


@click.group()
def command() -> None:
    """Fixed sets: run, compare, report."""


for verb in (run, report, reviews, import_log, export, runs, sets, check, audit, schema):
    command.add_command(verb)

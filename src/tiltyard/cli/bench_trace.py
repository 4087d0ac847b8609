"""`tiltyard bench trace`: write our own traffic down as a trace: times, lengths and common beginnings, no words and no names."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from tiltyard.cli.logged_traffic import logged_options, logged_trace
from tiltyard.cli.plan_progress import Counting
from tiltyard.errors import ConfigurationError
from tiltyard.ops.load.logged import write_trace


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@logged_options
@click.option("--newest", type=click.IntRange(1), help="At most so many requests; all unless told.")
def trace(**options: object) -> None:
    """Write the log's traffic to PATH as JSON lines that `--trace` reads, and Mooncake's tools do too.

    A line has a time, two lengths, numbers for blocks that are alike, a numbered tenant and a class: no text, no digest of one.
    """
    path = cast("Path", options["path"])
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"{path.absolute().parent} is no folder; make it first", param="path")
    with Counting() as counting:
        found = logged_trace(
            options,
            newest=cast("int | None", options["newest"]),
            told=lambda read: counting.show(f"read {read:,} generations"),
        )
    write_trace(path, found)
    shared = sum(bool(ask.blocks) for ask in found.asks)
    seconds = (found.asks[-1].at_s or 0.0) if found.asks else 0.0
    click.echo(
        f"{path}: {len(found.asks):,} requests over {seconds:,.1f} s, {shared:,} with blocks; {found.digest}"
    )

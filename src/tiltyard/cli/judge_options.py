"""What the verbs of `tiltyard judge` share: where items come from, and the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from tiltyard.cli.settings import load_settings
from tiltyard.events.log import EventLog
from tiltyard.judge.battles import battle_items
from tiltyard.judge.items import ItemSet, read_items

BATTLES: Final = "battles"
"""Instead of a file: the arena's battles in the log."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def items_of(log: EventLog, where: str) -> ItemSet:
    """Items of a file, or of the arena."""
    if where != BATTLES:
        return read_items(Path(where))
    found = battle_items(log)
    left_out = [
        f"{count:,} {why}"
        for count, why in ((found.erased, "erased"), (found.unfinished, "unfinished"))
        if count
    ]
    if left_out:
        click.echo(f"battles left out: {', '.join(left_out)}", err=True)
    return found.items


@contextmanager
def opened(data: Path | None, config: Path | None, *, create: bool = False) -> Iterator[EventLog]:
    """The log of the data directory."""
    settings = load_settings(config, data_dir=data)
    if create:
        settings.log_path.parent.mkdir(parents=True, exist_ok=True)
    with EventLog.open(settings.log_path, keys=settings.keys_path, create=create) as log:
        yield log

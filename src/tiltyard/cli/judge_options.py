"""What the verbs of `tiltyard judge` share: where items come from, and the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from tiltyard.cli.eval_experts import expert_items
from tiltyard.cli.settings import load_settings
from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.judge.battles import battle_items
from tiltyard.judge.items import ItemSet, read_items

BATTLES: Final = "battles"
"""Instead of a file: the arena's battles in the log."""
RUNS: Final = "evals"
"""Instead of a file: answers of fixed sets that experts are asked about; `evr_…`: those of one run."""
share_option = click.option(
    "--share-words", is_flag=True, help="Battles may go to a server that is no tiltyard."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def check_sharing(items: str, url: str, *, ours: bool, share_words: bool) -> None:
    """Raise `InvalidRequest` where what people wrote in the arena would go to a server that is no tiltyard."""
    if items == BATTLES and not ours and not share_words:
        raise InvalidRequest(
            f"battles are what people wrote, and {url} is no tiltyard: it would read them. If they agreed to that, "
            "say --share-words",
            param="share_words",
        )


def items_of(log: EventLog, where: str, *, quiet: bool = False) -> ItemSet:
    """Items of a file, of the arena, or answers of a fixed set that wait for experts or have been before them."""
    if where == RUNS or where.startswith("evr_"):
        return expert_items(log, None if where == RUNS else where)
    if where != BATTLES:
        return read_items(Path(where))
    found = battle_items(log)
    left_out = [
        f"{count:,} {why}"
        for count, why in ((found.erased, "erased"), (found.unfinished, "unfinished"))
        if count
    ]
    if left_out and not quiet:
        click.echo(f"battles left out: {', '.join(left_out)}", err=True)
    return found.items


@contextmanager
def opened(data: Path | None, config: Path | None, *, create: bool = False) -> Iterator[EventLog]:
    """The log of the data directory."""
    settings = load_settings(config, data_dir=data)
    if create:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=create) as log:
        yield log

"""Options that many verbs share, each written once."""

from __future__ import annotations

import getpass
import math
import os
from pathlib import Path

import click

data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory (TILTYARD_DATA_DIR; ~/.local/share/tiltyard unless told).",
)
config_option = click.option(
    "--config", type=click.Path(path_type=Path), help="Path of tiltyard.toml (TILTYARD_CONFIG)."
)
host_option = click.option(
    "--host", help="Address to listen on; any but loopback needs API keys (`tiltyard keys`)."
)
port_option = click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 lets the system choose.")

upgrade_option = click.option(
    "--upgrade/--no-upgrade",
    default=None,
    help="Whether a log of an earlier version is brought forward first, after a backup; unless told, one in a file is.",
)


class PlaceGroup(click.Group):
    """A group whose own options may also stand after the verb: `events tail --data DIR` is what people type."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Bring the group's options to the front, then parse as ever."""
        own = {name for parameter in self.params for name in parameter.opts if name.startswith("--")}
        front: list[str] = []
        rest: list[str] = []
        words = iter(args)
        for word in words:
            if word in own:
                front += [word, *(value for value in [next(words, None)] if value is not None)]
            elif word.split("=", 1)[0] in own:
                front.append(word)
            else:
                rest.append(word)
        return super().parse_args(ctx, front + rest)


def who() -> str:
    """Who gives a command: `TILTYARD_BY`, else the login."""
    return os.environ.get("TILTYARD_BY") or getpass.getuser()


class FiniteRange(click.FloatRange):
    """A number within bounds; `nan`, which lies in no range, is none."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it, or say what is allowed."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number

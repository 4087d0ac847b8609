"""`tiltyard bench`: load on servers, the kernels of this machine, or our own traffic as a trace."""

from __future__ import annotations

import click

from tiltyard.cli.bench_kernels import kernels
from tiltyard.cli.bench_load import load
from tiltyard.cli.bench_trace import trace

NO_LOAD = ("-h", "--help")


class BenchGroup(click.Group):
    """A group whose first command may be left out: `tiltyard bench URL` is `tiltyard bench load URL`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the word in that was left out."""
        if args and args[0] not in self.commands and args[0] not in NO_LOAD:
            args = ["load", *args]
        return super().parse_args(ctx, args)


@click.group(cls=BenchGroup)
def command() -> None:
    """Put load on servers: `tiltyard bench URL…` is `tiltyard bench load URL…`. Or measure the kernels here, or write the log's traffic down as a trace."""


command.add_command(load)
command.add_command(kernels)
command.add_command(trace)

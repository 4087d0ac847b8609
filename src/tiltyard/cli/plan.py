"""`tiltyard plan`: what a fleet would do under traffic, how many replicas it needs, and what if."""

from __future__ import annotations

import click

from tiltyard.cli.plan_calibrate import calibrate
from tiltyard.cli.plan_run import run

NO_PLAN = ("-h", "--help")


class PlanGroup(click.Group):
    """A group whose first command may be left out: `tiltyard plan …` is `tiltyard plan run …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the word in that was left out."""
        if not args or (args[0] not in self.commands and args[0] not in NO_PLAN):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=PlanGroup)
def command() -> None:
    """Predict a fleet under traffic: `tiltyard plan …` is `tiltyard plan run …`. Or measure what steps cost here."""


command.add_command(run)
command.add_command(calibrate)

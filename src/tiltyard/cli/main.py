"""The `tiltyard` command: finds the verb, loads only its module, and turns our errors into one clear line."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

import click

from tiltyard import __version__
from tiltyard.cli.terminal import guarded
from tiltyard.errors import TiltyardError
from tiltyard.telemetry.logs import is_json
from tiltyard.wire.escaping import for_terminal

_logger = logging.getLogger("tiltyard")

VERBS = {
    "up": "Start everything on this machine: workers, gateway, arena.",
    "serve": "Start workers and the gateway, without the arena.",
    "worker": "Serve one worker by itself, for a launcher of others.",
    "chat": "Talk to a model in the terminal.",
    "models": "Pull, list, show, compare, verify and measure models and identities.",
    "keys": "Make, list, rotate and revoke API keys.",
    "tenants": "Show and set what each tenant may use.",
    "fleet": "See the workers, add engines of others, drain, remove and scale.",
    "leaderboard": "Print the leaderboard that the votes give, or publish it under its digest.",
    "votes": "Take in votes that others collected, list and withdraw them, write votes out.",
    "arena": "Say how the arena is doing: draws, failures, delays.",
    "rules": "Show which votes count, which do not and why, and what other rules would change.",
    "judge": "Ask a model which answer is better, and measure how far it can be believed.",
    "eval": "Ask a fixed set, compare identities item by item, and write a report.",
    "data": "Find and replace what names a person in a text.",
    "release": "Bring a candidate to everyone, with evidence at each gate; say first what that takes.",
    "rollback": "Give an alias back to its last verified version.",
    "doctor": "Look at everything that can be wrong here, and say what to do about it.",
    "backup": "Copy the log while it is written, without people's keys; list and check copies.",
    "restore": "Bring a backup back; whoever was erased stays erased.",
    "upgrade": "Bring a log of an earlier version forward, after a backup.",
    "events": "Read, verify and rebuild the event log.",
    "replay": "Make a recorded answer, battle or leaderboard again and compare it.",
    "operations": "Say how serving went, slice by slice: latency, failures, cache hits.",
    "objectives": "Say how far what was promised is kept: error budgets and how fast they burn.",
    "cost": "Say what tokens, votes and releases cost, and what the prefix cache saved.",
    "bench": "Put load on servers and say what it met; or measure the kernels of this machine.",
    "plan": "Say how many replicas traffic needs, and what would happen if it or the fleet were another.",
}
"""Each verb is one module `tiltyard.cli.<verb>` with a click command named `command`."""


class Verbs(click.Group):
    """A group that imports a verb's module only when it is used, so that `--help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order in which a newcomer meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one verb."""
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"tiltyard.cli.{cmd_name}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"tiltyard.cli.{cmd_name}.command is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List verbs with their one line, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def main(self, *args: Any, **more: Any) -> Any:  # as click has it
        """Run the command; on a terminal, words of others can steer nothing, not even in click's own messages."""
        given = more.get("args") or (args[0] if args else None)
        words = list(sys.argv[1:] if given is None else given)
        with guarded(next((word for word in words if word in VERBS), None)):
            return super().main(*args, **more)

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb; an error of ours is one line on stderr and exit status 1."""
        try:
            return super().invoke(ctx)
        except TiltyardError as error:
            if is_json():
                _logger.error("%s", error.message)
            else:
                click.echo(f"tiltyard: {for_terminal(error.message)}", err=True)
            ctx.exit(1)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="tiltyard")
def main() -> None:
    """Serve language models, compare them blind, ship only what wins, replay every answer bit for bit."""


if __name__ == "__main__":
    sys.exit(main())

"""`tiltyard rules`: which votes count, which do not and why, and what other rules would change."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tiltyard.arena.adoption import board_of
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.arena.review import SOURCE, VERDICTS, Verdict, cases, decision
from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.rulesets import read_ruleset, ruleset_of
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.events.log import EventLog
from tiltyard.rating.admission import Window
from tiltyard.rating.movement import Moved, movement
from tiltyard.rating.ruleset import REASONS

_PIPE_WIDTH = 120  # characters, where the output is no terminal that has a width
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def command() -> None:
    """Show the ruleset in force, the votes it leaves out, and what other rules would change."""


@command.command()
@data_option
@config_option
def show(data: Path | None, config: Path | None) -> None:
    """Print the ruleset in force as TOML; a copy of it is where another begins."""
    ruleset = ruleset_of(load_settings(config, data_dir=data))
    click.echo(f"# {ruleset.label}")
    for key, value in ruleset.model_dump().items():
        click.echo(f"{key} = {json.dumps(value, ensure_ascii=False)}")


@command.command()
@data_option
@config_option
@click.option("--reason", type=click.Choice(REASONS), help="Only votes with this reason.")
@json_option
def excluded(data: Path | None, config: Path | None, reason: str | None, as_json: bool) -> None:
    """List the votes that do not count, each with its reason, for somebody to look at.

    `tiltyard events show <battle> --content` shows what a voter saw.
    """
    with _votes(load_settings(config, data_dir=data)) as recorded:
        judged = recorded.judge()
        rows = [
            (vote, judged.reasons[vote.sequence])
            for vote in recorded.votes()
            if reason in (None, judged.reasons.get(vote.sequence)) and vote.sequence in judged.reasons
        ]
    for vote, why in rows:
        found = judged.findings.get(vote.voter)
        p = found.least if found is not None and why.startswith("voter_") else None
        if as_json:
            click.echo(
                json.dumps(
                    {
                        "sequence": vote.sequence,
                        "battle": vote.battle,
                        "voter": vote.voter,
                        "reason": why,
                        "p": p,
                    }
                )
            )
        else:
            click.echo(
                f"{vote.sequence:>8}  {vote.battle}  {vote.voter}  {why}{'' if p is None else f' (p = {p:.2g})'}"
            )
    if not as_json:
        click.echo(f"{len(rows):,} of {len(recorded.votes()):,} votes, under {recorded.ruleset.label}")


@command.command(name="try")
@click.argument("file", type=click.Path(path_type=Path))
@data_option
@config_option
@json_option
def try_file(file: Path, data: Path | None, config: Path | None, as_json: bool) -> None:
    """Say what the ruleset in FILE would change: votes by reason, and by how much each rating moves."""
    settings = load_settings(config, data_dir=data)
    other = read_ruleset(file)
    with _votes(settings) as recorded:
        now_us = time.time_ns() // 1000
        before, after = (
            board_of(recorded, recorded.admit(Window(), now_us, rules), settings.file.arena.minimum_votes)
            for rules in (recorded.ruleset, other)
        )
    moved = movement(before, after)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "before": {
                        "ruleset": before.evidence.ruleset,
                        "excluded": dict(before.evidence.excluded),
                    },
                    "after": {"ruleset": after.evidence.ruleset, "excluded": dict(after.evidence.excluded)},
                    "moved": [one.to_json() for one in moved],
                },
                ensure_ascii=False,
                indent=2,
            )
        )
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    for word, board in (("now", before), ("then", after)):
        left_out = ", ".join(f"{count:,} {why}" for why, count in board.evidence.excluded.items())
        console.print(
            f"{word:4}  {board.evidence.ruleset}: {board.votes:,} votes count; left out: {left_out or 'none'}"
        )
    console.print(_table(moved))


@command.command()
@data_option
@config_option
@click.option("--all", "everything", is_flag=True, help="Also what was decided already.")
@json_option
def queue(data: Path | None, config: Path | None, everything: bool, as_json: bool) -> None:
    """List suspected voters and votes that wait for somebody to look and decide.

    `tiltyard events show <battle> --content` shows what a voter saw, `tiltyard rules decide` takes the decision.
    """
    with _votes(load_settings(config, data_dir=data)) as recorded:
        found = cases(recorded, waiting_only=not everything)
        label = recorded.ruleset.label
    for one in found:
        if as_json:
            click.echo(json.dumps(one.to_json(), ensure_ascii=False))
            continue
        p = "" if one.p is None else f"  p = {one.p:.2g}"
        state = "counts" if one.counts else "left out"
        held = f"  {one.decided} by {one.by}: {one.why}" if one.decided else ""
        click.echo(f"{one.of:5}  {one.name}  {one.reason}  {one.votes:,} votes{p}  {state}{held}")
        if one.of == "voter":
            click.echo(f"       newest: {', '.join(one.battles)}")
    if not as_json:
        click.echo(f"{len(found):,} cases, under {label}")


@command.command()
@click.argument("name")
@click.argument("verdict", type=click.Choice(VERDICTS))
@click.option("--reason", required=True, help="Why; kept with the decision.")
@click.option("--by", default=getpass.getuser, help="Who decides; your login if left out.")
@data_option
@config_option
def decide(  # noqa: PLR0917  # click passes names
    name: str, verdict: Verdict, reason: str, by: str, data: Path | None, config: Path | None
) -> None:
    """Let the votes of a voter (or one vote, by its battle) count, or leave them out, whatever the rules say.

    `withdraw` leaves them to the rules again. The decision is an event; a running server heeds it with the next look
    at the log.
    """
    with _votes(load_settings(config, data_dir=data)) as recorded:
        made = decision(recorded, name, verdict, reason=reason, by=by)
        before = len(recorded.judge().reasons)
        stored = recorded.log.append_blocking(made, subject=name, source=SOURCE)
        after = len(recorded.judge().reasons)
    click.echo(
        f"{verdict} {made.of} {name}: event {stored.id}; votes left out: {before:,} before, {after:,} now"
    )


def _table(moved: list[Moved]) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("model")
    for heading in ("votes", "then", "rating", "then", "moved", "rank", "then"):
        table.add_column(heading, justify="right")
    for one in moved:
        table.add_row(
            one.name,
            f"{one.votes_before:,}",
            f"{one.votes_after:,}",
            _points(one.rating_before),
            _points(one.rating_after),
            "" if one.points is None else f"{one.points:+.1f}",
            str(one.rank_before or ""),
            str(one.rank_after or ""),
        )
    return table


def _points(rating: float | None) -> str:
    return "" if rating is None else f"{rating:.1f}"


@contextmanager
def _votes(settings: Settings) -> Iterator[RecordedVotes]:
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        yield RecordedVotes(log, ruleset_of(settings))

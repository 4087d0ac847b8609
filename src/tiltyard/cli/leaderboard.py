"""`tiltyard leaderboard`: compute the leaderboard from the log, or from a votes file, and print it."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.rulesets import ruleset_of
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.rating.admission import Window
from tiltyard.rating.counts import BothBad, PairCounts
from tiltyard.rating.leaderboard import Evidence, Leaderboard, LeaderboardRow, make_leaderboard
from tiltyard.rating.rated_models import rated_models

FILE_RULESET = "every-row-of-a-file/1"
_COLUMNS = ("model_a", "model_b", "winner")
_PIPE_WIDTH = 120  # characters, where the output is no terminal that has a width


@click.command()
@data_option
@config_option
@click.option(
    "--votes", "votes_file", type=click.Path(path_type=Path), help="Rate a CSV file instead of the log."
)
@click.option("--window", default="all", show_default=True, help="'all', or the last days, such as 30d.")
@click.option(
    "--both-bad",
    type=click.Choice(["tie", "drop"]),
    default="tie",
    show_default=True,
    help="What a vote for 'both bad' counts as.",
)
@click.option(
    "--minimum-votes", type=click.IntRange(1), help="Votes that a rank needs; else as in tiltyard.toml."
)
@click.option("--json", "as_json", is_flag=True, help="Print what GET /api/leaderboard answers.")
def command(  # noqa: PLR0917  # click passes names
    data: Path | None,
    config: Path | None,
    votes_file: Path | None,
    window: str,
    both_bad: BothBad,
    minimum_votes: int | None,
    as_json: bool,
) -> None:
    """Print ratings, intervals and ranks that the votes give.

    No server is needed: the log is read directly. A votes file has the columns model_a, model_b and winner
    (model_a, model_b, tie, tie (bothbad)); other outcomes are refused.
    """
    settings = load_settings(config, data_dir=data)
    needed = minimum_votes or settings.file.arena.minimum_votes
    if votes_file is None:
        board = board_of_log(settings, Window.parse(window), both_bad, needed)
    else:
        if Window.parse(window).days is not None:
            raise InvalidRequest("a votes file has no times; leave out --window.", param="window")
        board = make_leaderboard(
            read_votes(votes_file),
            evidence=Evidence(ruleset=FILE_RULESET),
            minimum_votes=needed,
            both_bad=both_bad,
        )
    if as_json:
        click.echo(json.dumps(board.to_json(), ensure_ascii=False, indent=2))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    show(board, console, address=f"http://{settings.file.server.host}:{settings.file.server.port}/")


def board_of_log(settings: Settings, window: Window, both_bad: BothBad, minimum_votes: int) -> Leaderboard:
    """Read the votes of a log; a data directory without one is an error that says what to do."""
    with EventLog.open(settings.log_path, keys=settings.keys_path, create=False) as log:
        admitted = RecordedVotes(log, ruleset_of(settings)).admit(window, time.time_ns() // 1000)
        models = rated_models(log.identities())
    evidence = Evidence(
        ruleset=admitted.ruleset,
        window=str(window),
        first_sequence=admitted.first_sequence,
        last_sequence=admitted.last_sequence,
        excluded=admitted.excluded,
    )
    return make_leaderboard(
        admitted.counts, models=models, evidence=evidence, minimum_votes=minimum_votes, both_bad=both_bad
    )


def read_votes(path: Path) -> PairCounts:
    """Add up a CSV file of votes; raises `InvalidRequest` naming the file and the column or the outcome."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            header = next(reader, [])
            missing = [column for column in _COLUMNS if column not in header]
            if missing:
                raise InvalidRequest(
                    f"{path} has no column {', '.join(missing)}; its first line names "
                    f"{', '.join(header) or 'nothing'}. A votes file has {', '.join(_COLUMNS)}.",
                    param="votes",
                )
            places = [header.index(column) for column in _COLUMNS]
            columns: tuple[list[str], list[str], list[str]] = ([], [], [])
            for row in reader:
                if not row:
                    continue
                if len(row) <= max(places):
                    raise InvalidRequest(
                        f"{path}, line {reader.line_num}: {len(row)} values; the header has {len(header)}.",
                        param="votes",
                    )
                for column, place in zip(columns, places, strict=True):
                    column.append(row[place])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest(
            f"{path} cannot be read as a CSV file in UTF-8: {error}", param="votes"
        ) from None
    return PairCounts.from_votes(*columns)


def show(board: Leaderboard, console: Console, *, address: str) -> None:
    """Print a leaderboard as a table with its method under it."""
    if not board.votes:
        console.print(
            f"No votes yet. Run `tiltyard up`, open {address} and compare two answers.", highlight=False
        )
    if board.rows:
        console.print(_table(board.rows, console.width))
    ratings, evidence = board.ratings, board.evidence
    notes = [
        (row.model.name, note) for row in board.rows for note in row.notes if not note.startswith("needs ")
    ]
    for name, note in notes:
        console.print(Text.assemble(("! ", "yellow"), (name, "bold"), f": {note}"))
    if len(ratings.components) > 1:
        console.print(
            Text(f"! votes fall into {len(ratings.components)} groups that no battle connects", "yellow")
        )
    window = "" if evidence.window == "all" else f" in the last {evidence.window[:-1]} days"
    lines = [
        f"{board.votes:,} vote{'' if board.votes == 1 else 's'}{window}, both bad "
        f"{'as a tie' if ratings.both_bad == 'tie' else 'left out'}, {board.minimum_votes:,} for a rank",
        f"method {ratings.method}, ruleset {evidence.ruleset}",
        board.digest,
    ]
    for reason, count in evidence.excluded.items():
        lines.insert(1, f"{count:,} left out: {reason.replace('_', ' ')}")
    console.print(Text("\n".join(lines), "dim"))


def _table(rows: tuple[LeaderboardRow, ...], width: int) -> Table:
    # A narrow terminal loses columns from the right, never digits.
    headings = ("rating", "±95%", "votes", "W / L / T", "both bad")[: 5 if width >= 100 else 3]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("range", justify="right", no_wrap=True, style="dim")
    table.add_column("model", overflow="ellipsis", no_wrap=True, min_width=12)
    provisional = any(row.votes_needed for row in rows)
    if provisional:
        table.add_column("", no_wrap=True, style="yellow")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        ranked = row.rank is not None
        numbers = (
            "–" if row.rating is None else f"{row.rating:.0f}",
            "–" if row.half_width is None else f"±{row.half_width:.0f}",
            f"{row.votes:,}",
            f"{row.wins:,} / {row.losses:,} / {row.ties:,}",
            f"{row.both_bad:,}",
        )
        table.add_row(
            str(row.rank) if ranked else Text("–", "dim"),
            f"{row.rank}–{row.rank_worst}" if ranked and row.rank != row.rank_worst else "",
            _name(row),
            *([_needs(row)] if provisional else []),
            *numbers[: len(headings)],
            style=None if ranked else "dim",
        )
    return table


def _name(row: LeaderboardRow) -> Text:
    name = Text(row.model.name, "bold" if row.rank is not None else "")
    if row.model.superseded:
        name.append(f" (earlier version {row.model.key[7:15]})", "dim")
    return name


def _needs(row: LeaderboardRow) -> str:
    if not row.votes_needed:
        return ""
    return f"needs {row.votes_needed:,} more vote{'' if row.votes_needed == 1 else 's'}"

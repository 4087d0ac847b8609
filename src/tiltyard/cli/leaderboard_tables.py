"""What `tiltyard leaderboard` prints: the board with its method under it, Elo with its spread, and pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiltyard.identity.canonical import Json
from tiltyard.rating.elo import EloSpread
from tiltyard.rating.leaderboard import DECIMALS, Leaderboard, LeaderboardRow
from tiltyard.rating.matrix import PairCheck
from tiltyard.rating.options import Rated
from tiltyard.rating.slices import Period

_PIPE_WIDTH = 120  # characters, where the output is no terminal that has a width


def show_elo(spread: EloSpread, names: Mapping[str, str], as_json: bool) -> None:
    """Print online Elo with what another order of the same votes would have given."""
    order = np.argsort(-spread.median, kind="stable").tolist()
    if as_json:
        rows = [
            {
                "model": spread.models[node],
                "rating": round(float(spread.as_they_came[node]), DECIMALS),
                "reversed": round(float(spread.reversed[node]), DECIMALS),
                "shuffled_deviation": round(float(spread.shuffled_deviation[node]), DECIMALS),
                "median": round(float(spread.median[node]), DECIMALS),
                "lower": round(float(spread.lower[node]), DECIMALS),
                "upper": round(float(spread.upper[node]), DECIMALS),
            }
            for node in order
        ]
        click.echo(json.dumps({"seed": spread.seed, "runs": spread.runs, "rows": rows}, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("model", overflow="ellipsis", no_wrap=True, min_width=12)
    for heading in ("median", "95%", "as they came", "backwards", "sd of orders"):
        table.add_column(heading, justify="right", no_wrap=True)
    for node in order:
        key = spread.models[node]
        table.add_row(
            names.get(key, key),
            f"{spread.median[node]:.0f}",
            f"{spread.lower[node]:.0f}–{spread.upper[node]:.0f}",
            f"{spread.as_they_came[node]:.0f}",
            f"{spread.reversed[node]:.0f}",
            f"{spread.shuffled_deviation[node]:.1f}",
        )
    console = console_of_output()
    console.print(table)
    console.print(Text(f"online Elo, {spread.runs} orders and resamples, seed {spread.seed}", "dim"))


def show_history(windows: Sequence[tuple[Period, Rated]], names: Mapping[str, str], as_json: bool) -> None:
    """Print the ratings of each window, a row a window; models by their last rating."""
    if as_json:
        body = [
            {
                "start_us": period.start_us,
                "end_us": period.end_us,
                "votes": rated.counts.votes,
                "method": rated.ratings.method,
                "ratings": {
                    model: [round(float(value), DECIMALS) for value in bounds]
                    for model, votes, *bounds in zip(
                        rated.ratings.models,
                        rated.ratings.votes.tolist(),
                        rated.ratings.lower,
                        rated.ratings.ratings,
                        rated.ratings.upper,
                        strict=True,
                    )
                    if votes
                },
            }
            for period, rated in windows
        ]
        click.echo(json.dumps(body, ensure_ascii=False, indent=2))
        return
    console = console_of_output()
    if not windows:
        console.print("No votes in any window.")
        return
    last = windows[-1][1].ratings
    order = np.argsort(-np.nan_to_num(last.ratings, nan=-np.inf), kind="stable").tolist()
    shown = order[: max(1, (console.width - 22) // 16)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("until (UTC)", no_wrap=True)
    table.add_column("votes", justify="right", no_wrap=True)
    for node in shown:
        table.add_column(names.get(last.models[node], last.models[node]), justify="right", max_width=14)
    for period, rated in windows:
        ratings = rated.ratings
        half = ratings.upper - ratings.ratings
        cells = [
            f"{ratings.ratings[node]:.0f} ±{half[node]:.0f}" if ratings.votes[node] else "–" for node in shown
        ]
        table.add_row(period.until, f"{rated.counts.votes:,}", *cells)
    console.print(table)
    console.print(Text(f"method {last.method}, each window alone", "dim"))


def console_of_output() -> Console:
    """Return a console as wide as the terminal, or of a fixed width where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


def pairs_table(title: str, pairs: Sequence[PairCheck], names: Mapping[str, str]) -> Table:
    """Set observed beside predicted for some pairs."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for heading in ("model", "rival"):
        table.add_column(heading, overflow="ellipsis", no_wrap=True, min_width=12)
    for heading in ("votes", "observed", "predicted", "surprise", "se of difference"):
        table.add_column(heading, justify="right", no_wrap=True)
    for pair in pairs:
        table.add_row(
            names.get(pair.model, pair.model),
            names.get(pair.rival, pair.rival),
            f"{pair.votes:,}",
            "–" if pair.observed is None else f"{pair.observed:.0%}",
            f"{pair.predicted:.0%}",
            f"{pair.surprise:+.1f}",
            f"{pair.standard_error:.1f}",
        )
    return table


def _found(details: Mapping[str, Json]) -> list[str]:
    lines = []
    effects = details.get("effects")
    for effect in effects if isinstance(effects, list) else []:
        if isinstance(effect, dict):
            lines.append(
                f"{effect['name']}: {effect['coefficient']:+.3f} ({effect['lower']:+.3f} to {effect['upper']:+.3f}) "
                f"log-odds per standard deviation, {effect['points']:+.1f} points"
            )
    strength = details.get("tie_strength")
    if isinstance(strength, list):
        lines.append(f"tie strength {strength[0]:.3f} ({strength[1]:.3f} to {strength[2]:.3f})")
    drawn = details.get("bootstrap")
    if isinstance(drawn, dict):
        lines.append(
            f"{drawn['resamples']} resamples of seed {drawn['seed']}; their bounds are in the output of --json"
        )
    if "effective_votes" in details:
        voters = f", intervals by {details['voters']:,} voters" if "voters" in details else ""
        lines.append(f"worth {details['effective_votes']:,.0f} equal votes{voters}")
    return lines


def show(board: Leaderboard, console: Console, *, address: str, simultaneous: bool = False) -> None:
    """Print a leaderboard as a table with its method under it; `simultaneous` adds ranges for all models at once."""
    if not board.votes:
        console.print(
            f"No votes yet. Run `tiltyard up`, open {address} and compare two answers.", highlight=False
        )
    if board.rows:
        console.print(_table(board.rows, console.width, board.ratings.confidence, together=simultaneous))
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
        *_found(board.details),
        board.digest,
    ]
    for reason, count in evidence.excluded.items():
        lines.insert(1, f"{count:,} left out: {reason.replace('_', ' ')}")
    console.print(Text("\n".join(lines), "dim"))


def _table(rows: tuple[LeaderboardRow, ...], width: int, confidence: float, *, together: bool) -> Table:
    # A narrow terminal loses columns from the right, never digits.
    headings = ("rating", f"±{confidence:.0%}", "votes", "W / L / T", "both bad")[: 5 if width >= 100 else 3]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("range", justify="right", no_wrap=True, style="dim")
    if together:
        table.add_column("at once", justify="right", no_wrap=True, style="dim")
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
            *([_range(row.ranks_simultaneous)] if together else []),
            _name(row),
            *([_needs(row)] if provisional else []),
            *numbers[: len(headings)],
            style=None if ranked else "dim",
        )
    return table


def _range(ranks: tuple[int, int] | None) -> str:
    return "" if ranks is None else f"{ranks[0]}–{ranks[1]}" if ranks[0] != ranks[1] else str(ranks[0])


def _name(row: LeaderboardRow) -> Text:
    name = Text(row.model.name, "bold" if row.rank is not None else "")
    if row.model.superseded:
        name.append(f" (earlier version {row.model.key[7:15]})", "dim")
    return name


def _needs(row: LeaderboardRow) -> str:
    if not row.votes_needed:
        return ""
    return f"needs {row.votes_needed:,} more vote{'' if row.votes_needed == 1 else 's'}"

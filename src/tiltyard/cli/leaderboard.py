"""`tiltyard leaderboard`: compute the leaderboard from the log, or from a votes file, and print it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Unpack

import click
from click.core import ParameterSource

from tiltyard.arena import publication
from tiltyard.arena.boards import Boards, Question, board_of_sources
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.cli.leaderboard_options import (
    Given,
    question_of,
    question_options,
    source_options,
    sources_of,
)
from tiltyard.cli.leaderboard_sensors import show_sensors
from tiltyard.cli.leaderboard_tables import console_of_output, pairs_table, show, show_elo, show_history
from tiltyard.cli.rulesets import ruleset_of
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.cli.vote_files import read_votes
from tiltyard.errors import Conflict, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.rating.admission import MICROSECONDS_PER_DAY
from tiltyard.rating.elo import EloConstants, elo_spread
from tiltyard.rating.leaderboard import Evidence, Leaderboard, lay_out
from tiltyard.rating.matrix import win_matrix
from tiltyard.rating.options import Rated, rate, rate_over_time
from tiltyard.rating.slices import Period, where
from tiltyard.rating.votes import Unknown, Votes

FILE_RULESET = "every-row-of-a-file/1"


@click.group(invoke_without_command=True)
@question_options
@click.option(
    "--votes", "votes_file", type=click.Path(path_type=Path), help="Rate a CSV file instead of the log."
)
@source_options
@click.option(
    "--unknown",
    type=click.Choice(["refuse", "count"]),
    default="refuse",
    show_default=True,
    help="Outcomes of a file that nobody defined: refuse the file, or leave them out and count them.",
)
@click.option(
    "--connected", is_flag=True, help="Refuse votes that fall into groups which no battle connects."
)
@click.option("--simultaneous", is_flag=True, help="Show rank ranges that hold for all models at once.")
@click.option(
    "--rolling",
    type=click.IntRange(1),
    metavar="DAYS",
    help="Print ratings over time: windows of so many days that end at midnights UTC.",
)
@click.option(
    "--step", type=click.IntRange(1), default=7, show_default=True, help="Days between those windows."
)
@click.option(
    "--pairs", type=click.IntRange(1), help="Print so many least connected and most surprising pairs."
)
@click.option(
    "--sensors",
    is_flag=True,
    help="Print speed, memory, cost, refusals and other sources beside each rating of the log.",
)
@click.option(
    "--elo", is_flag=True, help="Print online Elo instead, and how far the order of votes moves it."
)
@click.option(
    "--elo-constants",
    default="k=4,base=10,scale=400,initial=1000",
    show_default=True,
    help="Any of them; the rest stay.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what GET /api/leaderboard answers.")
@click.pass_context
def command(
    context: click.Context,
    *,
    data: Path | None,
    config: Path | None,
    votes_file: Path | None,
    sources: tuple[str, ...],
    judge: str | None,
    same_names: bool,
    unknown: Unknown,
    connected: bool,
    simultaneous: bool,
    rolling: int | None,
    step: int,
    pairs: int | None,
    sensors: bool,
    elo: bool,
    elo_constants: str,
    as_json: bool,
    **given: Unpack[Given],
) -> None:
    """Print ratings, intervals and ranks that the votes give.

    No server is needed: the log is read directly. A votes file has the columns model_a, model_b and winner
    (model_a, model_b, tie, tie (bothbad)); other outcomes are refused. Columns voter, tstamp (seconds) and
    pair_probability are used where an option needs them, all others are traits for --where and --control.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    settings = load_settings(config, data_dir=data)
    if sources and votes_file is not None:
        raise InvalidRequest("--source and --votes are two places; give one of them.", param="source")
    chosen = sources_of(given, sources, judge, same_names)
    question = question_of(settings, given)
    now_us = time.time_ns() // 1000
    if chosen is not None:
        with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
            board, rated, votes, *_ = board_of_sources(log, chosen, question)
    elif votes_file is None:
        with opened(settings) as boards:
            board, rated, votes, *_ = boards.ask(question, now_us=now_us)
    else:
        board, rated, votes = board_of_file(votes_file, question, unknown)
    names = {row.model.key: row.model.name for row in board.rows}
    seed, options = question.options.seed, question.options
    if elo:
        spread = elo_spread(
            where(votes, options.conditions), seed=seed, constants=parse_constants(elo_constants)
        )
        show_elo(spread, names, as_json)
        return
    if rolling is not None:
        windows = rate_over_time(
            votes, options, days=rolling, step_days=step, minimum_votes=question.minimum_votes
        )
        show_history(list(windows), names, as_json)
        return
    if connected:
        rated.ratings.refuse_unconnected()
    if sensors:
        if votes_file is not None or sources:
            raise InvalidRequest(
                "votes from a file have no generations to measure; leave out --sensors.", param="sensors"
            )
        show_sensors(settings, board, as_json)
        return
    matrix = win_matrix(rated.counts, rated.ratings, tie_strength=rated.tie_strength) if pairs else None
    if as_json:
        body = board.to_json()
        if matrix is not None and pairs:
            body["worst_connected"] = [asdict(pair) for pair in matrix.worst_connected(pairs)]
            body["most_surprising"] = [asdict(pair) for pair in matrix.most_surprising(pairs)]
        click.echo(json.dumps(body, ensure_ascii=False, indent=2))
        return
    console = console_of_output()
    show(board, console, address=f"{_address(settings)}/", simultaneous=simultaneous)
    if matrix is not None and pairs:
        console.print(pairs_table("least connected", matrix.worst_connected(pairs), names))
        console.print(pairs_table("most surprising", matrix.most_surprising(pairs), names))


@command.command()
@question_options
@source_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def publish(
    *,
    data: Path | None,
    config: Path | None,
    sources: tuple[str, ...],
    judge: str | None,
    same_names: bool,
    as_json: bool,
    **given: Unpack[Given],
) -> None:
    """Freeze a leaderboard of the log under its digest, for good.

    Every number, the method, the rules and the range of votes go into one event. `tiltyard replay leaderboard DIGEST`
    computes it again from the raw events; the page of the arena shows it at /leaderboard/DIGEST.
    """
    settings = load_settings(config, data_dir=data)
    chosen = sources_of(given, sources, judge, same_names)
    question = question_of(settings, given)
    with opened(settings) as boards:
        board = (
            boards.ask(question, now_us=time.time_ns() // 1000)
            if chosen is None
            else board_of_sources(boards.recorded.log, chosen, question)
        ).leaderboard
        if not board.votes:
            raise InvalidRequest(
                "no vote counts under these options, so there is nothing to publish.", param="votes"
            )
        try:
            published = publication.publish(boards.recorded.log, board, source="tiltyard/cli")
            new = True
        except Conflict:
            published = publication.find(boards.recorded.log, board.digest)
            new = False
    hexadecimal = board.digest.removeprefix("sha256:")
    page = f"{_address(settings)}/leaderboard/{hexadecimal}"
    if as_json:
        click.echo(
            json.dumps(
                {"digest": board.digest, "sequence": published.sequence, "page": page, "new": new}, indent=2
            )
        )
        return
    click.echo(board.digest)
    click.echo(
        f"{board.votes:,} votes, {len(board.rows)} models, event {published.sequence}"
        + ("" if new else ", published before")
    )
    click.echo(f"page    {page}")
    click.echo(f"replay  tiltyard replay leaderboard {hexadecimal}")


def _refuse_options_before(context: click.Context) -> None:
    for name in context.params:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"options go after {context.invoked_subcommand}: tiltyard leaderboard {context.invoked_subcommand} "
                f"--{name.replace('_', '-')} …"
            )


def _address(settings: Settings) -> str:
    return f"http://{settings.file.server.host}:{settings.file.server.port}"


@contextmanager
def opened(settings: Settings) -> Iterator[Boards]:
    """Open the log for boards; a data directory without one is an error that says what to do."""
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        yield Boards(RecordedVotes(log, ruleset_of(settings)))


def board_of_file(path: Path, question: Question, unknown: Unknown) -> tuple[Leaderboard, Rated, Votes]:
    """Rate a votes file; its window ends just after its newest vote, when ages are taken. Raises `InvalidRequest`."""
    votes = read_votes(path, unknown=unknown)
    window = question.window
    if window.days is not None:
        if votes.time_us is None:
            raise InvalidRequest("this votes file has no times; leave out --window.", param="window")
        end = int(votes.time_us.max(initial=0)) + 1
        votes = Period(end - window.days * MICROSECONDS_PER_DAY, end).of(votes)
    now_us = int(votes.time_us.max(initial=0)) if votes.time_us is not None else 0
    rated = rate(votes, question.options, now_us=now_us, minimum_votes=question.minimum_votes)
    board = lay_out(
        rated.counts,
        rated.ratings,
        evidence=Evidence(
            ruleset=FILE_RULESET,
            window=str(window),
            excluded={f"unknown outcome {label!r}": count for label, count in votes.unknown.items()},
            data_digest=votes.digest,
        ),
        minimum_votes=question.minimum_votes,
        simultaneous=question.simultaneous,
        details=rated.details,
    )
    return board, rated, votes


def parse_constants(text: str) -> EloConstants:
    """Read `k=32,initial=1500`; raises `InvalidRequest` naming `elo-constants`.

    >>> parse_constants("k=32")
    EloConstants(k=32.0, base=10.0, scale=400.0, initial=1000.0)
    """
    known = [field.name for field in fields(EloConstants)]
    given = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            given[name] = float(value)
        except ValueError:
            given[""] = 0.0
    if not given.keys() <= set(known):
        raise InvalidRequest(
            f"{text[:80]!r} are no constants of Elo; write {','.join(f'{name}=NUMBER' for name in known)}, or "
            "some of them.",
            param="elo-constants",
        )
    return EloConstants(**given)

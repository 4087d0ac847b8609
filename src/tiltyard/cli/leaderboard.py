"""`tiltyard leaderboard`: compute the leaderboard from the log, or from a votes file, and print it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import click

from tiltyard.arena.importing.board import DECLARED, declared_key, imported_board
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.cli.answer_traits import LACKING, answer_traits
from tiltyard.cli.leaderboard_tables import console_of_output, pairs_table, show, show_elo, show_history
from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.rulesets import ruleset_of
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.cli.vote_files import read_votes
from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.queries import VoteRow
from tiltyard.identity.canonical import Json
from tiltyard.rating.admission import MICROSECONDS_PER_DAY, Window
from tiltyard.rating.counts import BothBad
from tiltyard.rating.elo import EloConstants, elo_spread
from tiltyard.rating.leaderboard import Evidence, lay_out
from tiltyard.rating.matrix import win_matrix
from tiltyard.rating.options import RatingOptions, Ties, Weight, expanded, rate, rate_over_time
from tiltyard.rating.outcomes import EVENT_LABELS
from tiltyard.rating.rated_models import RatedModel, rated_models
from tiltyard.rating.slices import Condition, Period, where
from tiltyard.rating.style import SPEED, STYLE
from tiltyard.rating.votes import Unknown, Votes

FILE_RULESET = "every-row-of-a-file/1"


@click.command()
@data_option
@config_option
@click.option(
    "--votes", "votes_file", type=click.Path(path_type=Path), help="Rate a CSV file instead of the log."
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    help="Rate an imported source instead of the arena's own votes; may be given several times.",
)
@click.option(
    "--judge", help="With --source: rate the verdicts of this judge model instead of people's votes."
)
@click.option(
    "--same-names", is_flag=True, help="With --source: take equal names in several sources for one model."
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
@click.option(
    "--ties",
    type=click.Choice(["half", "davidson"]),
    default="half",
    show_default=True,
    help="Ties as half wins, or as an outcome with a strength of its own.",
)
@click.option("--anchor", metavar="MODEL=POINTS", help="Shift all ratings so that MODEL has POINTS.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of every interval.")
@click.option(
    "--where", "conditions", multiple=True, metavar="CONDITION", help="Such as language=en or 'turns>=2'."
)
@click.option(
    "--weight",
    "weights",
    multiple=True,
    help="inverse-probability, pair-balance, half-life=30d, voter-cap=50; several multiply.",
)
@click.option(
    "--by-voter", is_flag=True, help="Intervals that know that one person's votes resemble each other."
)
@click.option(
    "--control",
    "controls",
    multiple=True,
    help="style, speed, left_side, or NAME for columns NAME_a and NAME_b: ratings where both sides are equal in it.",
)
@click.option(
    "--ridge", type=float, default=0.0, show_default=True, help="1 / variance of a prior on controls."
)
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
@click.option("--simultaneous", is_flag=True, help="Add rank ranges that hold for all models at once.")
@click.option(
    "--bootstrap", type=click.IntRange(2), help="Add bootstrap intervals of so many seeded resamples."
)
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
    "--elo", is_flag=True, help="Print online Elo instead, and how far the order of votes moves it."
)
@click.option(
    "--elo-constants",
    default="k=4,base=10,scale=400,initial=1000",
    show_default=True,
    help="Any of them; the rest stay.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of resamples, and of Elo's orders."
)
@click.option("--json", "as_json", is_flag=True, help="Print what GET /api/leaderboard answers.")
def command(  # noqa: PLR0917  # click passes names
    data: Path | None,
    config: Path | None,
    votes_file: Path | None,
    sources: tuple[str, ...],
    judge: str | None,
    same_names: bool,
    window: str,
    both_bad: BothBad,
    minimum_votes: int | None,
    ties: Ties,
    anchor: str | None,
    confidence: float,
    conditions: tuple[str, ...],
    weights: tuple[str, ...],
    by_voter: bool,
    controls: tuple[str, ...],
    ridge: float,
    unknown: Unknown,
    connected: bool,
    simultaneous: bool,
    bootstrap: int | None,
    rolling: int | None,
    step: int,
    pairs: int | None,
    elo: bool,
    elo_constants: str,
    seed: int,
    as_json: bool,
) -> None:
    """Print ratings, intervals and ranks that the votes give.

    No server is needed: the log is read directly. A votes file has the columns model_a, model_b and winner
    (model_a, model_b, tie, tie (bothbad)); other outcomes are refused. Columns voter, tstamp (seconds) and
    pair_probability are used where an option needs them, all others are traits for --where and --control.
    """
    settings = load_settings(config, data_dir=data)
    if sources and votes_file is not None:
        raise InvalidRequest("--source and --votes are two places; give one of them.", param="source")
    if (judge is not None or same_names) and not sources:
        raise InvalidRequest(
            "--judge and --same-names say how to read --source; give that too.", param="source"
        )
    options = RatingOptions(
        both_bad=both_bad,
        ties=ties,
        anchor=None if anchor is None else _anchor(anchor, sources, same_names),
        confidence=confidence,
        conditions=tuple(Condition.parse(text) for text in conditions),
        weights=tuple(Weight.parse(text) for text in weights),
        by_voter=by_voter,
        controls=controls,
        ridge=ridge,
        bootstrap=bootstrap or 0,
        seed=seed,
    )
    now_us = time.time_ns() // 1000
    if sources:
        source = read_sources(settings, sources, judge, same_names, Window.parse(window))
    elif votes_file is not None:
        source = read_file(votes_file, Window.parse(window), unknown)
    else:
        source = read_log(settings, Window.parse(window), now_us, controls)
    if elo:
        spread = elo_spread(
            where(source.votes, options.conditions), seed=seed, constants=parse_constants(elo_constants)
        )
        show_elo(spread, {model.key: model.name for model in source.models}, as_json)
        return
    if rolling is not None:
        windows = list(rate_over_time(source.votes, options, days=rolling, step_days=step))
        show_history(windows, {model.key: model.name for model in source.models}, as_json)
        return
    # A vote's age is taken when the newest of a file was cast, and now for the arena's own votes, which go on.
    times = source.votes.time_us
    if (votes_file is not None or sources) and times is not None and len(times):
        now_us = int(times.max())
    rated = rate(source.votes, options, now_us=now_us)
    if connected:
        rated.ratings.refuse_unconnected()
    board = lay_out(
        rated.counts,
        rated.ratings,
        models=source.models,
        evidence=source.evidence,
        minimum_votes=minimum_votes or settings.file.arena.minimum_votes,
        simultaneous=simultaneous,
        details={**rated.details, **source.details},
    )
    matrix = win_matrix(rated.counts, rated.ratings, tie_strength=rated.tie_strength) if pairs else None
    if as_json:
        body = board.to_json()
        if matrix is not None and pairs:
            body["worst_connected"] = [asdict(pair) for pair in matrix.worst_connected(pairs)]
            body["most_surprising"] = [asdict(pair) for pair in matrix.most_surprising(pairs)]
        click.echo(json.dumps(body, ensure_ascii=False, indent=2))
        return
    console = console_of_output()
    show(board, console, address=f"http://{settings.file.server.host}:{settings.file.server.port}/")
    if matrix is not None and pairs:
        names = {row.model.key: row.model.name for row in board.rows}
        console.print(pairs_table("least connected", matrix.worst_connected(pairs), names))
        console.print(pairs_table("most surprising", matrix.most_surprising(pairs), names))


class Source(NamedTuple):
    """Votes, and what a leaderboard says about where they came from."""

    votes: Votes
    models: Sequence[RatedModel]
    evidence: Evidence
    details: Mapping[str, Json] = MappingProxyType({})
    """What the board says of its sources."""


def read_sources(
    settings: Settings, sources: Sequence[str], judge: str | None, same_names: bool, window: Window
) -> Source:
    """Read imported votes, or verdicts of a judge; raises `NotFound` for a source that is not there."""
    with EventLog.open(settings.log_path, keys=settings.keys_path, create=False) as log:
        board = imported_board(log, sources, judge=judge, same_names=same_names, window=window)
    evidence = Evidence(
        ruleset=board.ruleset,
        window=str(window),
        first_sequence=board.first_sequence,
        last_sequence=board.last_sequence,
        excluded=board.excluded,
    )
    return Source(board.votes, board.models, evidence, board.details)


def read_log(settings: Settings, window: Window, now_us: int, controls: tuple[str, ...] = ()) -> Source:
    """Read the votes of a log; a data directory without one is an error that says what to do."""
    asked = [name for name in expanded(controls) if name in {*STYLE, *SPEED}]
    with EventLog.open(settings.log_path, keys=settings.keys_path, create=False) as log:
        recorded = RecordedVotes(log, ruleset_of(settings))
        models = rated_models(log.identities())
        admitted = recorded.admit(window, now_us)
        left_out = recorded.judge().reasons
        counted: list[VoteRow] = [
            row
            for row in recorded.votes()
            if row.sequence not in left_out and window.holds(row.time_us, now_us)
        ]
        traits: dict[str, list[float]] = {}
        excluded = dict(admitted.excluded)
        if asked:
            told, traits = answer_traits(log, counted, asked)
            if len(told) < len(counted):
                excluded[LACKING] = len(counted) - len(told)
            counted = told
    votes = Votes.from_columns(
        [row.behaviour_a for row in counted],
        [row.behaviour_b for row in counted],
        [row.choice for row in counted],
        vocabulary=EVENT_LABELS,
        models=[model.key for model in models],
        time_us=[row.time_us for row in counted],
        voter=[row.voter for row in counted],
        pair_probability=[row.pair_probability for row in counted],
        traits={"turns": [float(row.turns) for row in counted], **traits},
    )
    evidence = Evidence(
        ruleset=admitted.ruleset,
        window=str(window),
        first_sequence=admitted.first_sequence,
        last_sequence=admitted.last_sequence,
        excluded=excluded,
    )
    return Source(votes, models, evidence)


def read_file(path: Path, window: Window, unknown: Unknown) -> Source:
    """Read a votes file; its window ends just after its newest vote. Raises `InvalidRequest`."""
    votes = read_votes(path, unknown=unknown)
    if window.days is not None:
        if votes.time_us is None:
            raise InvalidRequest("this votes file has no times; leave out --window.", param="window")
        end = int(votes.time_us.max(initial=0)) + 1
        votes = Period(end - window.days * MICROSECONDS_PER_DAY, end).of(votes)
    excluded = {f"unknown outcome {label!r}": count for label, count in votes.unknown.items()}
    return Source(votes, [], Evidence(ruleset=FILE_RULESET, window=str(window), excluded=excluded))


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


def _anchor(text: str, sources: Sequence[str], same_names: bool) -> tuple[str, float]:
    name, _, points = text.rpartition("=")
    if sources and not name.startswith(DECLARED):
        name = declared_key("" if same_names else sources[0], name)
    try:
        return name, float(points)
    except ValueError:
        raise InvalidRequest(
            f"the anchor is {text[:80]!r}; write MODEL=POINTS, such as mixtral-8x7b-instruct-v0.1=1114.",
            param="anchor",
        ) from None

"""What decides the numbers of a board, as options that several commands take, and the question they ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypedDict

import click

from tiltyard.arena.boards import Question, Sources
from tiltyard.arena.importing.board import DECLARED, declared_key
from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.settings import Settings
from tiltyard.errors import InvalidRequest
from tiltyard.rating.admission import Window
from tiltyard.rating.counts import BothBad
from tiltyard.rating.options import RatingOptions, Ties, Weight, anchor_of
from tiltyard.rating.slices import Condition


def question_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that decide the numbers of a board of the log."""
    for add in reversed(_QUESTION_OPTIONS):
        command = add(command)
    return command


_QUESTION_OPTIONS: Final = (
    data_option,
    config_option,
    click.option("--window", default="all", show_default=True, help="'all', or the last days, such as 30d."),
    click.option(
        "--both-bad",
        type=click.Choice(["tie", "drop"]),
        default="tie",
        show_default=True,
        help="What a vote for 'both bad' counts as.",
    ),
    click.option(
        "--minimum-votes", type=click.IntRange(1), help="Votes that a rank needs; else as in tiltyard.toml."
    ),
    click.option(
        "--ties",
        type=click.Choice(["half", "davidson"]),
        default="half",
        show_default=True,
        help="Ties as half wins, or as an outcome with a strength of its own.",
    ),
    click.option("--anchor", metavar="MODEL=POINTS", help="Shift all ratings so that MODEL has POINTS."),
    click.option("--confidence", type=float, default=0.95, show_default=True, help="Of every interval."),
    click.option(
        "--where",
        "conditions",
        multiple=True,
        metavar="CONDITION",
        help="Such as language=en or 'turns>=2'.",
    ),
    click.option(
        "--weight",
        "weights",
        multiple=True,
        help="inverse-probability, pair-balance, half-life=30d, voter-cap=50; several multiply.",
    ),
    click.option(
        "--by-voter", is_flag=True, help="Intervals that know that one person's votes resemble each other."
    ),
    click.option(
        "--control",
        "controls",
        multiple=True,
        help="style, speed, left_side, or NAME for columns NAME_a and NAME_b: ratings where both sides are equal in it.",
    ),
    click.option(
        "--ridge", type=float, default=0.0, show_default=True, help="1 / variance of a prior on controls."
    ),
    click.option(
        "--bootstrap", type=click.IntRange(2), help="Add bootstrap intervals of so many seeded resamples."
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Of resamples, and of Elo's orders.",
    ),
)


def source_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that choose imported votes in place of the arena's own."""
    for add in reversed(_SOURCE_OPTIONS):
        command = add(command)
    return command


_SOURCE_OPTIONS: Final = (
    click.option(
        "--source",
        "sources",
        multiple=True,
        help="Rate an imported source instead of the arena's own votes; may be given several times.",
    ),
    click.option(
        "--judge", help="With --source: rate the verdicts of this judge model instead of people's votes."
    ),
    click.option(
        "--same-names", is_flag=True, help="With --source: take equal names in several sources for one model."
    ),
)


class Given(TypedDict):
    """What `question_options` pass, by name."""

    window: str
    both_bad: BothBad
    minimum_votes: int | None
    ties: Ties
    anchor: str | None
    confidence: float
    conditions: tuple[str, ...]
    weights: tuple[str, ...]
    by_voter: bool
    controls: tuple[str, ...]
    ridge: float
    bootstrap: int | None
    seed: int


def question_of(settings: Settings, given: Given) -> Question:
    """Put options in one value; raises `InvalidRequest` naming the option that cannot be read."""
    anchor = given["anchor"]
    return Question(
        options=RatingOptions(
            both_bad=given["both_bad"],
            ties=given["ties"],
            anchor=None if anchor is None else anchor_of(anchor),
            confidence=given["confidence"],
            conditions=tuple(Condition.parse(text) for text in given["conditions"]),
            weights=tuple(Weight.parse(text) for text in given["weights"]),
            by_voter=given["by_voter"],
            controls=given["controls"],
            ridge=given["ridge"],
            bootstrap=given["bootstrap"] or 0,
            seed=given["seed"],
        ),
        window=Window.parse(given["window"]),
        minimum_votes=given["minimum_votes"] or settings.file.arena.minimum_votes,
    )


def sources_of(given: Given, sources: tuple[str, ...], judge: str | None, same_names: bool) -> Sources | None:
    """Put the source options in one value; an anchor gets the key that its name has there. Raises `InvalidRequest`."""
    if not sources:
        if judge is not None or same_names:
            raise InvalidRequest(
                "--judge and --same-names say how to read --source; give that too.", param="source"
            )
        return None
    if (anchor := given["anchor"]) is not None and not anchor.startswith(DECLARED):
        given["anchor"] = declared_key("" if same_names else sources[0], anchor)
    return Sources(sources, judge, same_names)

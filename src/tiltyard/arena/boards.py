"""The leaderboard of a log: one question, one log position, one answer; what was computed is kept while it holds.

::

    boards = Boards(RecordedVotes(log, ruleset), minimum_votes=10)
    board = boards.ask(Question(minimum_votes=10), now_us=now_us)
    board.leaderboard.rows
    boards.ask(…, read_to=board.leaderboard.evidence.question["read_to"])   # the same again, whatever came later

A question that depends on time (a window, votes that fade) is asked of a moment. Everything that decides a number goes
into `Evidence.question`, from which `Boards.again` asks once more.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final, NamedTuple

from pydantic import Field, ValidationError

from tiltyard.arena.answer_traits import LACKING, AnswerTraits
from tiltyard.arena.importing.board import imported_board
from tiltyard.arena.recorded_votes import RecordedVoteRow, RecordedVotes
from tiltyard.errors import InvalidRequest
from tiltyard.events.import_replay import imports_from_events
from tiltyard.events.imported import ImportQueries
from tiltyard.identity.canonical import Json
from tiltyard.identity.manifest import Frozen
from tiltyard.rating.admission import MICROSECONDS_PER_DAY, Window
from tiltyard.rating.leaderboard import Evidence, Leaderboard, lay_out
from tiltyard.rating.options import Rated, RatingOptions, expanded, rate, rate_over_time
from tiltyard.rating.outcomes import EVENT_LABELS
from tiltyard.rating.rated_models import RatedModel, rated_models
from tiltyard.rating.ruleset import REASONS, Judged, Ruleset
from tiltyard.rating.slices import Condition, Period
from tiltyard.rating.style import SPEED, STYLE
from tiltyard.rating.votes import Votes

MINUTE_US: Final = 60_000_000
MOST_WINDOWS: Final = 40
"""In a history: more would not be seen on a screen."""
_KEPT_BOARDS: Final = 64
LENGTH: Final = "length"
"""Trait of a vote: tokens of its two answers, their mean."""


@dataclass(frozen=True)
class Question:
    """What a reader wants to know; hashable, so that an answer can be kept for it."""

    options: RatingOptions = field(default_factory=RatingOptions)
    window: Window = field(default_factory=Window)
    minimum_votes: int = 10
    simultaneous: bool = True
    """Whether rank ranges that hold for all models at once are computed."""

    @property
    def depends_on_time(self) -> bool:
        """Whether the answer changes when only time passes."""
        return self.window.days is not None or self.options.depends_on_time


@dataclass(frozen=True)
class Sources:
    """Imported votes in place of the arena's own."""

    names: tuple[str, ...]
    """Of the sources, as `tiltyard votes list` shows them."""
    judge: str | None = None
    """Rate the verdicts of this judge model instead of people's votes."""
    same_names: bool = False
    """Take equal names in several sources for one model."""
    imports: tuple[str, ...] | None = None
    """Only these imports, by id; `None`: all that are there."""


class Board(NamedTuple):
    """An answer, with what it was made of."""

    leaderboard: Leaderboard
    rated: Rated
    votes: Votes
    """The votes that count, before the conditions of a slice."""
    last_time_us: int
    """When the latest of them was cast; 0 without votes."""
    read_to: int
    """Log position up to which events were read."""


class History(NamedTuple):
    """Ratings over time: windows that roll, each rated alone."""

    days: int
    """Length of a window: 30, or fewer where the votes span no more than that."""
    step_days: int
    """From the end of one window to the end of the next."""
    windows: tuple[tuple[Period, Rated], ...]
    """Oldest first."""


class _Asked(Frozen):
    """`Evidence.question`, read back."""

    options: dict[str, object]
    window: str
    until_us: int | None
    minimum_votes: int
    simultaneous: bool
    read_to: int
    rules: dict[str, object] = Field(default_factory=dict)
    sources: tuple[str, ...] = ()
    judge: str | None = None
    same_names: bool = False
    imports: tuple[str, ...] | None = None


class Boards:
    """Answers questions about one log. Methods may be called from several threads; they block."""

    def __init__(self, recorded: RecordedVotes, *, minimum_votes: int = 10) -> None:
        self.recorded = recorded
        self.minimum_votes = minimum_votes
        self._answers = AnswerTraits(recorded.log)
        self._kept: OrderedDict[tuple[Question, int | None, int], Board] = OrderedDict()
        self._history: tuple[tuple[Question, str], History] | None = None
        """The one that was asked for last."""
        self._erasures = 0
        self._one_at_a_time = Lock()

    def ask(self, question: Question, *, now_us: int) -> Board:
        """Answer from all that the log says now; `now_us` ends the windows, in microseconds since 1970.

        A window ends with the minute that runs at `now_us`, so that a board can be named and kept for that minute.
        Raises `InvalidRequest` as `rate` and `lay_out` do.
        """
        until_us = -(-(now_us + 1) // MINUTE_US) * MINUTE_US if question.depends_on_time else None
        with self._one_at_a_time:  # whoever asks meanwhile wants the same: it is ready when the turn comes
            reading = self.recorded.read()
            if reading.erasures > self._erasures:
                self._answers.forget_words()
                self._erasures = reading.erasures
            position = reading.position
            key = question, until_us, position
            board = self._kept.get(key)
            if board is None:
                board = self._make(
                    question, until_us=until_us, read_to=position, ruleset=self.recorded.ruleset
                )
                self._kept[key] = board
                while len(self._kept) > _KEPT_BOARDS:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return board

    def history(self, question: Question, *, now_us: int) -> History:
        """Rate rolling windows of the votes that `ask` counts, at most `MOST_WINDOWS` of them."""
        board = self.ask(question, now_us=now_us)
        key = question, board.leaderboard.digest
        with self._one_at_a_time:
            if self._history is None or self._history[0] != key:
                self._history = key, history_of(board.votes, question)
            return self._history[1]

    def again(self, asked: Mapping[str, Json]) -> Board:
        """Ask once more what `Evidence.question` holds: the same events under the same rules.

        Raises `InvalidRequest` when this version cannot read the question.
        """
        try:
            known = _Asked.model_validate(asked)
            ruleset = Ruleset.model_validate(known.rules)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            raise InvalidRequest(
                f"this version cannot ask that question again: {name}: {first['msg']}", param=name
            ) from error
        options = asked["options"]
        question = Question(
            options=RatingOptions.from_json(options if isinstance(options, Mapping) else {}),
            window=Window.parse(known.window),
            minimum_votes=known.minimum_votes,
            simultaneous=known.simultaneous,
        )
        if known.sources:
            sources = Sources(known.sources, known.judge, known.same_names, known.imports)
            with imports_from_events(self.recorded.log, known.imports or ()) as raw:
                return board_of_sources(raw, sources, question)
        return self._make(question, until_us=known.until_us, read_to=known.read_to, ruleset=ruleset)

    def _make(self, question: Question, *, until_us: int | None, read_to: int, ruleset: Ruleset) -> Board:
        rows = self.recorded.votes(read_to=read_to)
        if until_us is not None:
            rows = [row for row in rows if row.time_us < until_us]
        judged = self.recorded.judged(rows, ruleset, read_to=read_to)
        models = rated_models(
            registered for place, registered in self.recorded.read().identities if place <= read_to
        )
        counted, excluded = _counted(rows, judged, question.window, until_us)
        asked = _answers_needed(question.options)
        traits: dict[str, list[float]] = {}
        if asked:
            told, traits = self._answers.of(counted, asked, read_to=read_to)
            if len(told) < len(counted):
                excluded[LACKING] = len(counted) - len(told)
            counted = told
            if LENGTH in asked:
                traits[LENGTH] = [
                    (a + b) / 2 for a, b in zip(traits[f"{LENGTH}_a"], traits[f"{LENGTH}_b"], strict=True)
                ]
        votes = votes_of(counted, models, traits)
        rated = rate(votes, question.options, now_us=until_us or 0, minimum_votes=question.minimum_votes)
        evidence = Evidence(
            ruleset=judged.ruleset.label,
            window=str(question.window),
            first_sequence=counted[0].sequence if counted else 0,
            last_sequence=counted[-1].sequence if counted else 0,
            excluded=excluded,
            data_digest=votes.digest,
            question={
                **_written(question, until_us=until_us, read_to=read_to),
                "rules": judged.ruleset.model_dump(mode="json"),
            },
        )
        leaderboard = lay_out(
            rated.counts,
            rated.ratings,
            models=models,
            evidence=evidence,
            minimum_votes=question.minimum_votes,
            simultaneous=question.simultaneous,
            details=rated.details,
        )
        last_time_us = max((row.time_us for row in counted), default=0)
        return Board(leaderboard, rated, votes, last_time_us, read_to)


def board_of_sources(log: ImportQueries, sources: Sources, question: Question) -> Board:
    """Rate imported votes; windows end and ages are taken when the newest of them was cast. Raises as `imported_board`."""
    read = imported_board(
        log,
        sources.names,
        judge=sources.judge,
        same_names=sources.same_names,
        window=question.window,
        imports=sources.imports,
    )
    votes = read.votes
    last_time_us = int(votes.time_us.max(initial=0)) if votes.time_us is not None else 0
    rated = rate(votes, question.options, now_us=last_time_us, minimum_votes=question.minimum_votes)
    evidence = Evidence(
        ruleset=read.ruleset,
        window=str(question.window),
        first_sequence=read.first_sequence,
        last_sequence=read.last_sequence,
        excluded=read.excluded,
        data_digest=votes.digest,
        question={
            **_written(question, until_us=None, read_to=read.last_sequence),
            "sources": list(sources.names),
            "judge": sources.judge,
            "same_names": sources.same_names,
            "imports": sorted(one.import_id for one in read.imports),
        },
    )
    leaderboard = lay_out(
        rated.counts,
        rated.ratings,
        models=read.models,
        evidence=evidence,
        minimum_votes=question.minimum_votes,
        simultaneous=question.simultaneous,
        details={**rated.details, **read.details},
    )
    return Board(leaderboard, rated, votes, last_time_us, read.last_sequence)


def _written(question: Question, *, until_us: int | None, read_to: int) -> dict[str, Json]:
    """Write what `Boards.again` reads."""
    return {
        "options": question.options.to_json(),
        "window": str(question.window),
        "until_us": until_us,
        "minimum_votes": question.minimum_votes,
        "simultaneous": question.simultaneous,
        "read_to": read_to,
    }


def history_of(votes: Votes, question: Question) -> History:
    """Rate rolling windows of votes that have times; resamples are left out.

    Windows end at midnights UTC and are half-open.
    """
    options = replace(question.options, bootstrap=0)
    times = votes.need_times()
    if not len(times):
        return History(30, 1, ())
    span = int(times.max() - times.min()) // MICROSECONDS_PER_DAY + 1
    days = next(days for least, days in ((45, 30), (12, 7), (0, 1)) if span > least)
    step_days = -(-max(span - days, 1) // (MOST_WINDOWS - 1))
    windows = tuple(
        rate_over_time(votes, options, days=days, step_days=step_days, minimum_votes=question.minimum_votes)
    )
    return History(days, step_days, windows)


def votes_of(
    rows: Sequence[RecordedVoteRow], models: Sequence[RatedModel], traits: Mapping[str, Sequence[float]]
) -> Votes:
    """Put rows in columns, with the traits that every recorded vote has: `turns`, `language` and `category`."""
    return Votes.from_columns(
        [row.behaviour_a for row in rows],
        [row.behaviour_b for row in rows],
        [row.choice for row in rows],
        vocabulary=EVENT_LABELS,
        models=[model.key for model in models],
        time_us=[row.time_us for row in rows],
        voter=[row.voter for row in rows],
        pair_probability=[row.pair_probability for row in rows],
        traits={
            "turns": [float(row.turns) for row in rows],
            "language": [row.language for row in rows],
            "category": [row.category for row in rows],
            **traits,
        },
    )


def _counted(
    rows: Sequence[RecordedVoteRow], judged: Judged, window: Window, until_us: int | None
) -> tuple[list[RecordedVoteRow], dict[str, int]]:
    """Split the votes in the window into those that count and the number of the others, by reason."""
    counted = []
    left_out: Counter[str] = Counter()
    for row in rows:
        if until_us is not None and not window.holds(row.time_us, until_us):
            continue
        reason = judged.reasons.get(row.sequence)
        if reason is None:
            counted.append(row)
        else:
            left_out[reason] += 1
    return counted, {reason: left_out[reason] for reason in REASONS if left_out[reason]}


def _answers_needed(options: RatingOptions) -> list[str]:
    """Name the traits of answers that the options use."""
    named = [name for name in expanded(options.controls) if name in {*STYLE, *SPEED}]
    for condition in options.conditions:
        if (name := _answer_trait(condition)) is not None:
            named.append(name)
    return list(dict.fromkeys(named))


def _answer_trait(condition: Condition) -> str | None:
    stem = condition.trait.removesuffix("_a").removesuffix("_b")
    return stem if stem in {*STYLE, *SPEED} else None

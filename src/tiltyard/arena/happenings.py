"""What the log says of how the arena runs: who was drawn, how answers ended, which battles came to nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from threading import Lock
from typing import Final

from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    BattleOpened,
    BattleTurnFinished,
    FinishReason,
    Side,
    VoteCast,
)
from tiltyard.rating.assignment import AssignmentTest, Drawn

NOT_STARTED: Final = "not_started"
"""Cause of a failure that no generation is recorded for: the model was not reached."""
BROKE_OFF: Final = "broke_off"
"""Cause of a failure whose generation ended without an error of its own: the arena stopped, or could not use it."""

TYPES: Final = (BattleOpened, BattleTurnFinished, VoteCast)


@dataclass
class AnswersOf:
    """How the answers of one model ended; an attempt of a turn is an answer of each side."""

    ended: Counter[FinishReason] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """By cause: a code of our errors, `NOT_STARTED` or `BROKE_OFF`."""
    voided: int = 0
    """Battles that came to nothing because its answer failed."""

    @property
    def answers(self) -> int:
        """All but those that somebody stopped, which say nothing of the model."""
        return sum(self.ended.values()) - self.ended["cancelled"]


@dataclass
class Happenings:
    """Sums over a stretch of the log."""

    opened: int = 0
    votes: int = 0
    left_votes: int = 0
    """Votes for side a."""
    decisive_votes: int = 0
    """Votes for either side."""
    attempts: int = 0
    """Turns answered, each attempt counted."""
    attempts_failed: int = 0
    """Those in which a side failed."""
    made_good: int = 0
    """Turns that failed and then were answered by both sides."""
    drawn_again: int = 0
    """Battles opened by a voter with the same first message as a battle that failed on them."""
    unreadable: int = 0
    """Battles whose record is no draw: they are in no test."""
    voided: int = 0
    """Battles without a vote that have no complete turn because an answer failed."""
    models: dict[str, AnswersOf] = field(default_factory=dict)
    """By behaviour digest; empty for an answer whose battle was opened before the stretch."""
    last_sequence: int = 0
    last_time_us: int = 0

    def of(self, behaviour: str) -> AnswersOf:
        """What is known of a model."""
        return self.models.setdefault(behaviour, AnswersOf())

    @property
    def answers(self) -> int:
        """Of all models."""
        return sum(model.answers for model in self.models.values())

    @property
    def failed(self) -> int:
        """Answers that failed."""
        return sum(model.ended["failed"] for model in self.models.values())

    @property
    def truncated(self) -> int:
        """Answers that were cut at the most tokens an answer may have."""
        return sum(model.ended["length"] for model in self.models.values())


@dataclass
class _Open:
    """A battle without a vote."""

    voter: str
    prompt_digest: str
    behaviours: dict[Side, str]
    complete: int = 0
    failed: tuple[Side, ...] = ()
    """Sides that failed in the last attempt, as long as there is no complete turn."""
    again: bool = False
    """The last attempt failed, whether or not a turn before is complete."""


class Follower:
    """Takes the log in from where it stood; every method blocks, and may be called from several threads."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._lock = Lock()
        self.happened = Happenings()
        self.assignment = AssignmentTest()
        self._open: dict[str, _Open] = {}
        self._failed_on: dict[tuple[str, str], str] = {}
        """By voter and first message: the battle that failed on them."""

    def follow(self, *, before_us: int | None = None) -> None:
        """Take in events up to the first that is not older than `before_us`, or all."""
        with self._lock:
            self.take(
                takewhile(
                    lambda event: before_us is None or event.time_us < before_us,
                    self._log.read(after=self.happened.last_sequence, types=TYPES),
                )
            )

    def take(self, events: Iterable[StoredEvent]) -> None:
        """Take in events, oldest first."""
        for event in events:
            self._take(event)
        self.happened.voided = sum(bool(one.failed) for one in self._open.values())
        voided = Counter(one.behaviours[side] for one in self._open.values() for side in one.failed)
        for behaviour, model in self.happened.models.items():
            model.voided = voided[behaviour]

    def _take(self, event: StoredEvent) -> None:
        happened = self.happened
        happened.last_sequence, happened.last_time_us = event.sequence, event.time_us
        match event.data:
            case BattleOpened() as opened:
                self._opened(opened)
            case BattleTurnFinished() as finished:
                self._finished(finished)
            case VoteCast() as vote:
                happened.votes += 1
                happened.left_votes += vote.choice == "a"
                happened.decisive_votes += vote.choice in ("a", "b")
                if (closed := self._open.pop(vote.battle, None)) is not None:
                    self._failed_on.pop((closed.voter, closed.prompt_digest), "")
            case _:
                pass  # a later version of one of them, which this one cannot read

    def _opened(self, opened: BattleOpened) -> None:
        behaviours: dict[Side, str] = {one.side: one.behaviour for one in opened.contestants}
        self.happened.opened += 1
        asked = (opened.voter, opened.prompt_digest)
        if opened.prompt_digest and self._failed_on.pop(asked, ""):
            self.happened.drawn_again += 1
        self._open[opened.battle] = _Open(opened.voter, opened.prompt_digest, behaviours)
        try:
            self.assignment.take(
                Drawn(behaviours["a"], behaviours["b"], opened.pair_probability, opened.side_probability)
            )
        except (InvalidRequest, KeyError):
            self.happened.unreadable += 1

    def _finished(self, finished: BattleTurnFinished) -> None:
        happened = self.happened
        happened.attempts += 1
        sides: tuple[tuple[Side, FinishReason, str | None], ...] = (
            ("a", finished.finish_a, finished.generation_a),
            ("b", finished.finish_b, finished.generation_b),
        )
        failed = tuple(side for side, finish, _ in sides if finish == "failed")
        happened.attempts_failed += bool(failed)
        battle = self._open.get(finished.battle)
        for side, finish, generation in sides:
            model = happened.of("" if battle is None else battle.behaviours.get(side, ""))
            model.ended[finish] += 1
            if finish == "failed":
                model.failed[self._cause(generation)] += 1
        if battle is None:
            return
        if not failed and all(finish != "cancelled" for _, finish, _ in sides):
            battle.complete += 1
            happened.made_good += battle.again
        battle.again = bool(failed)
        battle.failed = failed if not battle.complete else ()
        if battle.failed and battle.prompt_digest:
            self._failed_on[battle.voter, battle.prompt_digest] = finished.battle

    def _cause(self, generation: str | None) -> str:
        if generation is None:
            return NOT_STARTED
        try:
            return self._log.generation(generation).error or BROKE_OFF
        except NotFound:
            return NOT_STARTED


def happened_since(log: EventLog, since_us: int) -> Happenings:
    """Sum up what the log gained from a moment on; a model whose battle was opened earlier goes by an empty name."""
    found = []
    for event in log.read(types=TYPES, newest_first=True):
        if event.time_us < since_us:
            break
        found.append(event)
    follower = Follower(log)
    follower.take(reversed(found))
    return follower.happened


def causes(models: Mapping[str, AnswersOf]) -> Counter[str]:
    """Add up the causes of failures over models."""
    total: Counter[str] = Counter()
    for model in models.values():
        total.update(model.failed)
    return total

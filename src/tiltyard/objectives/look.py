"""Looks at a log and says how every objective stands; each look reads only what is new.

::

    objectives = Objectives(log, in_force(settings.objectives))
    report = objectives.look(time.time_ns() // 1000)     # ObjectivesReport
    report.state                                         # "ok", "ticket", "page" or "no data"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from threading import Lock
from typing import Final, NamedTuple

import orjson

from tiltyard.errors import InvalidRequest
from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    BattleOpened,
    EventData,
    GenerationFinished,
    JudgmentMade,
    SidesRevealed,
    VoteCast,
    VotesNotWritten,
    WorkerReady,
    WorkerStopped,
)
from tiltyard.objectives.burning import LATELY, WINDOWS, budget_left, burns, state_of
from tiltyard.objectives.declaration import KINDS, ObjectiveSettings
from tiltyard.objectives.minutes import MINUTE_US, Minutes
from tiltyard.objectives.requests import JUDGED_BY, badness, request_of
from tiltyard.objectives.service_time import ServiceTime
from tiltyard.objectives.status import Counts, ObjectivesReport, ObjectiveStatus, Reason, State
from tiltyard.objectives.words import HELP
from tiltyard.rating.assignment import AssignmentTest, Drawn

HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US
EVIDENCE_TICKET: Final = 20.0
EVIDENCE_PAGE: Final = 1000.0
"""True records reach these with probability at most 1/20 and 1/1000, ever (`rating/assignment.py`)."""
UNREADABLE: Final = frozenset({"no_verdict", "cut", "out_of_range", "form_not_held"})
"""Why no verdict could be read; a judge that refused was read well."""

_COUNTED: Final = (GenerationFinished, VoteCast, VotesNotWritten, SidesRevealed, JudgmentMade)

Report = Callable[[int, int], None]
"""Hears of `(events passed, events to pass)` while a long log is read."""


class _Found(NamedTuple):
    """Of an objective without a budget."""

    state: State
    reason: Reason
    counts: Counts
    value: float | None


class Objectives:
    """Of one log. `look` blocks, and may be called from several threads."""

    def __init__(
        self,
        log: EventLog,
        settings: Mapping[str, ObjectiveSettings],
        *,
        lives: bool = False,
        held_back: bool = False,
    ) -> None:
        """`lives`: this process is the one that serves, so that time goes on where no event is written.

        With `held_back`, battles count in `pair_assignment` up to the last full hour that ended an hour ago, as in the arena's health.
        """
        self._log = log
        self._settings = dict(settings)
        self._lives = lives
        self._held_back = held_back
        self._lock = Lock()
        self._minutes = {name: Minutes(one.window_minutes) for name, one in self._settings.items()}
        self._served = ServiceTime()
        self._draws = AssignmentTest()
        self._voted: set[str] = set()
        """Battles with a vote, whose sides were not yet named."""
        self._counted_through: int | None = None
        self._workers_through = 0
        self._battles_through = 0

    def look(self, now_us: int, report: Report = lambda _done, _of: None) -> ObjectivesReport:
        """Read what is new and say how everything stands at a moment (microseconds since 1970)."""
        with self._lock:
            through = self._log.last_sequence()
            self._follow(now_us, through, report)
            newest_us = self._log.moment_of(through) or 0
            until_us = now_us if self._lives else min(now_us, newest_us)
            return ObjectivesReport(
                at_us=now_us,
                through=through,
                objectives=tuple(
                    self._status(name, one, now_us, until_us) for name, one in self._settings.items()
                ),
            )

    def _follow(self, now_us: int, through: int, report: Report) -> None:
        for event in self._events((WorkerReady, WorkerStopped), self._workers_through, through):
            if isinstance(event.data, WorkerReady):
                last_us = self._log.moment_of(event.sequence - 1) or event.time_us
                self._served.ready(event.data, event.time_us, last_us)
            elif isinstance(event.data, WorkerStopped):
                self._served.stopped(event.data, event.time_us)
        self._workers_through = through
        before_us = (now_us - HOUR_US) // HOUR_US * HOUR_US if self._held_back else now_us + 1
        battles = self._events((BattleOpened,), self._battles_through, through)
        for event in takewhile(lambda one: one.time_us < before_us, battles):
            self._battles_through = event.sequence
            if isinstance(event.data, BattleOpened):
                self._take_draw(event.data)
        if self._counted_through is None:
            longest = max((one.window_minutes for one in self._settings.values()), default=0)
            # an event is numbered a moment after its time was taken; an hour is more than any disk takes
            self._counted_through = self._log.sequence_before(now_us - longest * MINUTE_US - HOUR_US)
        began = self._counted_through
        for event in self._events(_COUNTED, began, through):
            self._take(event)
            report(event.sequence - began, through - began)
        self._counted_through = through

    def _events(self, types: tuple[type[EventData], ...], after: int, through: int) -> Iterator[StoredEvent]:
        if after >= through:
            return iter(())
        return takewhile(lambda event: event.sequence <= through, self._log.read(after=after, types=types))

    def _take(self, event: StoredEvent) -> None:
        if event.type == GenerationFinished.TYPE:
            if (request := request_of(event)) is None:
                return
            for name, one in self._settings.items():
                if one.kind in JUDGED_BY and (bad := badness(one, request)) is not None:
                    self._minutes[name].add(event.time_us, bad=bad)
        elif event.type == VoteCast.TYPE:
            self._voted.add(event.subject)
            self._count("vote_write", event.time_us, bad=False)
        elif event.type == JudgmentMade.TYPE:
            data = orjson.loads(event.data_json)
            if data.get("purpose", "verdict") == "verdict":
                unreadable = data.get("unscored") in UNREADABLE
                self._count("judge_parse_failures", event.time_us, bad=unreadable)
        elif isinstance(event.data, VotesNotWritten):
            self._count("vote_write", event.data.first_us, bad=True, count=event.data.votes)
        elif isinstance(event.data, SidesRevealed):
            self._count("reveal_before_vote", event.time_us, bad=self._too_early(event))

    def _too_early(self, event: StoredEvent) -> bool:
        """Whether sides were named without a vote that stood before."""
        if event.subject in self._voted:
            self._voted.discard(event.subject)
            return False
        votes = self._log.read(types=(VoteCast,), subject=event.subject, limit=1)
        return not any(vote.sequence < event.sequence for vote in votes)

    def _count(self, kind: str, time_us: int, *, bad: bool, count: int = 1) -> None:
        for name, one in self._settings.items():
            if one.kind == kind:
                self._minutes[name].add(time_us, bad=bad, count=count)

    def _take_draw(self, opened: BattleOpened) -> None:
        sides = {one.side: one.behaviour for one in opened.contestants}
        try:
            drawn = Drawn(sides["a"], sides["b"], opened.pair_probability, opened.side_probability)
            self._draws.take(drawn)
        except (InvalidRequest, KeyError):
            return  # no record of a draw; the arena's health counts them

    def _status(self, name: str, one: ObjectiveSettings, now_us: int, until_us: int) -> ObjectiveStatus:
        match one.kind:
            case "pair_assignment":
                return _unbudgeted(name, one, self._evidence())
            case "data_lag":
                return _unbudgeted(name, one, self._lag())
            case "reveal_before_vote":
                counts = self._minutes[name].window(now_us, one.window_minutes)
                return _unbudgeted(name, one, _none_allowed(counts, counts.bad if counts.total else None))
            case _:
                return self._budgeted(name, one, now_us, until_us)

    def _budgeted(self, name: str, one: ObjectiveSettings, now_us: int, until_us: int) -> ObjectiveStatus:
        target = one.target or 0.0
        minimum = float(one.minimum)

        def window(minutes: int) -> Counts:
            if one.kind == "availability":
                since_us = now_us - minutes * MINUTE_US
                return self._served.counts(one.slice.identity, since_us, until_us)
            return self._minutes[name].window(now_us, minutes)

        whole = window(one.window_minutes)
        found = burns(lambda words: window(WINDOWS[words]), target, minimum)
        state, reason = state_of(whole, window(WINDOWS[LATELY]), target, found, minimum)
        return replace(
            _declared(name, one),
            state=state,
            reason=reason,
            counts=whole,
            budget_left=budget_left(whole, target),
            burns=found,
            do=HELP[one.kind] if state in ("ticket", "page") else "",
        )

    def _evidence(self) -> _Found:
        battles = self._draws.pairs.battles if self._battles_through else 0
        if not battles:
            return _Found("no data", "nothing_seen", Counts(), None)
        largest = max(self._draws.pairs.largest, self._draws.sides.largest)
        state: State = (
            "page" if largest >= EVIDENCE_PAGE else "ticket" if largest >= EVIDENCE_TICKET else "ok"
        )
        return _Found(state, "kept" if state == "ok" else "evidence", Counts(battles, 0), largest)

    def _lag(self) -> _Found:
        found = self._log.vote_positions()
        if not found.in_log and not found.in_projection:
            return _Found("no data", "nothing_seen", Counts(), None)
        lacking = float(abs(found.in_log - found.in_projection))
        if not lacking and found.log_sequence != found.projection_sequence:
            lacking = 1.0  # as many, and not the same ones
        return _none_allowed(Counts(max(found.in_log, found.in_projection), lacking), lacking)


def _declared(name: str, one: ObjectiveSettings) -> ObjectiveStatus:
    """What was promised; nothing was seen yet."""
    return ObjectiveStatus(
        name=name,
        kind=one.kind,
        target=one.target,
        window_days=one.window_days,
        threshold_ms=one.threshold_ms,
        slice={key: str(value) for key, value in one.slice.said.items()},
        state="no data",
        reason="nothing_seen",
        unit=KINDS[one.kind].unit,
        counts=Counts(),
        budget_left=None,
    )


def _unbudgeted(name: str, one: ObjectiveSettings, found: _Found) -> ObjectiveStatus:
    return replace(
        _declared(name, one),
        state=found.state,
        reason=found.reason,
        counts=found.counts,
        value=found.value,
        do=HELP[one.kind] if found.state in ("ticket", "page") else "",
    )


def _none_allowed(counts: Counts, value: float | None) -> _Found:
    if counts.bad:
        return _Found("page", "not_zero", counts, value)
    return (
        _Found("ok", "kept", counts, value)
        if counts.total
        else _Found("no data", "nothing_seen", counts, None)
    )

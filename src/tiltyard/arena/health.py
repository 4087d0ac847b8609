"""Is the arena well? Its figures, each with its check (`health_checks`); nothing here changes anything.

Who could watch the figures of single models move with each battle would learn who is fighting. So a `Health` with
`held_back` counts battles only up to the last full hour that ended an hour ago; what is newer is told as sums over all models. An operator at the log itself
(`tiltyard arena health`) sees everything.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final, Protocol

from tiltyard.arena.happenings import AnswersOf, Follower, Happenings, causes, happened_since
from tiltyard.arena.health_checks import (
    STATES,
    Check,
    Lag,
    State,
    availability,
    availability_now,
    data_lag,
    pairs_as_recorded,
    sides_as_recorded,
    truncation,
    vote_write,
    voting,
)
from tiltyard.events.log import EventLog
from tiltyard.identity.canonical import Json
from tiltyard.rating.assignment import AssignmentTest, Evidence
from tiltyard.rating.shares import Share, quantile, share_of

HOUR_US: Final = 3_600_000_000
APPENDS_KEPT: Final = 4096


class AppendTimes:
    """How long the log took to make votes durable: the newest of this process."""

    def __init__(
        self,
        observe: Callable[[float], None] | None = None,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`observe` hears of each, in seconds: a histogram's; `refused` of each vote that the log did not take: a counter's."""
        self._kept: deque[float] = deque(maxlen=APPENDS_KEPT)
        self._observe = observe
        self.note_refused = refused
        self.count = 0
        """Since the process began."""

    def note(self, seconds: float) -> None:
        """Take in one acknowledged vote."""
        self.count += 1
        self._kept.append(seconds)
        if self._observe is not None:
            self._observe(seconds)

    def quantile(self, at: float) -> float | None:
        """In seconds; `None` before the first vote."""
        return quantile(tuple(self._kept), at)


@dataclass(frozen=True)
class ModelHealth:
    """One model's part."""

    behaviour: str
    name: str
    battles: int
    first_slot: Share
    """Places on the left."""
    failed: Share
    truncated: Share
    causes: dict[str, int]
    voided: int

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "behaviour": self.behaviour,
            "name": self.name,
            "battles": self.battles,
            "first_slot": self.first_slot.to_json(),
            "failed": self.failed.to_json(),
            "truncated": self.truncated.to_json(),
            "causes": dict(self.causes),
            "voided": self.voided,
        }


@dataclass(frozen=True, eq=False)
class ArenaHealth:
    """Everything that was found at one moment."""

    at_us: int
    until_us: int
    """Battles by model, and the tests of assignment, count up to here."""
    checks: tuple[Check, ...]
    pairs: Evidence
    sides: Evidence
    models: tuple[ModelHealth, ...]
    so_far: Happenings
    last_hour: Happenings
    lag: Lag
    appends: int
    append_p50_s: float | None
    append_p99_s: float | None

    @property
    def state(self) -> State:
        """The worst of all checks."""
        return max((check.state for check in self.checks), key=STATES.index)

    @property
    def left_share(self) -> Share:
        """Decisive votes for the left side."""
        return share_of(self.so_far.left_votes, self.so_far.decisive_votes)

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "state": self.state,
            "at_us": self.at_us,
            "until_us": self.until_us,
            "checks": [check.to_json() for check in self.checks],
            "assignment": {"pairs": _evidence(self.pairs), "sides": _evidence(self.sides)},
            "left_votes": self.left_share.to_json(),
            "models": [model.to_json() for model in self.models],
            "so_far": _sums(self.so_far),
            "last_hour": _sums(self.last_hour),
            "vote_write": {
                "votes": self.appends,
                "p50_s": self.append_p50_s,
                "p99_s": self.append_p99_s,
            },
            "lag": self.lag.to_json(),
        }


class Named(Protocol):
    """A registered identity."""

    @property
    def name(self) -> str:
        """As in `tiltyard.toml`."""

    @property
    def behaviour(self) -> str:
        """Behaviour digest."""


class Health:
    """Looks after one arena's log; with `held_back`, as far as anybody may see.

    `appends` are the write times of this process, where it is the one that serves.
    """

    def __init__(self, log: EventLog, *, appends: AppendTimes | None = None, held_back: bool = False) -> None:
        self._log = log
        self._appends = appends
        self._held_back = held_back
        self._follower = Follower(log)
        self._one = Lock()

    def look(self, now_us: int) -> ArenaHealth:
        """Look at everything. Blocks: the first time as long as reading the log takes, then for what is new."""
        until_us = (now_us - HOUR_US) // HOUR_US * HOUR_US if self._held_back else now_us
        with self._one:
            self._follower.follow(before_us=until_us if self._held_back else None)
            happened, test = self._follower.happened, self._follower.assignment
            recent = happened_since(self._log, now_us - HOUR_US)
            models = _models(happened, test, self._log.identities())
            p50, p99 = (None if self._appends is None else self._appends.quantile(at) for at in (0.5, 0.99))
            lag = _lag(self._log, now_us)
            return ArenaHealth(
                at_us=now_us,
                until_us=until_us,
                checks=(
                    pairs_as_recorded(test.pairs),
                    sides_as_recorded(test.sides),
                    availability(models),
                    availability_now(recent),
                    truncation(models),
                    vote_write(self._appends is not None, p99),
                    data_lag(lag),
                    voting(recent),
                ),
                pairs=test.pairs,
                sides=test.sides,
                models=models,
                so_far=replace(happened, models=dict(happened.models)),
                last_hour=recent,
                lag=lag,
                appends=0 if self._appends is None else self._appends.count,
                append_p50_s=p50,
                append_p99_s=p99,
            )


def _models(
    happened: Happenings, test: AssignmentTest, identities: Iterable[Named]
) -> tuple[ModelHealth, ...]:
    names = {identity.behaviour: identity.name for identity in identities}
    stood = test.stood()
    found = []
    for behaviour in sorted({*stood, *happened.models} - {""}):
        left, right = stood.get(behaviour, (0, 0))
        model = happened.models.get(behaviour, AnswersOf())
        found.append(
            ModelHealth(
                behaviour=behaviour,
                name=names.get(behaviour, behaviour[:19]),
                battles=left + right,
                first_slot=share_of(left, left + right),
                failed=share_of(model.ended["failed"], model.answers),
                truncated=share_of(model.ended["length"], model.answers),
                causes=dict(model.failed.most_common()),
                voided=model.voided,
            )
        )
    return tuple(sorted(found, key=lambda model: model.name))


def _lag(log: EventLog, now_us: int) -> Lag:
    found = log.vote_positions()
    age_s = None if found.newest_us is None else max(0.0, (now_us - found.newest_us) / 1e6)
    return Lag(found.log_sequence, found.projection_sequence, found.in_log, found.in_projection, age_s)


def _evidence(evidence: Evidence) -> dict[str, Json]:
    return {
        "battles": evidence.battles,
        "evidence": round(evidence.e, 6),
        "largest": round(evidence.largest, 6),
        "largest_at": evidence.largest_at,
        "p": round(evidence.p, 9),
    }


def _sums(happened: Happenings) -> dict[str, Json]:
    failures: Counter[str] = causes(happened.models)
    return {
        "battles": happened.opened,
        "votes": happened.votes,
        "turns": happened.attempts,
        "turns_failed": happened.attempts_failed,
        "voided": happened.voided,
        "made_good": happened.made_good,
        "drawn_again": happened.drawn_again,
        "answers": happened.answers,
        "failed": happened.failed,
        "truncated": happened.truncated,
        "causes": dict(failures.most_common()),
        "unreadable": happened.unreadable,
    }

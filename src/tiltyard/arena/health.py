"""Is the arena well? Figures, and for each a state with its reason and what to do; nothing here changes anything.

Who could watch the figures of single models move with each battle would learn who is fighting. So a `Health` with
`held_back` counts battles only up to the last full hour that ended an hour ago; what is newer is told as sums over all models. An operator at the log itself
(`tiltyard arena health`) sees everything.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final, Literal, Protocol, TypeAlias

from tiltyard.arena.happenings import AnswersOf, Follower, Happenings, causes, happened_since
from tiltyard.events.log import EventLog
from tiltyard.identity.canonical import Json
from tiltyard.rating.assignment import AssignmentTest, Evidence
from tiltyard.rating.shares import Share, quantile, share_of

State: TypeAlias = Literal["ok", "warn", "alarm"]
STATES: Final[tuple[State, ...]] = ("ok", "warn", "alarm")

CHECKS: Final = (
    "pair_assignment",
    "side_assignment",
    "availability",
    "availability_now",
    "truncation",
    "vote_write",
    "data_lag",
    "voting",
)
"""Every check by its name, in the order shown; metrics carry these labels and no others."""

HOUR_US: Final = 3_600_000_000
EVIDENCE_WARN: Final = 20.0
EVIDENCE_ALARM: Final = 1000.0
"""True records reach these with probability at most 1/20 and 1/1000, ever."""
FAILED_WARN: Final = 0.05
FAILED_ALARM: Final = 0.20
TRUNCATED_WARN: Final = 0.20
"""Shares that the lower end of a 95% interval must pass."""
APPEND_WARN_S: Final = 0.25
APPEND_ALARM_S: Final = 1.0
"""At the 99th percentile."""
APPENDS_KEPT: Final = 4096
UNVOTED_WARN: Final = 100
"""Turns answered by both sides in an hour in which nobody voted."""


class AppendTimes:
    """How long the log took to make votes durable: the newest of this process."""

    def __init__(self, observe: Callable[[float], None] | None = None) -> None:
        """`observe` hears of each, in seconds: a histogram's."""
        self._kept: deque[float] = deque(maxlen=APPENDS_KEPT)
        self._observe = observe
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
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    says: str
    """What was found, in one sentence."""
    do: str = ""
    """What helps; empty when nothing is wrong."""

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {"name": self.name, "state": self.state, "says": self.says, "do": self.do}


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


@dataclass(frozen=True)
class Lag:
    """How far what people see is behind what happened."""

    log_sequence: int
    """Newest vote in the log."""
    projection_sequence: int
    """Newest vote in the table of votes."""
    votes_in_log: int
    votes_in_projection: int
    newest_vote_s: float | None
    """Age of the newest vote; `None` without one."""

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "log_sequence": self.log_sequence,
            "projection_sequence": self.projection_sequence,
            "votes_in_log": self.votes_in_log,
            "votes_in_projection": self.votes_in_projection,
            "newest_vote_s": self.newest_vote_s,
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
                    _assignment("pair_assignment", "pairs", test.pairs),
                    _assignment("side_assignment", "left-right orders", test.sides),
                    _availability(models),
                    _availability_now(recent),
                    _truncation(models),
                    _vote_write(self._appends, p99),
                    _data_lag(lag),
                    _voting(recent),
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


def _assignment(name: str, what: str, evidence: Evidence) -> Check:
    state: State = "ok"
    if evidence.largest >= EVIDENCE_ALARM:
        state = "alarm"
    elif evidence.largest >= EVIDENCE_WARN:
        state = "warn"
    if state == "ok":
        return Check(
            name, state, f"{evidence.battles:,} battles were drawn with {what} as often as is recorded."
        )
    return Check(
        name,
        state,
        f"the {what} of {evidence.battles:,} battles do not fit the recorded probabilities: evidence "
        f"{evidence.largest:,.0f} to 1 after {evidence.largest_at:,} battles.",
        "do not weight by inverse probability until the cause is known; compare `tiltyard arena health` with "
        "[arena.pairing], and look for two servers of different versions on one log.",
    )


def _availability(models: Sequence[ModelHealth]) -> Check:
    bad = _passing(models, lambda model: model.failed, FAILED_WARN)
    if not bad:
        failed = sum(model.failed.count for model in models)
        return Check("availability", "ok", f"{failed:,} answers failed; no model fails often.")
    state: State = "alarm" if _passing(bad, lambda model: model.failed, FAILED_ALARM) else "warn"
    return Check(
        "availability",
        state,
        "; ".join(
            f"{model.name} failed {model.failed.count:,} of {model.failed.of:,} answers "
            f"({', '.join(f'{count:,} {cause}' for cause, count in model.causes.items())})"
            for model in bad
        )
        + ".",
        "no vote is lost to it: such battles are voided. See GET /ready and the workers' output; take the model out of "
        "[arena] contestants while it is mended.",
    )


def _availability_now(recent: Happenings) -> Check:
    failed = share_of(recent.failed, recent.answers)
    lower = failed.lower or 0.0
    if lower <= FAILED_WARN:
        return Check(
            "availability_now",
            "ok",
            f"{failed.count:,} of {failed.of:,} answers failed in the last hour; {recent.voided:,} battles are void.",
        )
    why = ", ".join(f"{count:,} {cause}" for cause, count in causes(recent.models).most_common())
    return Check(
        "availability_now",
        "alarm" if lower > FAILED_ALARM else "warn",
        f"{failed.count:,} of {failed.of:,} answers failed in the last hour ({why}); {recent.voided:,} battles are void.",
        "see GET /ready and the workers' output; `tiltyard arena health` names the models.",
    )


def _truncation(models: Sequence[ModelHealth]) -> Check:
    cut = _passing(models, lambda model: model.truncated, TRUNCATED_WARN)
    if not cut:
        return Check("truncation", "ok", "no model is often cut at the most tokens an answer may have.")
    return Check(
        "truncation",
        "warn",
        "; ".join(
            f"{model.name} was cut in {model.truncated.count:,} of {model.truncated.of:,} answers"
            for model in cut
        )
        + ".",
        "people judge half answers: raise max_tokens of these identities, or ask them for shorter answers.",
    )


def _vote_write(appends: AppendTimes | None, p99: float | None) -> Check:
    if appends is None:
        return Check("vote_write", "ok", "not measured here; the serving process knows.")
    if p99 is None:
        return Check("vote_write", "ok", "no vote since this process began.")
    says = f"99% of votes were on the disk within {p99 * 1000:,.1f} ms."
    if p99 <= APPEND_WARN_S:
        return Check("vote_write", "ok", says)
    return Check(
        "vote_write",
        "alarm" if p99 > APPEND_ALARM_S else "warn",
        says,
        "voters wait for it: see whether the disk of the data directory is busy or remote, or another process "
        "holds the log.",
    )


def _data_lag(lag: Lag) -> Check:
    if (lag.log_sequence, lag.votes_in_log) == (lag.projection_sequence, lag.votes_in_projection):
        return Check(
            "data_lag", "ok", f"all {lag.votes_in_log:,} votes of the log are in the table of votes."
        )
    return Check(
        "data_lag",
        "alarm",
        f"the log has {lag.votes_in_log:,} votes up to #{lag.log_sequence}, the table of votes has "
        f"{lag.votes_in_projection:,} up to #{lag.projection_sequence}.",
        "no vote is lost: `tiltyard events rebuild` makes the tables again; `tiltyard events verify` first.",
    )


def _voting(recent: Happenings) -> Check:
    answered = recent.attempts - recent.attempts_failed
    if answered < UNVOTED_WARN or recent.votes:
        return Check("voting", "ok", f"{recent.votes:,} votes in the last hour.")
    return Check(
        "voting",
        "warn",
        f"{answered:,} turns were answered in the last hour and nobody voted.",
        "vote once yourself; if it fails, its message says why.",
    )


def _passing(
    models: Sequence[ModelHealth], share: Callable[[ModelHealth], Share], bound: float
) -> list[ModelHealth]:
    return [model for model in models if (share(model).lower or 0.0) > bound]


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

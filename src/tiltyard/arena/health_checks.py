"""What the arena's figures mean: each check has a state, one sentence with its reason, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from tiltyard.arena.happenings import Happenings, causes
from tiltyard.arena.saying import Said, to_tell
from tiltyard.identity.canonical import Json
from tiltyard.rating.assignment import Evidence
from tiltyard.rating.shares import Share, share_of

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
UNVOTED_WARN: Final = 100
"""Turns answered by both sides in an hour in which nobody voted."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    says: Said
    """What was found, in one sentence."""
    do: Said | None = None
    """What helps; `None` when nothing is wrong."""

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it: in English."""
        return {
            "name": self.name,
            "state": self.state,
            "says": str(self.says),
            "do": "" if self.do is None else str(self.do),
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


class OfModel(Protocol):
    """What is known of one model's answers."""

    @property
    def name(self) -> str:
        """As people know it."""

    @property
    def failed(self) -> Share:
        """Answers that failed."""

    @property
    def truncated(self) -> Share:
        """Answers that were cut at the most tokens."""

    @property
    def causes(self) -> dict[str, int]:
        """Failures by cause, the most frequent first."""


def pairs_as_recorded(evidence: Evidence) -> Check:
    """Were pairs drawn with the probabilities that the log holds?"""
    return _assignment(
        "pair_assignment",
        evidence,
        to_tell("%(battles)s battles were drawn with pairs as often as is recorded."),
        to_tell(
            "the pairs of %(battles)s battles do not fit the recorded probabilities: evidence %(evidence)s to 1 "
            "after %(after)s battles."
        ),
    )


def sides_as_recorded(evidence: Evidence) -> Check:
    """Did each model of a pair stand on the left as often as on the right?"""
    return _assignment(
        "side_assignment",
        evidence,
        to_tell("%(battles)s battles were drawn with left-right orders as often as is recorded."),
        to_tell(
            "the left-right orders of %(battles)s battles do not fit the recorded probabilities: evidence "
            "%(evidence)s to 1 after %(after)s battles."
        ),
    )


def _assignment(name: str, evidence: Evidence, well: str, wrong: str) -> Check:
    if evidence.largest < EVIDENCE_WARN:
        return Check(name, "ok", Said(well, {"battles": evidence.battles}))
    return Check(
        name,
        "alarm" if evidence.largest >= EVIDENCE_ALARM else "warn",
        Said(
            wrong,
            {
                "battles": evidence.battles,
                "evidence": round(evidence.largest),
                "after": evidence.largest_at,
            },
        ),
        Said(
            to_tell(
                "do not weight by inverse probability until the cause is known; compare `tiltyard arena health` with "
                "`[arena.pairing]`, and look for two servers of different versions on one log."
            )
        ),
    )


def availability(models: Sequence[OfModel]) -> Check:
    """Does each model answer, of all it was asked?"""
    bad = [model for model in models if (model.failed.lower or 0.0) > FAILED_WARN]
    if not bad:
        failed = sum(model.failed.count for model in models)
        return Check(
            "availability",
            "ok",
            Said(to_tell("%(failed)s answers failed; no model fails often."), {"failed": failed}),
        )
    return Check(
        "availability",
        "alarm" if any((model.failed.lower or 0.0) > FAILED_ALARM for model in bad) else "warn",
        Said("%(models)s.", {"models": tuple(_failures(model) for model in bad)}),
        Said(
            to_tell(
                "no vote is lost to it: such battles are voided. See `GET /ready` and the workers' output; take the "
                "model out of `[arena] contestants` while it is mended."
            )
        ),
    )


def _failures(model: OfModel) -> Said:
    return Said(
        to_tell("%(model)s failed %(failed)s of %(answers)s answers (%(causes)s)"),
        {
            "model": model.name,
            "failed": model.failed.count,
            "answers": model.failed.of,
            "causes": ", ".join(f"{count:,} {cause}" for cause, count in model.causes.items()),
        },
    )


def availability_now(recent: Happenings) -> Check:
    """Did answers fail in the last hour, of all models together?"""
    failed = share_of(recent.failed, recent.answers)
    lower = failed.lower or 0.0
    values = {"failed": failed.count, "answers": failed.of, "voided": recent.voided}
    if lower <= FAILED_WARN:
        return Check(
            "availability_now",
            "ok",
            Said(
                to_tell(
                    "%(failed)s of %(answers)s answers failed in the last hour; %(voided)s battles are void."
                ),
                values,
            ),
        )
    why = ", ".join(f"{count:,} {cause}" for cause, count in causes(recent.models).most_common())
    return Check(
        "availability_now",
        "alarm" if lower > FAILED_ALARM else "warn",
        Said(
            to_tell(
                "%(failed)s of %(answers)s answers failed in the last hour (%(causes)s); %(voided)s battles are void."
            ),
            {**values, "causes": why},
        ),
        Said(to_tell("see `GET /ready` and the workers' output; `tiltyard arena health` names the models.")),
    )


def truncation(models: Sequence[OfModel]) -> Check:
    """Are answers whole?"""
    cut = [model for model in models if (model.truncated.lower or 0.0) > TRUNCATED_WARN]
    if not cut:
        return Check(
            "truncation", "ok", Said(to_tell("no model is often cut at the most tokens an answer may have."))
        )
    return Check(
        "truncation",
        "warn",
        Said(
            "%(models)s.",
            {
                "models": tuple(
                    Said(
                        to_tell("%(model)s was cut in %(cut)s of %(answers)s answers"),
                        {
                            "model": model.name,
                            "cut": model.truncated.count,
                            "answers": model.truncated.of,
                        },
                    )
                    for model in cut
                )
            },
        ),
        Said(
            to_tell(
                "people judge half answers: raise `max_tokens` of these identities, or ask them for shorter answers."
            )
        ),
    )


def vote_write(measured: bool, p99_s: float | None) -> Check:
    """How long does a vote wait for the disk? `measured` where this process is the one that serves."""
    if not measured:
        return Check("vote_write", "ok", Said(to_tell("not measured here; the serving process knows.")))
    if p99_s is None:
        return Check("vote_write", "ok", Said(to_tell("no vote since this process began.")))
    says = Said(to_tell("99%% of votes were on the disk within %(time)s ms."), {"time": p99_s * 1000})
    if p99_s <= APPEND_WARN_S:
        return Check("vote_write", "ok", says)
    return Check(
        "vote_write",
        "alarm" if p99_s > APPEND_ALARM_S else "warn",
        says,
        Said(
            to_tell(
                "voters wait for it: see whether the disk of the data directory is busy or remote, or another process "
                "holds the log."
            )
        ),
    )


def data_lag(lag: Lag) -> Check:
    """Does the table of votes hold every vote of the log?"""
    if (lag.log_sequence, lag.votes_in_log) == (lag.projection_sequence, lag.votes_in_projection):
        return Check(
            "data_lag",
            "ok",
            Said(
                to_tell("all %(votes)s votes of the log are in the table of votes."),
                {"votes": lag.votes_in_log},
            ),
        )
    return Check(
        "data_lag",
        "alarm",
        Said(
            to_tell(
                "the log has %(log)s votes up to #%(log_at)s, the table of votes has %(table)s up to #%(table_at)s."
            ),
            {
                "log": lag.votes_in_log,
                "log_at": str(lag.log_sequence),
                "table": lag.votes_in_projection,
                "table_at": str(lag.projection_sequence),
            },
        ),
        Said(
            to_tell(
                "no vote is lost: `tiltyard events rebuild` makes the tables again; `tiltyard events verify` first."
            )
        ),
    )


def voting(recent: Happenings) -> Check:
    """Do people vote on what is answered?"""
    answered = recent.attempts - recent.attempts_failed
    if answered < UNVOTED_WARN or recent.votes:
        return Check(
            "voting", "ok", Said(to_tell("%(votes)s votes in the last hour."), {"votes": recent.votes})
        )
    return Check(
        "voting",
        "warn",
        Said(
            to_tell("%(turns)s turns were answered in the last hour and nobody voted."), {"turns": answered}
        ),
        Said(to_tell("vote once yourself; if it fails, its message says why.")),
    )

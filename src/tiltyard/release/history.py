"""Which versions of an alias were verified, and the way back to the last of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tiltyard.errors import Conflict, InvalidRequest, NotFound
from tiltyard.events.envelope import format_time
from tiltyard.events.ids import new_id
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    GateNotPassed,
    ReleaseEnded,
    ReleaseOrdered,
    ReleaseStarted,
    TrafficArm,
    TrafficSplit,
)
from tiltyard.identity.canonical import canonical_json, digest_of
from tiltyard.release.plan import Plan
from tiltyard.release.state import OF_RELEASES, ReleaseState, releases_of

SOURCE = "tiltyard/release"
MOST_REASON = 500
"""Letters of a reason."""


def reason_of(why: str) -> str:
    """Tidy a reason for the history; raises `InvalidRequest` where there is none: it keeps who, when and why."""
    said = " ".join(why.split())
    if not said:
        raise InvalidRequest(
            "why is empty; the history keeps who, when and why", param="why", code="why_empty"
        )
    if len(said) > MOST_REASON:
        raise InvalidRequest(f"why has {len(said):,} letters; it takes {MOST_REASON}", param="why")
    return said


class Version(NamedTuple):
    """An identity that answered, or may answer again, to an alias."""

    identity: str
    behaviour: str

    @property
    def alone(self) -> tuple[TrafficArm, ...]:
        """All traffic to it."""
        return (TrafficArm(arm="production", identity=self.identity, behaviour=self.behaviour, weight=1.0),)


def versions_of(log: EventLog, alias: str) -> list[Version]:
    """The verified versions, oldest first; the last one is production. Empty: the alias was never released. Blocks."""
    versions: list[Version] = []
    started: dict[str, ReleaseStarted] = {}
    for event in log.read(types=(ReleaseStarted, ReleaseEnded, TrafficSplit)):
        match event.data:
            case ReleaseStarted() as data if data.alias == alias:
                started[data.release] = data
                versions = versions or [Version(data.production, data.production_behaviour)]
            case ReleaseEnded(outcome="promoted") as data if data.release in started:
                one = started[data.release]
                versions.append(Version(one.candidate, one.candidate_behaviour))
            case TrafficSplit(release=None) as data if data.alias == alias:
                back = [Version(arm.identity, arm.behaviour) for arm in data.arms[:1]]
                versions = (
                    versions[: versions.index(back[0])] + back if back and back[0] in versions else back
                )
    return versions


def moved_by_hand(log: EventLog, alias: str | None = None) -> list[tuple[int, TrafficSplit]]:
    """The splits that people asked for, of an alias or of all, and when, in microseconds since 1970; oldest first. Blocks."""
    events = log.read(types=(TrafficSplit,), subject=alias)
    return [
        (event.time_us, event.data)
        for event in events
        if isinstance(event.data, TrafficSplit) and event.data.release is None
    ]


def states_of(log: EventLog) -> dict[str, ReleaseState]:
    """Every release. Blocks."""
    return releases_of(log.read(types=OF_RELEASES), {})


def active_release(log: EventLog, alias: str) -> ReleaseState | None:
    """The release of an alias that has not ended, if there is one. Blocks."""
    states = states_of(log).values()
    return next((s for s in states if s.started.alias == alias and s.ended is None), None)


def start(log: EventLog, plan: Plan, aliases: Mapping[str, str], *, by: str, why: str = "") -> ReleaseStarted:
    """Start a release; raises `Conflict` while another of its alias runs, `NotFound` for unknown names. Blocks.

    The reason is `why`, else the plan's own; raises `InvalidRequest` where there is neither.
    """
    reason = reason_of(why if why.strip() else plan.why)
    known = {data.name: data.behaviour for data in log.identities()}
    if plan.alias not in aliases:
        names = ", ".join(aliases) or "none"
        raise NotFound(f"there is no alias {plan.alias!r}; declared: {names}", param="alias")
    if plan.candidate not in known:
        raise NotFound(
            f"no identity {plan.candidate!r} was ever served; declare it in tiltyard.toml and start tiltyard once "
            f"(known: {', '.join(known) or 'none'})",
            param="candidate",
        )
    if (running := active_release(log, plan.alias)) is not None:
        raise Conflict(
            f"{plan.alias} is in the middle of {running.id}; wait for its end, or `tiltyard release abort {plan.alias}`"
        )
    versions = versions_of(log, plan.alias)
    name = aliases[plan.alias]
    if not versions and name not in known:
        raise NotFound(
            f"the identity {name!r} of the alias was never served; start tiltyard once", param="alias"
        )
    production = versions[-1] if versions else Version(name, known[name])
    candidate = Version(plan.candidate, known[plan.candidate])
    if candidate.behaviour == production.behaviour:
        raise InvalidRequest(
            f"{plan.candidate} behaves exactly as {production.identity}, which answers to {plan.alias} now "
            f"({candidate.behaviour[:19]}…): there is nothing to release",
            param="candidate",
        )
    number = 1 + sum(s.started.alias == plan.alias for s in states_of(log).values())
    document = plan.model_dump(mode="json")
    data = ReleaseStarted(
        release="rel_" + new_id().replace("-", ""),
        alias=plan.alias,
        number=number,
        candidate=candidate.identity,
        candidate_behaviour=candidate.behaviour,
        production=production.identity,
        production_behaviour=production.behaviour,
        plan=document,
        plan_digest=digest_of(canonical_json(document)),
        by=by,
        why=reason,
    )
    try:
        log.append_blocking(data, subject=data.release, source=SOURCE)
    except Conflict:
        raise Conflict(f"somebody else has just started a release of {plan.alias}") from None
    return data


def orders_of(log: EventLog, release: str) -> list[tuple[int, ReleaseOrdered]]:
    """What people told a release and when, in microseconds since 1970. Blocks."""
    events = log.read(types=(ReleaseOrdered,), subject=release)
    return [(event.time_us, event.data) for event in events if isinstance(event.data, ReleaseOrdered)]


def order(
    log: EventLog,
    alias: str,
    what: str,
    *,
    by: str,
    why: str,
    seen: tuple[str, int] | None = None,
    override: bool = False,
) -> ReleaseOrdered:
    """Tell the active release of an alias something; raises `NotFound` where there is none, `InvalidRequest` without a reason.

    Blocks. An approval while gates have not passed is an override: raises `Conflict` naming them unless `override` says that
    whoever approves knows, and the event keeps what they went on without.

    `seen` are the release and stage that whoever orders looked at: raises `Conflict` where it has moved on since, so that
    nobody approves a stage that they did not see.
    """
    reason = reason_of(why)
    state = active_release(log, alias)
    if state is None:
        raise NotFound(
            f"no release of {alias} is under way; `tiltyard release history {alias}` shows those there were"
        )
    index = 0 if state.entered is None else state.entered.index
    if seen not in (None, (state.id, index)):
        raise Conflict(
            f"it has moved on since you looked: {state.id} is in stage {index + 1}; look again",
            code="moved_on",
        )
    against = state.not_passed if what == "approve" else ()
    if against and not override:
        raise Conflict(not_passed_in_words(against), code="not_passed")
    data = ReleaseOrdered.model_validate(
        {"release": state.id, "order": what, "index": index, "by": by, "why": reason, "against": against}
    )
    log.append_blocking(data, subject=state.id, source=SOURCE)
    return data


def not_passed_in_words(against: Sequence[GateNotPassed]) -> str:
    """What an approval now would go on without."""
    return "\n".join(
        (
            f"{len(against)} {'gate has' if len(against) == 1 else 'gates have'} not passed; approving now is an override, "
            "which event, history and report will say:",
            *(f"  {gate.words}" for gate in against),
            "Wait, or say that you override them, and why.",
        )
    )


def roll_back(
    log: EventLog, alias: str, *, by: str, why: str, to_file: bool = False, again: bool = False
) -> TrafficSplit:
    """Give an alias back to its last verified version by one event; every gateway obeys within a second. Blocks.

    In the middle of a release that is production as it was before; else the version before the one that answers now.
    Raises `NotFound` where there is none, and `Conflict` where it was just rolled back by hand, unless `again`: of two people
    in one incident the second would go past what the first one brought back. Raises `InvalidRequest` without a reason.
    """
    reason = reason_of(why)
    versions = versions_of(log, alias)
    running = active_release(log, alias)
    newest = next(iter(log.read(types=[TrafficSplit], subject=alias, newest_first=True, limit=1)), None)
    if newest is not None and isinstance(newest.data, TrafficSplit) and not (again or to_file or running):
        stands = newest.data
        if stands.release is None and stands.arms:
            raise Conflict(
                f"{alias} was rolled back to {stands.arms[0].identity} by {stands.by} at {format_time(newest.time_us)[:19]}Z "
                f"({stands.why}); --again goes further back",
                code="already_rolled_back",
            )
    if to_file:
        arms: tuple[TrafficArm, ...] = ()
    elif running is not None and versions:
        arms = versions[-1].alone
    elif len(versions) > 1:
        arms = versions[-2].alone
    else:
        raise NotFound(
            f"{alias} has no earlier verified version: "
            + (f"{versions[0].identity} is the first" if versions else "it was never released")
        )
    split = TrafficSplit(alias=alias, arms=arms, by=by, why=reason)
    log.append_blocking(split, subject=alias, source=SOURCE)
    return split

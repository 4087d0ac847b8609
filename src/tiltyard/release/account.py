"""The account of a release: everything that its page, its report and its card say, read from the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    GateJudged,
    IdentityRegistered,
    ReleaseOrdered,
    StageEntered,
    TrafficSplit,
)
from tiltyard.identity.difference import Difference, behaviour_differences, deployment_differences
from tiltyard.release.plan import MEANS, QUANTILES, SCORES, WINS, Gate, PromoteStage, ShadowStage, Stage
from tiltyard.release.state import ReleaseState
from tiltyard.release.tally import Tally

Progress = Literal["done", "overridden", "now", "next", "never"]
Side = Literal["for", "against", "open"]
Kind = Literal["quality", "speed", "service", "cost"]


class Look(NamedTuple):
    """A gate's judgment at one moment."""

    time_us: int
    judged: GateJudged


@dataclass(frozen=True)
class GateAccount:
    """A gate and its evidence over time, oldest first."""

    gate: Gate
    looks: tuple[Look, ...] = ()
    paired: bool = False
    """Whether its samples are pairs about the same thing (a copied prompt, a battle, an item)."""

    @property
    def newest(self) -> GateJudged | None:
        """What it says now; `None` before its first look."""
        return self.looks[-1].judged if self.looks else None

    @property
    def threshold(self) -> float | None:
        """Where the bound lies, in the units of `effect`."""
        if self.gate.limit is not None:
            return self.gate.limit
        if self.gate.worse_by is None:
            return None
        return -self.gate.worse_by if self.more_is_better else self.gate.worse_by

    @property
    def more_is_better(self) -> bool:
        """Whether a larger effect is in the candidate's favour."""
        return self.gate.metric in WINS or self.gate.metric in SCORES

    @property
    def kind(self) -> Kind:
        """What it looks at."""
        if self.gate.metric in QUANTILES:
            return "speed"
        if self.gate.metric in MEANS:
            return "cost"
        return "service" if self.gate.metric in ("error_rate", "cancelled_rate") else "quality"

    @property
    def shown(self) -> Literal["better", "worse"] | None:
        """What the interval shows of the candidate against the other arm; `None`: neither, or it has a limit of its own."""
        newest = self.newest
        if newest is None or self.gate.limit is not None or newest.low is None or newest.high is None:
            return None
        if newest.low > 0:
            return "better" if self.more_is_better else "worse"
        if newest.high < 0:
            return "worse" if self.more_is_better else "better"
        return None

    @property
    def side(self) -> Side:
        """Whether it speaks for or against the candidate: one that passes and is shown to be worse speaks against it."""
        verdict = self.newest.verdict if self.newest else "hold"
        if verdict == "fail" or self.shown == "worse":
            return "against"
        return "for" if verdict == "pass" or self.shown == "better" else "open"


@dataclass(frozen=True)
class StageAccount:
    """A stage of the plan, and how far it came."""

    index: int
    stage: Stage
    progress: Progress
    gates: tuple[GateAccount, ...]
    entered_us: int | None = None
    left_us: int | None = None


class Moved(NamedTuple):
    """A split of the alias, while the release ran or by hand."""

    time_us: int
    split: TrafficSplit


class Ordered(NamedTuple):
    """What a person told the release."""

    time_us: int
    order: ReleaseOrdered


@dataclass(frozen=True)
class Account:
    """One release."""

    state: ReleaseState
    stages: tuple[StageAccount, ...]
    orders: tuple[Ordered, ...]
    traffic: tuple[Moved, ...]
    ended_us: int | None
    differences: tuple[Difference, ...] | None
    """From production to the candidate; `None`: the log does not have both manifests."""
    tally: Tally
    through: int
    """Sequence of the last event of the release's own."""

    @property
    def gates(self) -> list[GateAccount]:
        """Those that were looked at, of all stages."""
        return [gate for stage in self.stages for gate in stage.gates if gate.looks]

    @property
    def conflicting(self) -> bool:
        """Whether signals disagree: both are kept, none is averaged away."""
        return {"for", "against"} <= {gate.side for gate in self.gates}

    def spoken(self, side: Side) -> list[GateAccount]:
        """The gates on one side."""
        return [gate for gate in self.gates if gate.side == side]


def account_of(log: EventLog, state: ReleaseState, tally: Tally | None = None) -> Account:
    """Read it; a `tally` that was kept reads on from where it was. Blocks."""
    kept = Tally(state) if tally is None else tally
    kept.update(log)
    events = list(log.read(after=state.sequence, subject=state.id))
    orders = tuple(Ordered(e.time_us, e.data) for e in events if isinstance(e.data, ReleaseOrdered))
    ended = [event for event in events if event.data == state.ended]
    return Account(
        state=state,
        stages=_stages(state, events),
        orders=orders,
        traffic=_traffic(log, state, ended[0].sequence if ended else None),
        ended_us=ended[0].time_us if ended else None,
        differences=_differences(log, state),
        tally=kept,
        through=events[-1].sequence if events else state.sequence,
    )


def _stages(state: ReleaseState, events: Iterable[StoredEvent]) -> tuple[StageAccount, ...]:
    entered: dict[int, int] = {}
    looks: dict[tuple[int, str], list[Look]] = {}
    last = state.time_us
    for event in events:
        match event.data:
            case StageEntered(index=index):
                entered[index] = event.time_us
            case GateJudged() as data:
                looks.setdefault((data.index, data.gate), []).append(Look(event.time_us, data))
        last = event.time_us
    now = -1 if state.entered is None else state.entered.index
    found = []
    for index, stage in enumerate(state.plan.stages):
        gates = () if isinstance(stage, PromoteStage) else stage.gates
        shadow = isinstance(stage, ShadowStage)
        told = tuple(
            GateAccount(
                gate, tuple(looks.get((index, gate.name), ())), shadow or gate.metric in (*WINS, *SCORES)
            )
            for gate in gates
        )
        found.append(StageAccount(index, stage, _progress(state, index, now), told, entered.get(index)))
    for at, one in enumerate(found):
        after = entered.get(one.index + 1)
        ended = last if state.ended is not None and one.entered_us is not None else None
        found[at] = replace(one, left_us=after if after is not None else ended)
    return tuple(found)


def _progress(state: ReleaseState, index: int, now: int) -> Progress:
    left: Progress = "overridden" if any(o.index == index and o.against for o in state.orders) else "done"
    if state.ended is None:
        return left if index < now else "now" if index == now else "next"
    if index < now or (index == now and state.ended.outcome == "promoted"):
        return left
    return "never"


def _traffic(log: EventLog, state: ReleaseState, until: int | None) -> tuple[Moved, ...]:
    found = []
    for event in log.read(after=state.sequence, types=(TrafficSplit,), subject=state.started.alias):
        data = event.data
        if isinstance(data, TrafficSplit) and (
            data.release == state.id or (data.release is None and (until is None or event.sequence < until))
        ):
            found.append(Moved(event.time_us, data))
    return tuple(found)


def _differences(log: EventLog, state: ReleaseState) -> tuple[Difference, ...] | None:
    started = state.started
    left = manifest_of(log, started.production, started.production_behaviour)
    right = manifest_of(log, started.candidate, started.candidate_behaviour)
    if left is None or right is None:
        return None
    return (
        *behaviour_differences(left.behaviour_manifest, right.behaviour_manifest),
        *deployment_differences(left.deployment_manifest, right.deployment_manifest),
    )


def manifest_of(log: EventLog, name: str, behaviour: str) -> IdentityRegistered | None:
    """The newest registration of a name with that behaviour. Blocks."""
    found = None
    for event in log.read(types=(IdentityRegistered,), subject=name):
        if isinstance(event.data, IdentityRegistered) and event.data.behaviour == behaviour:
            found = event.data
    return found

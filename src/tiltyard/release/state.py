"""Where a release stands: a fold over its events, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tiltyard.events.envelope import StoredEvent
from tiltyard.events.schema import (
    GateJudged,
    GateNotPassed,
    ReleaseEnded,
    ReleaseOrdered,
    ReleaseStarted,
    StageEntered,
    TrafficSplit,
)
from tiltyard.release.plan import Plan, PromoteStage, Stage
from tiltyard.release.recorded_plan import recorded_plan
from tiltyard.release.stage_traffic import watched_at

OF_RELEASES = (ReleaseStarted, StageEntered, GateJudged, ReleaseOrdered, ReleaseEnded, TrafficSplit)


@dataclass(frozen=True)
class Entered:
    """A stage that a release came to."""

    index: int
    sequence: int
    time_us: int


@dataclass(frozen=True)
class ReleaseState:
    """One release."""

    started: ReleaseStarted
    plan: Plan
    sequence: int
    time_us: int
    entries: tuple[Entered, ...] = ()
    """The stages that it came to, in their order."""
    split: TrafficSplit | None = None
    """Its own newest one."""
    steps: frozenset[int] = frozenset()
    """Numbers of its own splits."""
    overruled: TrafficSplit | None = None
    """One that is not its own: a person went back."""
    stands: bool = True
    """Whether what was overruled, or else its own split, is the newest."""
    judgments: tuple[GateJudged, ...] = ()
    """The newest judgment of each gate of each stage."""
    orders: tuple[ReleaseOrdered, ...] = ()
    ended: ReleaseEnded | None = None

    @property
    def id(self) -> str:
        """`rel_…`."""
        return self.started.release

    @property
    def entered(self) -> Entered | None:
        """The stage that it is in; `None` before the first."""
        return self.entries[-1] if self.entries else None

    @property
    def stage(self) -> Stage | None:
        """The stage that it is in; `None` before the first."""
        return None if self.entered is None else self.plan.stages[self.entered.index]

    @property
    def last_step(self) -> int:
        """The number of the split that ends it."""
        return len(self.plan.stages) + 1

    @property
    def paused(self) -> bool:
        """Whether a person asked it to stay where it is."""
        orders = [order.order for order in self.orders if order.order in ("pause", "resume")]
        return bool(orders) and orders[-1] == "pause"

    @property
    def aborted(self) -> ReleaseOrdered | None:
        """A person's order to go back."""
        return next((order for order in self.orders if order.order == "abort"), None)

    @property
    def approved(self) -> ReleaseOrdered | None:
        """A person's approval of the stage that it is in."""
        index = -1 if self.entered is None else self.entered.index
        return next((o for o in self.orders if o.order == "approve" and o.index == index), None)

    @property
    def judged(self) -> tuple[GateJudged, ...]:
        """The newest judgment of each gate of the stage that it is in."""
        index = -1 if self.entered is None else self.entered.index
        return tuple(one for one in self.judgments if one.index == index)

    @property
    def watched(self) -> tuple[Entered, ...]:
        """The stages whose gates can send it back now, the oldest first."""
        if self.entered is None:
            return ()
        stages = watched_at(self.plan, self.entered.index)
        return tuple(one for one in self.entries if one.index in stages)

    @property
    def failed(self) -> GateJudged | None:
        """A failed gate among those that are watched."""
        indices = {one.index for one in self.watched}
        return next((g for g in self.judgments if g.verdict == "fail" and g.index in indices), None)

    @property
    def overridden(self) -> bool:
        """Whether a person let it go on without a gate."""
        return any(order.against for order in self.orders)

    def judgment(self, index: int, gate: str) -> GateJudged | None:
        """The newest judgment of a gate of a stage."""
        return next((one for one in self.judgments if (one.index, one.gate) == (index, gate)), None)

    @property
    def not_passed(self) -> tuple[GateNotPassed, ...]:
        """The gates that an approval now would go on without: neither passed, nor taken on themselves by a person before."""
        taken = {(gate.index, gate.gate) for order in self.orders for gate in order.against}
        indices = [one.index for one in self.watched] if self.entered else [0]
        found = []
        for index in indices:
            stage = self.plan.stages[index]
            for gate in () if isinstance(stage, PromoteStage) else stage.gates:
                judged = self.judgment(index, gate.name)
                if (judged is None or judged.verdict != "pass") and (index, gate.name) not in taken:
                    words = (
                        f"{gate.name}: not looked at yet, which is no pass."
                        if judged is None
                        else judged.words
                    )
                    found.append(GateNotPassed(index=index, gate=gate.name, words=words))
        return tuple(found)

    def after(self, event: StoredEvent) -> ReleaseState:
        """The state after one more event."""
        data = event.data
        match data:
            case TrafficSplit() if data.alias == self.started.alias:
                if data.release == self.id:
                    steps = self.steps | {data.step or 0}
                    return replace(
                        self,
                        split=data,
                        steps=steps,
                        stands=self.overruled is None or data.step == self.last_step + 1,
                    )
                return replace(self, overruled=data, stands=True)
            case StageEntered() if data.release == self.id:
                entered = Entered(data.index, event.sequence, event.time_us)
                return replace(self, entries=(*self.entries, entered))
            case GateJudged() if data.release == self.id:
                others = (j for j in self.judgments if (j.index, j.gate) != (data.index, data.gate))
                return replace(self, judgments=(*others, data))
            case ReleaseOrdered() if data.release == self.id:
                return replace(self, orders=(*self.orders, data))
            case ReleaseEnded() if data.release == self.id:
                return replace(self, ended=data)
        return self


def releases_of(events: Iterable[StoredEvent], states: dict[str, ReleaseState]) -> dict[str, ReleaseState]:
    """Every release after some more events, in the order in which they started; `states` is changed."""
    for event in events:
        if isinstance(event.data, ReleaseStarted):
            plan = recorded_plan(event.data.plan)
            states[event.data.release] = ReleaseState(event.data, plan, event.sequence, event.time_us)
            continue
        for name, state in states.items():
            if state.ended is None:
                states[name] = state.after(event)
    return states

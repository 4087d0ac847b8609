"""Where a release stands: a fold over its events, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tiltyard.events.envelope import StoredEvent
from tiltyard.events.schema import (
    GateJudged,
    ReleaseEnded,
    ReleaseOrdered,
    ReleaseStarted,
    StageEntered,
    TrafficSplit,
)
from tiltyard.release.plan import Plan, Stage

OF_RELEASES = (ReleaseStarted, StageEntered, GateJudged, ReleaseOrdered, ReleaseEnded, TrafficSplit)


@dataclass(frozen=True)
class Entered:
    """The stage that a release is in."""

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
    entered: Entered | None = None
    split: TrafficSplit | None = None
    """Its own newest one."""
    steps: frozenset[int] = frozenset()
    """Numbers of its own splits."""
    overruled: TrafficSplit | None = None
    """One that is not its own: a person went back."""
    stands: bool = True
    """Whether what was overruled, or else its own split, is the newest."""
    judged: tuple[tuple[str, GateJudged], ...] = ()
    """The newest judgment of each gate of the stage."""
    orders: tuple[ReleaseOrdered, ...] = ()
    ended: ReleaseEnded | None = None

    @property
    def id(self) -> str:
        """`rel_…`."""
        return self.started.release

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

    def judgment(self, gate: str) -> GateJudged | None:
        """The newest judgment of a gate of the stage."""
        return dict(self.judged).get(gate)

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
                return replace(self, entered=Entered(data.index, event.sequence, event.time_us), judged=())
            case GateJudged() if data.release == self.id:
                if self.entered is None or data.index != self.entered.index:
                    return self
                return replace(self, judged=tuple({**dict(self.judged), data.gate: data}.items()))
            case ReleaseOrdered() if data.release == self.id:
                return replace(self, orders=(*self.orders, data))
            case ReleaseEnded() if data.release == self.id:
                return replace(self, ended=data)
        return self


def releases_of(events: Iterable[StoredEvent], states: dict[str, ReleaseState]) -> dict[str, ReleaseState]:
    """Every release after some more events, in the order in which they started; `states` is changed."""
    for event in events:
        if isinstance(event.data, ReleaseStarted):
            plan = Plan.model_validate(event.data.plan)
            states[event.data.release] = ReleaseState(event.data, plan, event.sequence, event.time_us)
            continue
        for name, state in states.items():
            if state.ended is None:
                states[name] = state.after(event)
    return states

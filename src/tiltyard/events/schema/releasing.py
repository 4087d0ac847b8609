"""Releases: plans, gates, traffic."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import JsonValue

from tiltyard.events.schema.record import EventData
from tiltyard.identity.canonical import Digest
from tiltyard.identity.manifest import Frozen


class TrafficArm(Frozen):
    """One of the identities that share an alias."""

    arm: str
    """`candidate`, `production` or `baseline` (production again, as small as the candidate, to compare with)."""
    identity: str
    """Identity name."""
    behaviour: Digest
    """Behaviour digest; a worker that serves other bytes under the name gets nothing of this arm."""
    weight: float
    """Share of the requests, 0 to 1."""


class TrafficRule(Frozen):
    """Requests that go to one arm whatever the weights; all that is said must hold."""

    arm: str
    """The arm."""
    tenant: str | None = None
    """Only of this tenant; `None`: of any."""
    channel: str | None = None
    """Only with this word in `x-tiltyard-channel`; `None`: with any or none."""


class ShadowCopies(Frozen):
    """Copies of finished requests for an identity whose answers nobody sees."""

    identity: str
    """Identity name."""
    behaviour: Digest
    """Behaviour digest."""
    share: float
    """Share of the requests that are copied, 0 to 1."""


class TrafficSplit(EventData):
    """Written by the release reconciler and by `tiltyard rollback`: who answers to an alias from now on."""

    TYPE: ClassVar[str] = "tiltyard.traffic.split.v1"
    alias: str
    """The public model name; also the event's subject."""
    arms: tuple[TrafficArm, ...]
    """In an order in which a growing candidate keeps those it has; empty: as `[aliases]` of `tiltyard.toml` says."""
    rules: tuple[TrafficRule, ...] = ()
    """The first one that holds decides."""
    shadow: ShadowCopies | None = None
    """Who gets copies, if anybody."""
    release: str | None = None
    """The release that asks for it; `None`: a person."""
    step: int | None = None
    """Number of this split in its release."""
    by: str
    """Who."""
    why: str
    """In words."""

    def unique_key(self) -> str | None:
        """A release takes each of its steps once."""
        return None if self.release is None else f"split:{self.release}:{self.step}"


class ReleaseStarted(EventData):
    """Written by `tiltyard release start`."""

    TYPE: ClassVar[str] = "tiltyard.release.started.v1"
    release: str
    """Release id, `rel_…`; also the event's subject."""
    alias: str
    """The alias."""
    number: int
    """1, 2, 3, … within the alias."""
    candidate: str
    """Identity name of the candidate."""
    candidate_behaviour: Digest
    """Its behaviour digest."""
    production: str
    """Identity name of what answers to the alias now."""
    production_behaviour: Digest
    """Its behaviour digest."""
    plan: dict[str, JsonValue]
    """The plan, with every default written out."""
    plan_digest: Digest
    """Digest of the plan."""
    by: str
    """Who."""
    why: str
    """In words."""

    def unique_key(self) -> str | None:
        """One release has a number: of two that start at once, one is refused."""
        return f"release:{self.alias}:{self.number}"


class StageEntered(EventData):
    """Written by the release reconciler when a stage begins."""

    TYPE: ClassVar[str] = "tiltyard.release.stage.entered.v1"
    release: str
    """Release id; also the event's subject."""
    index: int
    """Place in the plan, from 0."""
    stage: str
    """`evals`, `shadow`, `canary`, `preference` or `promote`."""

    def unique_key(self) -> str | None:
        """A stage is entered once."""
        return f"stage:{self.release}:{self.index}"


class GateJudged(EventData):
    """Written by the release reconciler when a gate's verdict changes, its evidence has grown by half, or a stage ends."""

    TYPE: ClassVar[str] = "tiltyard.release.gate.judged.v1"
    release: str
    """Release id; also the event's subject."""
    index: int
    """Place of the stage in the plan."""
    gate: str
    """Name of the gate: metric, comparison, slice."""
    number: int
    """1, 2, 3, … within the gate."""
    verdict: Literal["pass", "fail", "hold"]
    """`hold` also where data is missing or could not be read; that is never a pass."""
    effect: float | None
    """Estimate; `None`: no data."""
    low: float | None
    """Lower end of the interval, which holds at all times at once."""
    high: float | None
    """Upper end."""
    samples: int
    """What the estimate rests on."""
    samples_other: int = 0
    """The same of what it is compared with."""
    through: int
    """Sequence of the last event that was read."""
    words: str
    """Effect, interval, sample and verdict."""

    def unique_key(self) -> str | None:
        """A gate's judgments are numbered."""
        return f"gate:{self.release}:{self.index}:{self.gate}:{self.number}"


class GateNotPassed(Frozen):
    """A gate that somebody went on without."""

    index: int
    """Place of its stage in the plan."""
    gate: str
    """Its name."""
    words: str
    """What it said at that moment."""


class ReleaseOrdered(EventData):
    """Written by `tiltyard release approve`, `pause`, `resume` and `abort`, and by the page: what a person told a release."""

    TYPE: ClassVar[str] = "tiltyard.release.ordered.v1"
    release: str
    """Release id; also the event's subject."""
    order: Literal["approve", "pause", "resume", "abort"]
    """What."""
    index: int
    """The stage that it was said in."""
    by: str
    """Who."""
    why: str
    """In words."""
    against: tuple[GateNotPassed, ...] = ()
    """Of an approval: the gates that had not passed, which makes it an override; empty: all had, or an earlier version wrote it."""


class ReleaseEnded(EventData):
    """Written by the release reconciler, once the traffic is where it shall be."""

    TYPE: ClassVar[str] = "tiltyard.release.ended.v1"
    release: str
    """Release id; also the event's subject."""
    outcome: Literal["promoted", "rolled_back", "aborted"]
    """How."""
    why: str
    """In words."""

    def unique_key(self) -> str | None:
        """A release ends once."""
        return f"release-ended:{self.release}"

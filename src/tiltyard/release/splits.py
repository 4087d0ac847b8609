"""The splits that a release asks for: a stage's, the way back, promotion."""

from __future__ import annotations

from tiltyard.events.schema import ShadowCopies, TrafficArm, TrafficRule, TrafficSplit
from tiltyard.release.history import Version
from tiltyard.release.plan import ShadowStage
from tiltyard.release.stage_traffic import traffic_at
from tiltyard.release.state import ReleaseState

BY = "tiltyard release reconciler"


def split_of_stage(state: ReleaseState) -> TrafficSplit:
    """The traffic of the stage that a release is in."""
    stage, entered = state.stage, state.entered
    if stage is None or entered is None:
        raise AssertionError("traffic belongs to a stage")
    started = state.started
    traffic = traffic_at(state.plan, entered.index)
    production = (started.production, started.production_behaviour)
    arms = (
        ("candidate", started.candidate, started.candidate_behaviour, traffic.share),
        ("production", *production, round(1 - traffic.share - traffic.baseline, 12)),
        ("baseline", *production, traffic.baseline),
    )
    shadow = None
    if isinstance(stage, ShadowStage):
        shadow = ShadowCopies(
            identity=started.candidate, behaviour=started.candidate_behaviour, share=stage.share
        )
    return TrafficSplit(
        alias=started.alias,
        arms=tuple(
            TrafficArm(arm=arm, identity=identity, behaviour=behaviour, weight=weight)
            for arm, identity, behaviour, weight in arms
            if weight > 0 or arm == "production" or (traffic.rules and arm == "candidate")
        ),
        rules=tuple(
            TrafficRule(arm=rule.arm, tenant=rule.tenant, channel=rule.channel) for rule in traffic.rules
        ),
        shadow=shadow,
        release=state.id,
        step=entered.index + 1,
        by=BY,
        why=f"stage {stage.stage}",
    )


def split_back(state: ReleaseState, why: str, *, step: int | None = None) -> TrafficSplit:
    """All traffic to production: the decision and its effect are one event."""
    production = Version(state.started.production, state.started.production_behaviour)
    return TrafficSplit(
        alias=state.started.alias,
        arms=production.alone,
        release=state.id,
        step=step or state.last_step,
        by=BY,
        why=why,
    )


def split_promoted(state: ReleaseState) -> TrafficSplit:
    """All traffic to the candidate; says what was shown, and what a person took on themselves."""
    candidate = Version(state.started.candidate, state.started.candidate_behaviour)
    approved = f", approved by {state.approved.by}" if state.approved else ""
    overrides = [one for one in state.orders if one.against]
    said = "every stage was passed"
    if overrides:
        said = "not every gate was passed: " + "; ".join(
            f"{one.by} let {state.plan.stages[one.index].stage} go on without {', '.join(gate.gate for gate in one.against)} "
            f"({one.why})"
            for one in overrides
        )
    return TrafficSplit(
        alias=state.started.alias,
        arms=candidate.alone,
        release=state.id,
        step=state.last_step,
        by=BY,
        why=f"{said}{approved}",
    )
